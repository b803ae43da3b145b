"""The verbs of `rayllm`: a module per verb, with its click command as `command`. Process: command line."""
