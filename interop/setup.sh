#!/bin/sh
# Installs the public clients: npm packages into node_modules, Python packages
# into .venv (or .py where venv is not available). Does nothing when up to date.
set -eu
cd "$(dirname "$0")"
stamps=.stamps
mkdir -p "$stamps"

# stale STAMP FILE...: true when the stamp is missing or older than any file
stale() {
  stamp=$1
  shift
  [ -e "$stamp" ] || return 0
  for file in "$@"; do
    [ "$file" -nt "$stamp" ] && return 0
  done
  return 1
}

# quietly COMMAND...: shows the output only when the command fails
quietly() {
  if ! "$@" >"$stamps/log" 2>&1; then
    cat "$stamps/log" >&2
    echo "interop: failed: $*" >&2
    return 1
  fi
}

if [ ! -d node_modules ] || stale "$stamps/npm" package.json package-lock.json .npmrc; then
  rm -f "$stamps/npm"
  quietly npm ci --no-audit --no-fund --loglevel=error
  touch "$stamps/npm"
  echo "interop: npm packages installed"
fi

if { [ ! -d .venv ] && [ ! -d .py ]; } || stale "$stamps/python" requirements.txt requirements-nodeps.txt; then
  rm -rf "$stamps/python" .venv .py
  export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore PIP_NO_INPUT=1
  base=${PYTHON:-python3}
  if "$base" -m venv .venv >/dev/null 2>&1 && .venv/bin/python -m pip --version >/dev/null 2>&1; then
    where=.venv
    quietly .venv/bin/python -m pip install -q -r requirements.txt
    quietly .venv/bin/python -m pip install -q --no-deps -r requirements-nodeps.txt
  else
    rm -rf .venv
    where=.py
    quietly "$base" -m pip install -q --target .py -r requirements.txt
    quietly "$base" -m pip install -q --target .py --no-deps -r requirements-nodeps.txt
  fi
  touch "$stamps/python"
  echo "interop: Python packages installed into $where"
fi
