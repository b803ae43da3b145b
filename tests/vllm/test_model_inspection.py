"""What finding out what a model can do costs before an engine starts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
WEIGHTS = ROOT / "models" / "rayllm-demo" / "weights"
CONFIGURE = """
import json, subprocess, sys
from rayllm.engine.arguments import VllmArguments
from rayllm.engine.vllm.engine import make_engine_config
started = []
run = subprocess.run
def count(command, **options):
    started.append(command)
    return run(command, **options)
subprocess.run = count
config = make_engine_config(VllmArguments(engine={"model": sys.argv[1]}, server={}))
imports = [command for command in started if any("vllm" in str(word) for word in command)]
print(json.dumps({"imports": imports, "architecture": config.model_config.architecture}))
"""


def test_on_a_cpu_no_other_process_imports_vllm(tmp_path: Path) -> None:
    variables = {**os.environ, "VLLM_CACHE_ROOT": str(tmp_path), "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-c", CONFIGURE, str(WEIGHTS)]
    done = subprocess.run(command, capture_output=True, text=True, env=variables, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert json.loads(done.stdout.splitlines()[-1]) == {"imports": [], "architecture": "LlamaForCausalLM"}
    # Other processes of this machine find what this one has found out.
    [found] = (tmp_path / "modelinfos").iterdir()
    assert "LlamaForCausalLM" in found.name
