#!/usr/bin/env bash
# The checks of the project: ruff, pyright, pytest. --all adds what is slow or needs an extra.
set -euo pipefail
cd "$(dirname "$0")/.."

extras=test
[ "${1:-}" != "--all" ] || extras=test,ray,browser,tensorboard,wandb,parquet,safetensors,hf,lightning
. scripts/venv.sh "$extras"
.venv/bin/ruff check .
.venv/bin/ruff format --check .
.venv/bin/pyright
# A worker more than there are cores, for some tests wait; a file stays with one of them, so that its
# fixtures are made once. In their own order: the longest files are the first (tests/conftest.py).
workers=$(( $(getconf _NPROCESSORS_ONLN) + 1 ))
how=(-n "$workers" --dist loadfile --no-loadscope-reorder)
[ "${1:-}" != "--all" ] || how+=(-m "")
.venv/bin/pytest "${how[@]}"
