"""RayLLM and vLLM's own server, asked the same: same text, logprobs, usage and status.

With `--write-docs` the outcome becomes docs/compatibility.md; without, that page must say what was found.
"""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest
from packaging.version import Version

from benchmarks.servers import bare_vllm
from rayllm.config.vllm_versions import SERIES, current_series
from tests.compatibility.cases import CASES, Case
from tests.compatibility.compare import answer, difference
from tests.compatibility.page import PAGE, page
from tests.integration.service import Service

# The workers of vLLM's default executor take a core while they wait.
UNIPROC = "vllm.v1.executor.uniproc_executor.UniProcExecutor"
STATUSES: dict[tuple[Case, bool], int] = {}
ASKED = [(case, stream) for case in CASES for stream in (False, True) if case.streams or not stream]
# Faults that RayLLM refuses on every vLLM, and vLLM itself from a version on.
CHECKED_FROM = {
    "Structured output: a broken schema": "0.28",
    "Structured output: a broken regex": "0.28",
    "Wrong fields: `stop_token_ids`": "0.29",
}


@pytest.fixture(scope="module")
def bare(service: Service) -> Iterator[httpx.Client]:
    """A client of vLLM's own server; of this module only, since an engine holds gigabytes."""
    with bare_vllm(executor=UNIPROC) as server, httpx.Client(base_url=server.url, timeout=120) as client:
        yield client


def _id(value: Case | bool) -> str:
    return f"{value.group}: {value.name}" if isinstance(value, Case) else "stream" if value else "plain"


@pytest.mark.parametrize(("case", "stream"), ASKED, ids=_id)
def test_the_answer_is_the_same(http: httpx.Client, bare: httpx.Client, case: Case, stream: bool) -> None:
    body = {**case.body, "stream": True} if stream else case.body
    ours, theirs = answer(http, case.path, body), answer(bare, case.path, body)
    STATUSES[case, stream] = ours[0]
    if case.deviation:
        assert theirs[0] == case.vllm_status
        assert ours[0] != theirs[0]
        return
    if Version(current_series()) < Version(CHECKED_FROM.get(_id(case), SERIES[0])):
        # Either an error of the server's own, or an answer that ignores the fault.
        assert (ours[0], theirs[0] != 400) == (400, True)
        return
    assert ours[0] == theirs[0]
    if case.other_text:
        assert ours[0] == 200
        return
    assert difference(ours[1], theirs[1]) is None


def test_the_page_says_what_was_compared(request: pytest.FixtureRequest) -> None:
    if len(STATUSES) < len(ASKED):
        pytest.skip("only a part of the cases has run")
    if request.config.getoption("--write-docs"):
        PAGE.write_text(page(STATUSES))
    assert PAGE.read_text() == page(STATUSES)
