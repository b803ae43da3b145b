"""Private names of vLLM."""

from __future__ import annotations

import pytest
import vllm
from packaging.version import Version

from rayllm.engine.vllm.moved_names import MOVED_NAMES, module_of
from tests.private_names import missing_names
from tests.vllm.private_names import PRIVATE_NAMES


def test_vllm_has_every_private_name_that_is_used() -> None:
    assert missing_names(PRIVATE_NAMES) == []


@pytest.mark.parametrize("name", MOVED_NAMES)
def test_moved_names_are_where_the_table_says(name: str) -> None:
    module = module_of(name, Version(vllm.__version__))
    assert module is None or missing_names({module: [name]}) == []
