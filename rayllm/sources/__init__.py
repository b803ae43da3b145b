"""Where weights come from: one file a kind of place, one function to have them on this node."""

from __future__ import annotations

from pathlib import Path

from rayllm.config import BucketSource, HubSource, LocalSource, Source
from rayllm.errors import SourceError
from rayllm.sources.weights import find_weights

__all__ = ["fetch", "find_weights"]


def fetch(source: Source, model_id: str, allow_pickle: bool = False, weights: bool = True) -> Path:
    """A local folder that holds the model, fetched first where it is elsewhere.

    Args:
        source: where it comes from.
        model_id: the model, for errors.
        allow_pickle: accept a source that holds only pickled weights.
        weights: false fetches only what a tokenizer needs.

    Raises:
        SourceError: it cannot be had; the message names the source and the cause.
        ConfigError: it holds no weights that may be loaded.
    """
    if isinstance(source, LocalSource):
        folder = Path(source.path).expanduser()
        if not folder.is_dir():
            raise SourceError(f"model `{model_id}`: model_source {folder} is no folder on this node.")
    elif isinstance(source, HubSource):
        from rayllm.sources.hub import download

        folder = download(source, model_id, allow_pickle, weights)
    elif isinstance(source, BucketSource):
        raise SourceError(f"model `{model_id}`: {source.bucket_uri} cannot be fetched: buckets are not supported yet.")
    if weights:
        find_weights(folder, allow_pickle, model_id)
    return folder
