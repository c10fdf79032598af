#!/usr/bin/env bash
# Runs `taskwire` against public task servers, unmodified: rmcp, FastMCP and the TypeScript SDK. Arguments: suites to run.
#
# Needs target/${PROFILE:-debug}/taskwire (cargo build -p taskwire-cli) and .../examples/rmcp_server
# (cargo build -p taskwire --example rmcp_server). What the servers write is in target/servers.
set -euo pipefail
cd "$(dirname "$0")/.."
sh interop/setup.sh

built=$PWD/target/${PROFILE:-debug}
export TASKWIRE_BIN=${TASKWIRE_BIN:-$built/taskwire}
export RMCP_SERVER=${RMCP_SERVER:-$built/examples/rmcp_server}
for file in "$TASKWIRE_BIN" "$RMCP_SERVER"; do
  if [[ ! -x $file ]]; then
    echo "${0##*/}: $file is missing: cargo build -p taskwire-cli && cargo build -p taskwire --example rmcp_server" >&2
    exit 2
  fi
done
exec "${PYTHON:-python3}" -B interop/servers.py "$@"
