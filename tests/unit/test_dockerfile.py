"""The image's recipe, as far as it can be checked without building it."""

from __future__ import annotations

import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from rayllm.deploy.kuberay.options import MOUNT
from rayllm.deploy.kuberay.pods import USER

ROOT = Path(__file__).parents[2]
DOCKERFILE = ROOT / "deploy" / "Dockerfile"
SETUP = (ROOT / "scripts" / "setup.sh").read_text()


@dataclass(frozen=True)
class Step:
    """One instruction, in the stage that it belongs to."""

    stage: str
    name: str
    text: str

    @property
    def shell(self) -> str:
        """A RUN's script without its mounts."""
        return re.sub(r"--mount=\S+\s+", "", self.text)


def read() -> list[Step]:
    """The instructions in order; continued lines are one."""
    lines = (line for line in DOCKERFILE.read_text().splitlines() if not line.lstrip().startswith("#"))
    steps, stage = [], ""
    for line in re.sub(r"\\\n\s*", " ", "\n".join(lines)).splitlines():
        name, _, text = line.partition(" ")
        if name == "FROM":
            stage = text.rpartition(" AS ")[2]
        if name:
            steps.append(Step(stage, name, text))
    return steps


STEPS = read()


def of(stage: str, name: str) -> list[Step]:
    """Instructions of one kind in one stage."""
    return [step for step in STEPS if (step.stage, step.name) == (stage, name)]


def test_the_last_stage_is_the_image_and_holds_no_build_tools() -> None:
    assert [step.stage for step in STEPS if step.name == "FROM"] == ["dependencies", "package", "image"]
    assert STEPS[-1].stage == "image"
    [copied] = [step for step in of("image", "COPY") if "--from" in step.text]
    assert copied.text == "--from=dependencies /opt/venv /opt/venv"


def test_every_instruction_is_one_of_dockers() -> None:
    assert {step.name for step in STEPS} == {
        "ARG", "FROM", "RUN", "WORKDIR", "COPY", "ENV", "USER", "EXPOSE", "CMD",
    }  # fmt: skip


@pytest.mark.parametrize("step", [step for step in STEPS if step.name == "RUN"], ids=lambda step: step.stage)
def test_a_shell_can_read_each_run(step: Step) -> None:
    done = subprocess.run(["sh", "-n", "-c", step.shell], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_what_is_copied_is_there_and_not_ignored() -> None:
    kept = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    sources = {
        source
        for step in STEPS
        if step.name == "COPY" and "--from" not in step.text
        for source in step.text.split()[:-1]
    }
    assert sources == kept
    assert all((ROOT / source).exists() for source in sources)


@pytest.mark.parametrize("engine", ["cuda", "cpu"])
def test_it_installs_as_setup_does(engine: str) -> None:
    [install] = [step.shell for step in of("dependencies", "RUN") if "-r pyproject.toml" in step.shell]
    script = install.replace("/opt/uv/bin/uv", "echo")
    done = subprocess.run(["sh", "-euc", script], env={"ENGINE": engine}, capture_output=True, text=True, check=True)
    words = done.stdout.split()
    assert words[words.index("--extra") + 1] == engine
    flags = {word for word in words if word.startswith("--")} - {"--python", "--extra", "--link-mode", "--constraint"}
    for_all, for_cpu = {"--compile-bytecode"}, {"--override", "--torch-backend"}
    assert flags == (for_all | for_cpu if engine == "cpu" else for_all)
    assert all(f" {flag} " in SETUP for flag in flags)
    assert words[words.index("--constraint") + 1] == f"requirements/{engine}.txt"
    assert ("requirements/cpu-overrides.txt" in words) == (engine == "cpu")


def test_the_user_is_the_pods_and_owns_the_cache() -> None:
    [user] = of("image", "USER")
    assert user.text == f"{USER}:{USER}" != "0:0"
    scripts = " ".join(step.shell for step in of("image", "RUN"))
    assert f"useradd --uid {USER} " in scripts
    assert f"install -d -o rayllm -g rayllm {MOUNT}" in scripts
    assert of("image", "USER")[0] is [step for step in STEPS if step.name in ("RUN", "USER")][-1]


def test_kuberay_finds_ray_and_its_probes_find_wget() -> None:
    environment = " ".join(step.text for step in of("image", "ENV"))
    assert "PATH=/opt/venv/bin:$PATH" in environment
    assert f"RAYLLM_CACHE_DIR={MOUNT}" in environment
    assert any(" wget" in step.shell for step in of("image", "RUN"))
    # KubeRay starts a shell of its own, which an entrypoint of ours would get in the way of.
    assert not of("image", "ENTRYPOINT")


@pytest.mark.parametrize("base", [{}, {"LD_LIBRARY_PATH": "/usr/local/cuda/lib64"}], ids=["plain", "of CUDA"])
def test_the_driver_is_found_where_device_plugins_mount_it(base: dict[str, str]) -> None:
    """GKE's mounts it at /usr/local/nvidia, and NVIDIA's own base images look there."""
    assignments = " ".join(step.text for step in of("image", "ENV"))
    script = f'export {assignments}; echo "$LD_LIBRARY_PATH"; echo "$PATH"'
    done = subprocess.run(
        ["sh", "-euc", script], env={"PATH": "/bin", **base}, capture_output=True, text=True, check=True
    )
    libraries, programs = (line.split(":") for line in done.stdout.splitlines())
    assert libraries == ["/usr/local/nvidia/lib", "/usr/local/nvidia/lib64", *base.values()]
    assert programs == ["/opt/venv/bin", "/bin", "/usr/local/nvidia/bin"]
