"""The weights and tokenizer of one replica, at the version that the other replicas serve."""

import asyncio
import hashlib
from functools import partial
from pathlib import Path

from ray import serve

from rayllm.cluster.gpu_group import call_on_other_nodes
from rayllm.config import LocalSource, ModelConfig, Source
from rayllm.serving.cluster.state.served_versions import ServedVersion
from rayllm.sources import Progress, Version, fetch, mistral_priority


class ReplicaWeights:
    """Fetches a replica's weights."""

    def __init__(self, model: ModelConfig) -> None:
        self._model = model
        self._served: list[ServedVersion] = []
        self.version = Version()

    async def fetch(self, progress: Progress, on_other_nodes: bool) -> tuple[str, Path | None]:
        """Fetch the weights and the tokenizer.

        Returns:
            The folder of the weights, or the address that vLLM streams them from; and the tokenizer's own folder, if
            any.

        Args:
            on_other_nodes: also fetch the files on every other node of the placement group, into the same folders.

        Raises:
            SourceError: the files cannot be fetched.
            ConfigError: the source has no weights that may be loaded.
        """
        loading = self._model.model_loading_config
        weights = self._model.streamed_from or str(
            await self._fetch(self._model.source, True, progress, on_other_nodes)
        )
        if loading.tokenizer_source is None:
            return weights, None
        return weights, await self._fetch(loading.tokenizer_source, False, progress, on_other_nodes)

    async def _fetch(self, source: Source, weights: bool, progress: Progress, on_other_nodes: bool) -> Path:
        pickle = weights and self._model.model_loading_config.allow_pickle_weights
        arguments = self._model.engine_kwargs
        fetch_files = partial(fetch, source, self._model.model_id, pickle, weights, arguments=arguments)
        if isinstance(source, LocalSource):
            return (await asyncio.to_thread(fetch_files)).folder
        served = ServedVersion(_key(source, mistral_priority(arguments, in_place=False) if weights else None))
        fetched = await asyncio.to_thread(fetch_files, await served.get(), progress, on_other_nodes)
        version = await served.decide(fetched.version)
        if version != fetched.version:
            # Another replica started at the same time and saw the source before or after a change.
            fetched = await asyncio.to_thread(fetch_files, version, progress, on_other_nodes)
        self._served.append(served)
        if weights:
            self.version = fetched.version
        if on_other_nodes:
            await asyncio.to_thread(call_on_other_nodes, partial(fetch_files, fetched.version, None, True))
        return fetched.folder


def _key(source: Source, files: str | None) -> str:
    """The key within this deployment of a source's files; None stands for the tokenizer's files."""
    context = serve.get_replica_context()
    digest = hashlib.sha256(repr((source, files)).encode()).hexdigest()[:16]
    return f"{context.app_name}/{context.deployment}/{digest}"
