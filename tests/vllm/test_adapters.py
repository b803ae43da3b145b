"""Loading adapters into an engine: vLLM's own checks of files, but no engine."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from vllm.config.lora import LoRAConfig
from vllm.lora.peft_helper import PEFTHelper

from rayllm.core.errors import RayLLMError
from rayllm.engine.vllm.adapters import EngineAdapters, _BrokenAdapterError, _scaling_of
from rayllm.lora import Adapter
from tests.unit.lora.files import LAYER, SHAPES, adapter, write

WEIGHTS = "adapter_model.safetensors"
HAS_PATTERNS = hasattr(PEFTHelper, "get_rank_and_scaling")
Q = f"{LAYER}.q_proj"


class Engine:
    """Stands for AsyncLLM where it loads an adapter: its workers apply all tensors, unless an error is given."""

    def __init__(
        self, error: Exception | None = None, errored: bool = False, refuses: str = "", workers: int = 1
    ) -> None:
        self.vllm_config = SimpleNamespace(
            lora_config=LoRAConfig(max_lora_rank=16, max_loras=1, lora_dtype=torch.bfloat16),
            parallel_config=SimpleNamespace(world_size=workers),
        )
        self.processes: list[Any] = []
        manager = SimpleNamespace(processes=self.processes)
        self.engine_core = SimpleNamespace(resources=SimpleNamespace(engine_manager=manager))
        self.held: set[int] = set()
        self.asked: dict[str, list[int]] = {}
        self.errored = errored
        self._error = error
        self._refuses = refuses

    async def collective_rpc(self, method: str, args: tuple[dict[str, list[int]]]) -> list[dict[str, Any]]:
        assert method == "check_lora_tensors"
        [self.asked] = args
        applied = {name: 0 for name in self.asked if name != self._refuses}
        return [{"applied": applied, "skipped": [], "missing": "", "examples": {"q_proj": "layers.0.q_proj"}}]

    async def add_lora(self, request: Any) -> None:
        self.held.add(request.lora_int_id)
        if self._error:
            # The engine's process sends nothing but the text.
            raise Exception(f"Call to add_lora method failed: {self._error}")

    async def remove_lora(self, lora_id: int) -> None:
        self.held.discard(lora_id)


async def load(engine: Engine, folder: Path) -> Any:
    models = SimpleNamespace(lora_id_counter=SimpleNamespace(inc=lambda by: 1), lora_requests={})
    return await EngineAdapters(engine, models).add(Adapter("m", "x"), "1", folder)


async def refused(engine: Engine, folder: Path) -> RayLLMError:
    with pytest.raises(RayLLMError) as caught:
        await load(engine, folder)
    assert not engine.held
    return caught.value


async def test_an_adapter_whose_tensors_all_workers_apply_is_loaded(tmp_path: Path) -> None:
    engine = Engine()
    request = await load(engine, write(tmp_path, adapter()))
    assert (request.lora_name, request.lora_path) == ("m:x@1", str(tmp_path))
    assert engine.held == {1}
    assert engine.asked == {name: list(shape) for name, shape in SHAPES.items()}


async def test_an_adapter_that_no_worker_applies_as_a_whole_is_not_loaded(tmp_path: Path) -> None:
    error = await refused(Engine(refuses=f"{Q}.lora_B.weight"), write(tmp_path, adapter()))
    assert (error.status, error.code) == (400, "adapter_broken")
    assert f"`{Q}.lora_B.weight` would not be applied" in error.message


@pytest.mark.parametrize(
    "text",
    [
        "CUDA out of memory. Tried to allocate 2.00 GiB.",
        "[Errno 28] No space left on device",
        "Worker failed with error 'No free lora slots', please check the stack trace above for the root cause",
        "Server shutting down",
        "Loading lora m:x@1 failed: No adapter found for /cache/x",
        # Words that also stand for broken files.
        "LoRA rank 64 is greater than max_lora_rank 16.",
        "The size of tensor a (64) must match the size of tensor b (32) at non-singleton dimension 1",
    ],
)
async def test_what_the_engine_fails_on_is_not_the_adapters_fault(
    tmp_path: Path, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    error = await refused(Engine(RuntimeError(text)), write(tmp_path, adapter()))
    assert (error.status, error.code) == (503, "adapter_unavailable")
    assert error.headers()["retry-after"]
    assert text not in error.message
    assert text in caplog.text


@pytest.mark.parametrize(
    ("workers", "folder", "is_killed"), [(2, "sound", True), (1, "sound", False), (2, "gone", False)]
)
async def test_a_load_that_fails_on_one_of_several_workers_ends_the_engine(
    tmp_path: Path, workers: int, folder: str, is_killed: bool
) -> None:
    """The replies of the others stay unread. A single worker, or files that are refused before, leave nothing."""
    write(tmp_path / "sound", adapter())
    engine = Engine(RuntimeError("no memory"), workers=workers)
    with subprocess.Popen(["sleep", "60"]) as process:
        engine.processes.append(process)
        await refused(engine, tmp_path / folder)
        # Killed once more, which changes nothing, or only now.
        process.terminate()
    assert process.returncode == (-signal.SIGKILL if is_killed else -signal.SIGTERM)


async def test_an_engine_that_dies_over_an_adapter_is_dead(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    engine = Engine(RuntimeError("EngineCore encountered an issue."), errored=True)
    error = await refused(engine, write(tmp_path, adapter()))
    assert (error.status, error.message) == (500, "The engine died.")
    assert "EngineCore encountered an issue" in caplog.text


async def test_files_that_cannot_be_read_now_are_not_the_adapters_fault(tmp_path: Path) -> None:
    error = await refused(Engine(), tmp_path / "gone")
    assert (error.status, error.code) == (503, "adapter_unavailable")


@pytest.mark.parametrize(
    ("files", "said"),
    [
        (adapter(r=32), "LoRA rank 32 is greater than max_lora_rank 16"),
        (adapter(bias="all"), "Adapter bias is not supported"),
        (adapter(lora_alpha="x"), "vLLM refuses it: "),
        (adapter() | {"adapter_config.json": b'{"r": 2}'}, "Missing required configuration fields"),
        (adapter() | {"adapter_config.json": b"{"}, "vLLM refuses it: "),
        (adapter() | {WEIGHTS: b"x" * 100}, "vLLM refuses it: "),
        (adapter(SHAPES | {"base_model.model.norm.weight": (4,)}), "norm.weight is unsupported LoRA weight"),
        (adapter(r=4), f"`{Q}.lora_A.weight` has rank 2, but adapter_config.json says 4"),
        (
            adapter(lora_alpha=1e300),
            "`model.layers.0.self_attn.q_proj` has, once it is scaled, a norm of nan",
        ),
        (adapter(fill=b"\x7e", lora_alpha=100), "a norm of 9.83245e+07: the model would overflow"),
        (adapter(fill=b"\x7f"), "a norm of nan: the model would overflow"),
        (
            adapter(rank_pattern={"q_proj": 4}),
            "has rank 2, but adapter_config.json says 4" if HAS_PATTERNS else "`rank_pattern` is set, which needs vLLM",
        ),
    ],
)
async def test_what_vllm_refuses_or_scales_otherwise_is_found_before_the_engine(
    tmp_path: Path, files: dict[str, bytes], said: str
) -> None:
    engine = Engine()
    error = await refused(engine, write(tmp_path, files))
    assert (error.status, error.param, error.code) == (400, "model", "adapter_broken")
    assert error.message.startswith("The adapter `m:x` cannot be used: ")
    assert said in error.message
    assert str(tmp_path) not in error.message
    assert not engine.asked


async def test_matrices_of_all_experts_have_the_ranks_of_all(tmp_path: Path) -> None:
    shapes = {f"{LAYER}.experts.lora_A.weight": (8, 4), f"{LAYER}.experts.lora_B.weight": (6, 8)}
    engine = Engine()
    await load(engine, write(tmp_path, adapter(shapes)))
    assert engine.held


def test_patterns_are_refused_where_vllm_ignores_them() -> None:
    older = SimpleNamespace(r=8, vllm_lora_scaling_factor=2.0)
    assert _scaling_of(older, {"rank_pattern": {}, "alpha_pattern": None})("q_proj") == (8, 2.0)
    with pytest.raises(_BrokenAdapterError, match="`alpha_pattern` is set, which needs vLLM"):
        _scaling_of(older, {"alpha_pattern": {"q_proj": 4}})


@pytest.mark.skipif(not HAS_PATTERNS, reason="this vLLM ignores patterns")
async def test_patterns_are_taken_where_vllm_applies_them(tmp_path: Path) -> None:
    engine = Engine()
    await load(engine, write(tmp_path, adapter(r=4, rank_pattern={"q_proj": 2}, alpha_pattern={"q_proj": 1})))
    assert engine.held


async def test_tensors_that_lie_on_each_other_are_refused(tmp_path: Path) -> None:
    files = adapter()
    weights = files[WEIGHTS].replace(b"[8, 20]", b"[0, 12]")
    assert weights != files[WEIGHTS]
    error = await refused(Engine(), write(tmp_path, files | {WEIGHTS: weights}))
    assert (error.status, error.code) == (400, "adapter_broken")
