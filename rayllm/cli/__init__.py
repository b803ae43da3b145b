"""The `rayllm` command."""
