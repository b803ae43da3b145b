"""What all processes share: detached actors, updates about replicas, what is deployed, autoscaling."""
