"""The `rayllm` command. Process: command line."""
