"""The `rayllm` command: one file a verb."""
