"""lm_eval finds the same of the demo behind RayLLM as behind vLLM's own server. `make test-clients` runs this."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from tests.integration.evaluation import evaluate, make_task
from tests.integration.service import Service
from tests.integration.test_compatibility import bare  # noqa: F401  (a fixture)
from tests.integration.test_documented_clients import needs_clients

pytestmark = needs_clients


def test_lm_eval_finds_the_same(service: Service, bare: httpx.Client, tmp_path: Path) -> None:  # noqa: F811
    make_task(tmp_path)
    urls = {"ours": service.url, "theirs": str(bare.base_url).rstrip("/")}
    (ours, our_likelihoods), (theirs, their_likelihoods) = evaluate(urls, tmp_path)
    assert ours["acc,none"] == theirs["acc,none"] == 1.0
    flat = [float(pair[0]) for row in our_likelihoods for pair in row]
    assert flat == pytest.approx([float(pair[0]) for row in their_likelihoods for pair in row], abs=0.05)
