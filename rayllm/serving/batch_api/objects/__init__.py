"""OpenAI's file and batch objects, their ids and pages of them."""
