"""The report of a run on a GPU, and the models that it serves."""

from __future__ import annotations

from pathlib import Path

import pytest

from rayllm.config import LocalSource, ModelConfig
from rayllm.plan.measure import measure
from tests.gpu.device import Device
from tests.gpu.models import demo, write_shape
from tests.gpu.report import TABLE, Check, render, title_of, write

GPU = Device("cuda", "NVIDIA H100", "H100", "580.1", 80 * 2**30)
CPU = Device("cpu", "a CPU")
CHECKS = [
    Check("streams", "passed", "", [("tokens/s", 12)]),
    Check("sleep and wake", "skipped", "needs a GPU"),
    Check("contest", "failed", "", [(TABLE, "| streams |")]),
]


def test_the_report_has_a_row_for_each_check_and_its_tables() -> None:
    report = render({"Device": "NVIDIA H100"}, CHECKS)
    assert report.splitlines()[0] == "- Device: NVIDIA H100"
    assert "| streams | passed | tokens/s 12 |" in report
    assert "| sleep and wake | skipped: needs a GPU |  |" in report
    assert report.endswith("### contest\n\n| streams |\n")


def test_the_report_is_written_between_the_marks_of_a_page(tmp_path: Path) -> None:
    page = tmp_path / "gpu.md"
    page.write_text("# On a GPU\n\n<!-- report -->\nNot yet.\n<!-- /report -->\n\nMore.\n")
    write(page, "One\\1.\n")
    assert page.read_text() == "# On a GPU\n\n<!-- report -->\nOne\\1.\n<!-- /report -->\n\nMore.\n"
    write(tmp_path / "new.md", "One.\n")
    assert (tmp_path / "new.md").read_text() == "One.\n"


def test_titles() -> None:
    assert title_of("test_plan[Qwen/Qwen3-8B]") == "plan (Qwen/Qwen3-8B)"
    assert title_of("test_sleep_and_wake") == "sleep and wake"


@pytest.mark.parametrize("device", [GPU, CPU], ids=["gpu", "cpu"])
def test_models_are_valid_and_placed_on_the_device(device: Device) -> None:
    whole = ModelConfig.model_validate(demo("whole", device.whole(max_num_batched_tokens=128)))
    part = ModelConfig.model_validate(demo("part", device.share(0.5), lora_config=None))
    assert whole.accelerator_type == (device.accelerator if device.is_gpu else None)
    assert (part.placement_group_config is not None) == device.is_gpu
    assert whole.engine_kwargs["max_num_batched_tokens"] == 128
    assert whole.engine_kwargs["max_num_seqs"] == part.engine_kwargs["max_num_seqs"]
    assert ("gpu_memory_utilization" in part.engine_kwargs) == device.is_gpu


def test_a_shape_is_planned_without_weights(tmp_path: Path) -> None:
    folder = write_shape(tmp_path / "shape", "meta-llama/Llama-3.3-70B-Instruct")
    planned = measure(LocalSource(path=str(folder)))
    assert planned.weights.parameters == pytest.approx(70.6e9, rel=0.01)
    assert (folder / "model.safetensors").stat().st_blocks * 512 < 2**20, "a hole takes no room"
