#!/usr/bin/env bash
# Every benchmark, one after the other, about 15 minutes on two idle cores:
#   bash scripts/bench/run.sh [RESULTS]...
# RESULTS: results whose report is timed too. Needs `pip install -e .[browser,hf,wandb,parquet]`; a
# benchmark whose extra is missing is left out, with a line.
set -uo pipefail
cd "$(dirname "$0")/../.."
python=.venv/bin/python

echo "$(date -u +%F), $(nproc) cores, $($python -c 'import platform, torch; print(platform.python_version(), "torch", torch.__version__)')"
grep -m 1 "model name" /proc/cpuinfo 2>/dev/null

bench() {
  local began=$SECONDS
  printf '\n## %s\n' "$*"
  "$python" "scripts/bench/$@" || echo "not measured: scripts/bench/$1 ended with code $?"
  echo "($((SECONDS - began)) s)"
}

bench sweep.py 1
bench train.py 9
bench floor.py
bench detection.py 12
bench peers.py 12
bench depth.py 3
bench gpu.py
bench report.py "$@"
bench points.py
bench plot.py 1000

printf '\n## start-up, seconds of five calls\n'
for _ in 1 2 3 4 5; do
  "$python" -c 'import subprocess, sys, time
began = time.perf_counter()
subprocess.run([sys.executable, "-m", "lnexp", "--help"], stdout=subprocess.DEVNULL, check=True)
print(f"{time.perf_counter() - began:.2f}", end=" ")'
done
echo
echo "all in all $SECONDS s"
