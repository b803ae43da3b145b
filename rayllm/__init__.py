"""RayLLM: an OpenAI-compatible LLM service on a Ray cluster.

`rayllm:app` is what a Ray Serve config imports; `build_app` is the same for Python. Importing this package loads
neither Ray nor an engine.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rayllm.deploy.composition import app, build_app

__version__ = "0.1.0"
__all__ = ["__version__", "app", "build_app"]


def __getattr__(name: str) -> Any:
    if name in ("app", "build_app"):
        from rayllm.deploy import composition

        return getattr(composition, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
