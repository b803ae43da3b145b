#!/bin/sh
# Make .venv and install RayLLM into it. A second run with nothing changed does nothing.
#
#   PYTHON    the Python to use (3.11 or newer); default: the first of python3, python3.13, …, python3.11 that is
#   ENGINE    cpu or cuda; default: cuda where an NVIDIA GPU answers, else cpu
set -eu
cd "$(dirname "$0")/.."

fail() { echo "setup: $1" >&2; exit 1; }

# 1. Which engine, and is it there already?
if [ -z "${ENGINE:-}" ]; then
    if command -v nvidia-smi >/dev/null 2>&1 && nvidia-smi -L >/dev/null 2>&1; then ENGINE=cuda; else ENGINE=cpu; fi
fi
stamp=$(cat pyproject.toml scripts/setup.sh scripts/cpu-overrides.txt | cksum; echo "$ENGINE")
[ -f .venv/installed ] && [ "$(cat .venv/installed)" = "$stamp" ] && exit 0

# 2. A virtual environment with a Python that is new enough.
usable() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; }
if ! usable .venv/bin/python || ! .venv/bin/python -m pip --version >/dev/null 2>&1; then
    rm -rf .venv  # half made, or made by a Python that is too old
    for python in ${PYTHON:-python3 python3.13 python3.12 python3.11}; do
        if usable "$python"; then found=$python; break; fi
    done
    [ -n "${found:-}" ] || fail "needs Python 3.11 or newer; name one with PYTHON=/path/to/python3"
    echo "setup: making .venv with $("$found" --version)" >&2
    "$found" -m venv .venv || fail "could not make .venv (on Debian: apt install python3-venv)"
fi
.venv/bin/python -m pip install --quiet --disable-pip-version-check uv

# 3. uv reads none of pip's configuration: hand on where pip looks for packages.
pip_setting() { .venv/bin/python -m pip config get "global.$1" 2>/dev/null || true; }
links=${PIP_FIND_LINKS:-$(pip_setting find-links)}
index=${PIP_INDEX_URL:-$(pip_setting index-url)}
[ -z "$links" ] || export UV_FIND_LINKS="${UV_FIND_LINKS:-$(echo $links | tr ' ' ',')}"
[ -z "$index" ] || export UV_DEFAULT_INDEX="${UV_DEFAULT_INDEX:-$index}"

# 4. Install. Plain `torch` is the CUDA build, gigabytes of it: the CPU engine wants PyTorch's CPU build, from a local
#    folder that has it or else from PyTorch's own index.
set -- --python .venv/bin/python --editable ".[$ENGINE,dev]"
if [ "$ENGINE" = cpu ]; then
    set -- --override scripts/cpu-overrides.txt "$@"
    case $(for folder in $(echo "$links" | tr ',' ' '); do ls "$folder" 2>/dev/null || true; done) in
        *torch-*+cpu*) ;;
        *) set -- --torch-backend cpu "$@" ;;
    esac
fi
# Compiled now, once: an engine's two processes import five thousand modules each, and where Python may not write what it
# compiles (PYTHONDONTWRITEBYTECODE, a read-only image), each of them would spend ten seconds more on it.
set -- --compile-bytecode "$@"
echo "setup: installing rayllm[$ENGINE] (minutes, some gigabytes)" >&2
.venv/bin/uv pip install --quiet "$@" || fail "the installation failed; docs/installation.md lists the usual causes"
echo "$stamp" > .venv/installed
