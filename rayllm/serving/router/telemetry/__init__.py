"""What a router keeps of its requests: metrics, traces, a log, and the records of the most recent requests."""
