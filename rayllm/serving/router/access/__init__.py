"""Who may call the router, and how much: keys, tokens and limits."""
