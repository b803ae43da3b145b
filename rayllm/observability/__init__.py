"""What operators see of the service."""
