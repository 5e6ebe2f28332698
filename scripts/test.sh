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
# A worker a core; a file stays with one of them, so that its fixtures are made once.
if [ "${1:-}" = "--all" ]; then
  .venv/bin/pytest -n auto --dist loadfile -m ""
else
  .venv/bin/pytest -n auto --dist loadfile
fi
