"""What commands share: requests to a server, Ray's cluster, tables, files and prompts."""
