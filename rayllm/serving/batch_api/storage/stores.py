"""The stores of files and batches in one folder, and threads to call them from."""

import asyncio
import logging
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import NamedTuple, ParamSpec, TypeVar

from rayllm.core.errors import StorageError, UnavailableError
from rayllm.serving.batch_api.storage.batch_store import BatchStore
from rayllm.serving.batch_api.storage.file_store import FileStore
from rayllm.sources.storage import Folder

logger = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")

# Own threads: an unresponsive bucket must not block other blocking calls of the router.
_THREADS = ThreadPoolExecutor(16, thread_name_prefix="batch-stores")


class Stores(NamedTuple):
    """The store of files and the store of batches."""

    files: FileStore
    batches: BatchStore


def open_stores(storage: str, now: Callable[[], float] = time.time) -> Stores:
    """Open the stores in the folder `storage`, which is accessed at the first use."""
    folder = Folder(storage)
    return Stores(FileStore(folder, now), BatchStore(folder, now))


async def in_thread(call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call a store's blocking method in a thread. Raises UnavailableError if the folder cannot be accessed."""
    try:
        return await asyncio.get_running_loop().run_in_executor(_THREADS, partial(call, *args, **kwargs))
    except StorageError as error:
        logger.error("Storage of batches: %s", error)
        raise UnavailableError(
            "The storage of files and batches does not answer; try again later.", None, None, 10
        ) from None
