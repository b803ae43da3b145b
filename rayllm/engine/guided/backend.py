"""Custom guided decoding backends: loads and validates folders with a `backend.py`."""

import importlib.util
import inspect
import logging
import re
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Self

from rayllm.core.errors import ConfigError, RequestError
from rayllm.engine.guided.isolation import Isolation, Stepwise
from rayllm.engine.guided.wheels import unpack

logger = logging.getLogger(__name__)

FIELD = "nvext.guided_decoding_backend"
FILE = "backend.py"

_MAKE = "get_custom_guided_decoding_logits_processor"
_RESPOND = "get_guided_decoding_constrained_generator"
_PREPARE = "set_custom_guided_decoding_parameters"
# Function → its parameter names, and whether it is required.
_FUNCTIONS = {
    _MAKE: (("request", "tokenizer"), True),
    _RESPOND: (("response", "raw_request"), False),
    _PREPARE: (("request",), False),
}

Function = Callable[..., Awaitable[Any]]


@dataclass(frozen=True)
class Backend:
    """A loaded backend, whose functions are called with the backend's own wheels importable.

    Methods raise any exception of the backend's code; callers confine it to the request.
    """

    name: str
    module: ModuleType
    isolation: Isolation
    make: Function
    respond_with: Function | None = None
    prepare_with: Function | None = None

    async def prepare(self, request: Any) -> None:
        """Call `set_custom_guided_decoding_parameters`, if defined, in the current context."""
        if self.prepare_with:
            await Stepwise(self.prepare_with(request), self.isolation)

    async def logits_processor(self, request: Any, tokenizer: Any) -> Any:
        """A new logits processor for one sequence: a callable `(output_ids, scores)`, or None for no constraint."""
        return await Stepwise(self.make(request, tokenizer), self.isolation)

    async def respond(self, response: Any, raw_request: Any) -> Any:
        """The reply: `response`, or what `get_guided_decoding_constrained_generator` makes of `response`."""
        if self.respond_with is None:
            return response
        return await Stepwise(self.respond_with(response, raw_request), self.isolation)

    async def steps_of(self, events: AsyncIterator[Any]) -> AsyncGenerator[Any, None]:
        """The items of `events`, a generator returned by `respond`, each produced with the wheels importable."""
        try:
            while True:
                try:
                    item = await Stepwise(anext(events), self.isolation)
                except StopAsyncIteration:
                    return
                yield item
        finally:
            if close := getattr(events, "aclose", None):
                await Stepwise(close(), self.isolation)


@dataclass(frozen=True)
class Backends:
    """The backends of a folder by name, and the default backend's name."""

    by_name: Mapping[str, Backend]
    default: str | None = None

    @classmethod
    def load(cls, folder: Path, default: str | None, cache: Path) -> Self:
        """Load the backends in `folder`: each folder whose name does not begin with `.` or `_`.

        Backends import from old paths of vLLM; call `import_shims.install` before. Wheels are unpacked below `cache`.

        Raises:
            ConfigError: lists every error of every backend, one per line.
        """
        backends, faults = dict[str, Backend](), list[str]()
        for path in _folders(folder):
            try:
                backends[path.name] = _load(path, cache)
            except ConfigError as error:
                faults.append(str(error))
        if not faults and default is not None and default not in backends:
            faults.append(f"{folder}: there is no guided decoding backend `{default}`; there is {_listed(backends)}.")
        if faults:
            raise ConfigError("\n".join(faults))
        return cls(backends, default)

    def choose(self, name: str | None) -> Backend | None:
        """The backend `name`, or for None the default backend, if any. Raises RequestError for an unknown name."""
        chosen = self.default if name is None else name
        if chosen is None:
            return None
        if chosen not in self.by_name:
            raise RequestError(
                f"There is no guided decoding backend `{chosen}`; there is {_listed(self.by_name)}.", FIELD
            )
        return self.by_name[chosen]


def _listed(names: Mapping[str, Any]) -> str:
    return ", ".join(f"`{name}`" for name in sorted(names)) or "none"


def _folders(folder: Path) -> list[Path]:
    try:
        entries = sorted(folder.iterdir())
    except OSError as error:
        raise ConfigError(
            f"{folder}: not a readable folder of guided decoding backends: {error.strerror}. It must have a folder for "
            f"each backend, with a {FILE} in it."
        ) from None
    return [entry for entry in entries if entry.is_dir() and not entry.name.startswith((".", "_"))]


def _load(folder: Path, cache: Path) -> Backend:
    file = folder / FILE
    if not file.is_file():
        raise ConfigError(f"{folder}: it has no {FILE}. Add one, or let the folder's name begin with `_`.")
    wheels = sorted(folder.glob("*.whl"))
    isolation = Isolation(unpack(wheels, cache, folder.name) if wheels else None)
    module = _execute(file, isolation)
    functions = {name: _function(file, module, name) for name in _FUNCTIONS}
    make = functions[_MAKE]
    assert make is not None  # noqa: S101  (_function refuses a file without it)
    logger.info("Guided decoding backend `%s` is loaded from %s.", folder.name, file)
    return Backend(folder.name, module, isolation, make, functions[_RESPOND], functions[_PREPARE])


def _execute(file: Path, isolation: Isolation) -> ModuleType:
    # A unique module name: non-word characters are replaced by their code.
    name = "rayllm_guided_backend_" + re.sub(r"\W", lambda match: f"_{ord(match[0]):x}_", file.parent.name)
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None  # noqa: S101  (the suffix is .py)
    assert spec.loader is not None  # noqa: S101
    module = importlib.util.module_from_spec(spec)
    # Dataclasses and pickle look up their module by name.
    sys.modules[name] = module
    try:
        with isolation:
            spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        logger.exception("%s cannot be imported.", file)
        raise ConfigError(f"{file}: it cannot be imported: {_reason(error, file)}") from error
    return module


def _reason(error: BaseException, file: Path) -> str:
    text = " ".join(f"{type(error).__name__}: {error}".split())
    if isinstance(error, ModuleNotFoundError):
        return f"{text}. Put a wheel that brings it into {file.parent}."
    return f"{text}. Mend the file; the log has the traceback."


def _function(file: Path, module: ModuleType, name: str) -> Function | None:
    parameters, required = _FUNCTIONS[name]
    signature = f"async def {name}({', '.join(parameters)})"
    function: Function | None = getattr(module, name, None)
    if function is None:
        if required:
            raise ConfigError(f"{file}: it has no `{name}`. Define `{signature}`.")
        return None
    if not inspect.iscoroutinefunction(function):
        raise ConfigError(f"{file}: `{name}` is not an async function. Define it as `{signature}`.")
    actual = tuple(inspect.signature(function).parameters)
    if actual != parameters:
        raise ConfigError(f"{file}: `{name}` takes ({', '.join(actual)}). Define it as `{signature}`.")
    return function
