"""Where the AWS CLI is. It pins botocore, so it has an environment of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path


def find_aws() -> str:
    """The `aws` command itself: one on PATH, else one that uv installs for itself.

    A shell script on PATH is a wrapper, of a manager of versions say, whose own time would count as the client's.
    """
    for folder in os.get_exec_path():
        command = shutil.which("aws", path=folder)
        if command and not _is_shell_script(Path(command)):
            return command
    return _installed_by_uv()


def _is_shell_script(path: Path) -> bool:
    with path.open("rb") as file:
        first = file.readline(200)
    return first.startswith(b"#!") and b"python" not in first


def _installed_by_uv() -> str:
    uv = shutil.which("uv", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]))
    if not uv:
        raise SystemExit("The AWS CLI is not there, nor uv to install it: put `aws` on PATH, or run `make setup`.")
    ask = [uv, "tool", "run", "--quiet", "--from", "awscli", "python", "-c", "import sys; print(sys.prefix)"]
    prefix = subprocess.run(ask, check=True, stdout=subprocess.PIPE, text=True, env=os.environ | _places()).stdout
    return str(Path(prefix.strip()) / "bin" / "aws")


def _places() -> dict[str, str]:
    """Where pip looks for packages, for uv, which reads none of pip's configuration; as scripts/setup.sh says it."""
    links = os.environ.get("PIP_FIND_LINKS") or _pip_setting("find-links")
    index = os.environ.get("PIP_INDEX_URL") or _pip_setting("index-url")
    found = {"UV_FIND_LINKS": ",".join(links.split()), "UV_DEFAULT_INDEX": index}
    return {name: value for name, value in found.items() if value and name not in os.environ}


def _pip_setting(name: str) -> str:
    ask = [sys.executable, "-m", "pip", "config", "get", f"global.{name}"]
    return subprocess.run(ask, capture_output=True, text=True).stdout.strip()
