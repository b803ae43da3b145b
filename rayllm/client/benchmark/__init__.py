"""Load generator and latency report for `rayllm bench`."""
