#!/usr/bin/env bash
# Installs the peers of `taskwire-bench nodes`: Redis from Debian's packages, FastMCP by pip into bench/target/peers. Quick when they are
# there. It starts nothing: the benchmark starts what it measures, on ports of its own.
set -euo pipefail
cd "$(dirname "$0")"
dir=$PWD/../target/peers
stamp=$dir/.complete
log=$(mktemp)
policy=
trap 'rm -f "$log" ${policy:+"$policy"}' EXIT

# quietly COMMAND...: shows the output only when the command fails
quietly() {
  "$@" >"$log" 2>&1 </dev/null && return
  cat "$log" >&2
  echo "peers: failed: $*" >&2
  return 1
}

# redis_from_system: installs Redis, and does not let it be started.
redis_from_system() {
  if [ ! -e /usr/sbin/policy-rc.d ]; then
    policy=/usr/sbin/policy-rc.d
    printf '#!/bin/sh\nexit 101\n' >"$policy"
    chmod 755 "$policy"
  fi
  export DEBIAN_FRONTEND=noninteractive
  local install=(apt-get -qq -y -o DPkg::Lock::Timeout=300 install --no-install-recommends redis-server)
  # Lists of packages that are old or absent are the usual reason for a failure.
  "${install[@]}" >"$log" 2>&1 </dev/null || { quietly apt-get -qq update && quietly "${install[@]}"; }
}

if ! command -v redis-server >/dev/null; then
  if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
    echo "peers: redis-server is missing. Debian: apt-get install redis-server (as root)." >&2
    exit 1
  fi
  redis_from_system
  echo "peers: installed $(redis-server --version | cut -d' ' -f1-3)"
fi

if [ ! -e "$stamp" ] || [ requirements.txt -nt "$stamp" ] || [ requirements-nodeps.txt -nt "$stamp" ]; then
  rm -rf "$dir"
  mkdir -p "$dir"
  export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore PIP_NO_INPUT=1
  quietly "${PYTHON:-python3}" -m venv "$dir"
  quietly "$dir/bin/python" -m pip install -q -r requirements.txt
  quietly "$dir/bin/python" -m pip install -q --no-deps -r requirements-nodeps.txt
  touch "$stamp"
  echo "peers: installed FastMCP into bench/target/peers"
fi
