"""The HTTP endpoints of the Files API and the Batches API. Process: router."""
