#!/usr/bin/env bash
# The checks of the project: ruff, pyright, pytest. --all adds what is slow or needs extras.
set -euo pipefail
cd "$(dirname "$0")/.."

. scripts/venv.sh test
.venv/bin/ruff check .
.venv/bin/ruff format --check .
.venv/bin/pyright
if [ "${1:-}" = "--all" ]; then
  .venv/bin/pytest -m ""
else
  .venv/bin/pytest
fi
