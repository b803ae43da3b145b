"""The exception of this package."""


class PromptError(ValueError):
    """These messages cannot be rendered with this template. The client's error: 400 over HTTP."""
