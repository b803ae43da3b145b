"""The ingress process: it takes requests from clients and finds a replica for each."""
