#!/bin/sh
# Write requirements/cpu.txt and requirements/cuda.txt: the versions that `make setup` and the image install.
# Without arguments versions that are locked stay; --upgrade takes the newest of all.
#
# pip's constraint format instead of uv.lock, because PyTorch's CPU builds are on an index of their own (or in a local
# folder), and uv.lock would name that index, or that folder, for everybody.
set -eu
cd "$(dirname "$0")/.."

lock() {
    engine=$1
    shift
    .venv/bin/uv pip compile pyproject.toml --extra "$engine" --extra dev --universal --python-version 3.11 \
        --no-header --no-annotate --no-emit-package rayllm --quiet --constraint "$series" --output-file "requirements/$engine.txt" "$@" >/dev/null
}

overrides=$(mktemp)
series=$(mktemp)
trap 'rm -f "$overrides" "$series"' EXIT
# One series of vLLM, the one that the whole suite runs on.
.venv/bin/python -c 'from rayllm.config.vllm_versions import PINNED; print(f"vllm=={PINNED}.*\nvllm-cpu=={PINNED}.*")' > "$series"
# Compilers of the headers' version: CUDA's headers refuse a newer one (flashinfer-ai/flashinfer#3493).
for package in nvidia-cuda-nvcc nvidia-cuda-crt nvidia-nvvm nvidia-cuda-cccl; do echo "$package==13.0.*"; done >> "$series"
# A build such as 2.13.0+cpu is locked by its version alone.
{ cat requirements/cpu-overrides.txt; grep '^torch==' requirements/cpu.txt; } > "$overrides"
lock cpu --override "$overrides" "$@"
lock cuda "$@"
