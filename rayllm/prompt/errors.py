"""The one error of this package."""


class PromptError(ValueError):
    """These messages cannot be rendered with this template; the message says why. A client's fault: 400 over HTTP."""
