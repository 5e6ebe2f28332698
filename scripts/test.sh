#!/usr/bin/env bash
# The checks of the project: ruff, pyright, pytest. --all adds what is slow or needs Ray.
set -euo pipefail
cd "$(dirname "$0")/.."

extras=test
[ "${1:-}" != "--all" ] || extras=test,ray
. scripts/venv.sh "$extras"
.venv/bin/ruff check .
.venv/bin/ruff format --check .
.venv/bin/pyright
if [ "${1:-}" = "--all" ]; then
  .venv/bin/pytest -m ""
else
  .venv/bin/pytest
fi
