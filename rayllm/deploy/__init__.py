"""Turns configurations into Serve applications and KubeRay's manifests, and converts other files. Process: driver."""
