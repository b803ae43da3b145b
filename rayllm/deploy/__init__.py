"""From configurations to what runs them: the Serve application, KubeRay's manifests, and others' files converted."""
