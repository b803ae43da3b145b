"""Ray Serve and HTTP: the router, the replicas, and where they stand."""
