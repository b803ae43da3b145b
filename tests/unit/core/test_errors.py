"""The tree of errors."""

from __future__ import annotations

import pickle
from collections.abc import Iterator

import pytest
from ray.exceptions import RayTaskError

from rayllm.core.errors import RayLLMError, UnavailableError


def classes(base: type[RayLLMError] = RayLLMError) -> Iterator[type[RayLLMError]]:
    """Those that leave a package; what other modules derive from them is their own affair."""
    yield base
    for child in base.__subclasses__():
        if child.__module__ == base.__module__:
            yield from classes(child)


@pytest.mark.parametrize("cls", list(classes()))
def test_every_error_survives_the_way_between_processes(cls: type[RayLLMError]) -> None:
    error = pickle.loads(pickle.dumps(cls("what", "param", "code")))
    assert type(error) is cls
    assert error.body() == {"error": {"message": "what", "type": cls.type, "param": "param", "code": "code"}}


@pytest.mark.parametrize("cls", list(classes()))
def test_every_error_is_itself_where_ray_raises_it_again(cls: type[RayLLMError]) -> None:
    raised = RayTaskError("function", "traceback", cls("what")).as_instanceof_cause()
    assert isinstance(raised, cls)


@pytest.mark.parametrize("cls", list(classes()))
def test_every_error_stands_in_the_drawing(cls: type[RayLLMError]) -> None:
    import rayllm.core.errors

    assert rayllm.core.errors.__doc__ is not None
    line = next(line for line in rayllm.core.errors.__doc__.splitlines() if cls.__name__ + " " in line)
    if any(character.isdigit() for character in line):
        assert str(cls.status) in line


def test_the_wait_is_kept_too() -> None:
    error = pickle.loads(pickle.dumps(UnavailableError("full", None, None, 7)))
    assert error.headers() == {"retry-after": "7", "x-should-retry": "true"}
