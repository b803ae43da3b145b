"""One module per group of a model's keys, rewritten to the current schema. Process: command line."""
