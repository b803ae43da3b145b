"""Who may call the router: keys in requests, and the file of keys."""
