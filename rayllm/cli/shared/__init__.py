"""What commands share: requests to a server, this machine, the cluster, the decisions of `rayllm gen-config`."""
