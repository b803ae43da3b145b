"""uvicorn, embedded in the processes of routers and replicas."""
