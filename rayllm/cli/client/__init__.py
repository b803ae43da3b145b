"""What `rayllm chat`, `query` and `models` share."""
