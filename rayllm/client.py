"""Removed: the `openai` package takes its place."""

raise ImportError(
    "rayllm.client was removed: use the `openai` package, as in openai.OpenAI(base_url='http://127.0.0.1:8000/v1')."
)
