"""Local servers for tests: object stores, the Hugging Face hub, OpenAI's API, and a fault-injecting proxy."""
