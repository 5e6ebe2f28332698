# Sourced by demo.sh and test.sh: .venv with lnexp and the named extras, made once.
# Usage: . scripts/venv.sh [EXTRAS], e.g. . scripts/venv.sh test

extras="${1:-}"
python="${PYTHON:-python3}"

if [ ! -x .venv/bin/python ]; then
  if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
    echo "lnexp needs Python 3.11 or newer; set PYTHON to one, e.g. PYTHON=python3.11 bash $0" >&2
    exit 2
  fi
  "$python" -m venv .venv
fi

# Installing again costs nothing: the stamp holds what was installed from.
want="$(cat pyproject.toml constraints.txt | cksum) ${extras}"
stamp=".venv/lnexp-stamp-${extras:-base}"
if [ "$(cat "$stamp" 2>/dev/null)" != "$want" ]; then
  .venv/bin/python -m pip install --quiet --disable-pip-version-check \
    --constraint constraints.txt --editable ".${extras:+[$extras]}"
  echo "$want" > "$stamp"
fi
