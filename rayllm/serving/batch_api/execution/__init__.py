"""The execution of a batch: the runner and the lifecycle. Process: runner, a Ray actor for each batch."""
