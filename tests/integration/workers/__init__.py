"""Ray's worker processes, forked from one process that has imported what they import.

A worker imports Ray, Ray Serve and, if it is a replica, vLLM: up to 15 seconds of CPU each, and the tests start
hundreds of them. Where a test sets variables that those imports read, as those of the tutorials do, workers are started
as usual.
"""
