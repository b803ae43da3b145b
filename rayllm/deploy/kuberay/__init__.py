"""Renders a serve config as a KubeRay RayService manifest. Pure: reads no cluster. Process: command line."""
