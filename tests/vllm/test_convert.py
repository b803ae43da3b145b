"""A file of ray.serve.llm, converted and checked by the commands that people use. Nothing is started."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import yaml

from rayllm.config import LocalSource, load_app, load_serve_file

ROOT = Path(__file__).parents[2]
DEMO = {
    "model_loading_config": {"model_id": "rayllm-demo", "model_source": str(ROOT / "models/rayllm-demo/weights")},
    "placement_group_config": {"bundles": [{"CPU": 1}]},
    "engine_kwargs": {"enforce_eager": True, "max_model_len": 512, "tool_call_parser": "hermes"},
    "log_engine_metrics": False,
    "server_cls": "ray.serve.llm.deployment:LLMServer",
    "runtime_env": {"env_vars": {"VLLM_CPU_KVCACHE_SPACE": "1"}},
}


def rayllm(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "rayllm", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60, check=False)


def test_what_convert_writes_validates(tmp_path: Path) -> None:
    (tmp_path / "demo.yaml").write_text(yaml.safe_dump(DEMO))
    application = {
        "name": "llms",
        "import_path": "ray.serve.llm:build_openai_app",
        "args": {"llm_configs": ["demo.yaml"]},
    }
    (tmp_path / "serve.yaml").write_text(yaml.safe_dump({"applications": [application]}))
    done = rayllm("convert", "serve.yaml", "-o", "new", folder=tmp_path)
    assert (done.returncode, done.stdout) == (0, "new/serve.yaml\nnew/model_config/rayllm-demo.yaml\n"), done.stderr
    assert "demo.yaml: server_cls: is not carried over" in done.stderr
    checked = rayllm("validate", *done.stdout.split(), folder=tmp_path)
    assert (checked.returncode, checked.stderr) == (0, "")
    assert rayllm("build", "new/serve.yaml", folder=tmp_path).returncode == 0
    [converted] = load_serve_file(tmp_path / "new/serve.yaml")
    [model] = load_app(converted["args"], tmp_path / "new").models
    assert model.source == LocalSource(path=str(ROOT / "models/rayllm-demo/weights"))
    assert (model.max_model_len, model.engine_kwargs["enforce_eager"]) == (512, True)
