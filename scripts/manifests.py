"""The manifests in deploy/kuberay: what `rayllm build --kuberay` makes of these files with these options."""

from __future__ import annotations

import contextlib
from pathlib import Path

from click.testing import CliRunner

from rayllm.cli.commands.build import command

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "deploy" / "kuberay"
# Manifest → file and options.
MADE_OF = {
    "demo-cpu.yaml": ["models/rayllm-demo.yaml", "--engine", "cpu", "--path", "models=/opt/rayllm/models"],
    "llama3-8b.yaml": ["serve_configs/llama3.yaml", "--env-secret", "rayllm"],
    "multi-model-autoscaling.yaml": [
        "serve_configs/multi-model.yaml",
        *("--env-secret", "rayllm", "--node-labels", "karpenter", "--model-cache", "hostPath:/var/cache/rayllm"),
    ],
    "multi-lora-s3.yaml": [
        "deploy/serve_configs/multi-lora-s3.yaml",
        *("--env-secret", "rayllm", "--node-labels", "karpenter", "--model-cache", "emptyDir:100Gi"),
        *("--service-account", "rayllm"),
        *("--service-account-annotation", "eks.amazonaws.com/role-arn=arn:aws:iam::123456789012:role/rayllm"),
    ],
}


def manifests() -> dict[Path, str]:
    """Each manifest and its text."""
    with contextlib.chdir(ROOT):
        return {FOLDER / name: _manifest(arguments) for name, arguments in MADE_OF.items()}


def _manifest(arguments: list[str]) -> str:
    made = CliRunner().invoke(command, [arguments[0], "--kuberay", *arguments[1:]], catch_exceptions=False)
    if made.exit_code:
        raise SystemExit(made.output)
    return f"# `make generate` writes this file:\n# {command_line(arguments)}\n{made.stdout}"


def command_line(arguments: list[str]) -> str:
    """What a person would type."""
    file, *options = arguments
    return " ".join(["rayllm", "build", file, "--kuberay", *options])
