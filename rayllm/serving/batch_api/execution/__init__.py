"""The execution of batches: scheduler, runner actors and the lifecycle of one batch."""
