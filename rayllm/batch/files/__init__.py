"""JSONL files of requests in the format of OpenAI's Batch API. Process: driver of a batch job."""
