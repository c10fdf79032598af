#!/usr/bin/env bash
# Runs public MCP clients, unmodified: against the conformance fixtures, and clients without tasks against slow commands.
#
# Needs target/${PROFILE:-debug}/examples/conformance (cargo build -p taskwire --example conformance) and .../taskwire
# (cargo build -p taskwire-cli). What the servers write is in target/clients.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/fixtures.sh

export TASKWIRE_BIN=${TASKWIRE_BIN:-$PWD/target/${PROFILE:-debug}/taskwire}
[[ -x $TASKWIRE_BIN ]] || die "$TASKWIRE_BIN is missing: cargo build -p taskwire-cli"

trap stop_server EXIT
mkdir -p target/clients
start_server target/clients/server.log
sh interop/run.sh "$url"

echo "== py/followups.py"
python=interop/.venv/bin/python
if [[ ! -x $python ]]; then
  python=${PYTHON:-python3}
  export PYTHONPATH=$PWD/interop/.py${PYTHONPATH:+:$PYTHONPATH}
fi
"$python" -B interop/py/followups.py --seconds 12 --hold 3
