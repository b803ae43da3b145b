"""What commands share: requests to a server, this machine, the cluster, and more. Process: command line."""
