"""Fakes of this process, at the seams of the service: replicas, routers and clients over real sockets, and time."""
