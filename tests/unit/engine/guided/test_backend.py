"""Loading of backends, and the errors."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

from rayllm.core.errors import ConfigError, RequestError
from rayllm.engine.guided.backend import Backends

GOOD = "async def get_custom_guided_decoding_logits_processor(request, tokenizer):\n    return request, tokenizer\n"


def write(folder: Path, name: str, text: str = GOOD) -> Path:
    """A backend `name` below `folder`."""
    (folder / name).mkdir(parents=True)
    (folder / name / "backend.py").write_text(text)
    return folder


def load(folder: Path, default: str | None = None) -> Backends:
    return Backends.load(folder, default, folder / "_cache")


def refusal(folder: Path, default: str | None = None) -> str:
    with pytest.raises(ConfigError) as caught:
        load(folder, default)
    return str(caught.value)


async def test_backends_are_found_by_the_names_of_their_folders(tmp_path: Path) -> None:
    for name in ("plain", "with-dash", "dotted.name", "_left_out", ".hidden"):
        write(tmp_path, name)
    (tmp_path / "README.md").write_text("not a backend")
    backends = load(tmp_path, "plain")
    assert sorted(backends.by_name) == ["dotted.name", "plain", "with-dash"]
    assert backends.choose(None) is backends.by_name["plain"]
    chosen = backends.choose("with-dash")
    assert chosen is not None
    assert await chosen.logits_processor("r", "t") == ("r", "t")
    await chosen.prepare("r")
    assert await chosen.respond("same", None) == "same"


def test_no_default_means_no_backend(tmp_path: Path) -> None:
    assert load(write(tmp_path, "a")).choose(None) is None


def test_an_unknown_name_in_a_request_lists_the_known_ones(tmp_path: Path) -> None:
    backends = load(write(write(tmp_path, "b"), "a"))
    with pytest.raises(RequestError) as caught:
        backends.choose("../a")
    assert caught.value.message == "There is no guided decoding backend `../a`; there is `a`, `b`."
    assert caught.value.param == "nvext.guided_decoding_backend"


def test_an_unknown_default_lists_the_known_ones(tmp_path: Path) -> None:
    assert "there is no guided decoding backend `c`; there is `a`." in refusal(write(tmp_path, "a"), "c")


def test_modules_have_names_of_their_own(tmp_path: Path) -> None:
    write(write(tmp_path, "x-y"), "x_y")
    names = {backend.module.__name__ for backend in load(tmp_path).by_name.values()}
    assert names == {"rayllm_guided_backend_x_y", "rayllm_guided_backend_x_2d_y"}
    assert names <= set(sys.modules)
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("backend")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "it has no `get_custom_guided_decoding_logits_processor`. Define `async def"),
        (GOOD.removeprefix("async "), "`get_custom_guided_decoding_logits_processor` is not an async function."),
        (GOOD.replace("tokenizer", "tok"), "takes (request, tok). Define it as `async def get_custom"),
        (GOOD.replace("tokenizer)", "tokenizer, more=1)"), "takes (request, tokenizer, more)."),
        (GOOD + "def set_custom_guided_decoding_parameters(request): ...", "is not an async function. Define it as"),
        (
            GOOD + "async def get_guided_decoding_constrained_generator(response): ...",
            "`async def get_guided_decoding_constrained_generator(response, raw_request)`",
        ),
        (GOOD + "set_custom_guided_decoding_parameters = 3", "is not an async function."),
        ("import a_module_nobody_has", "No module named 'a_module_nobody_has'. Put a wheel that brings it into"),
        ("1/0", "it cannot be imported: ZeroDivisionError: division by zero. Mend the file"),
        ("def (", "it cannot be imported: SyntaxError"),
        ("import sys; sys.exit(3)", "it cannot be imported: SystemExit: 3."),
    ],
)
def test_faults_name_the_file_and_the_way_out(tmp_path: Path, text: str, said: str) -> None:
    message = refusal(write(tmp_path, "a", text))
    assert message.startswith(f"{tmp_path / 'a' / 'backend.py'}: ")
    assert said in message


def test_every_fault_is_said(tmp_path: Path) -> None:
    write(write(write(tmp_path, "a", "1/0"), "b"), "c", "")
    (tmp_path / "d").mkdir()
    first, second, third = refusal(tmp_path).splitlines()
    assert "a/backend.py" in first
    assert "c/backend.py" in second
    assert third == f"{tmp_path / 'd'}: it has no backend.py. Add one, or let the folder's name begin with `_`."


def test_a_folder_that_is_not_there_is_said(tmp_path: Path) -> None:
    assert "not a readable folder of guided decoding backends" in refusal(tmp_path / "nowhere")
