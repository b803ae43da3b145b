"""What `rayllm chat`, `query`, `models` and `bench` share."""
