#!/usr/bin/env bash
# Install lnexp into .venv, train configs/quickstart.yaml and plot it. Again at no cost.
set -euo pipefail
cd "$(dirname "$0")/.."

. scripts/venv.sh
.venv/bin/lnexp run quickstart
echo
echo "Pictures:"
.venv/bin/lnexp plot results/quickstart
