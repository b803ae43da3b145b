"""What a router knows of the requests it has forwarded: metrics, traces, a log, and the most recent ones."""
