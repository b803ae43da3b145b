"""JSONL files of requests, as OpenAI's Batch API takes them."""
