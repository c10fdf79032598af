#!/usr/bin/env bash
# Runs `taskwire serve` and `taskwire call` with a real authorization server, npm's oidc-provider, on this machine: signing in, step-up,
# tokens that expire and keys that change in mid-stream, tokens with something wrong, introspection. It takes about two minutes.
#
# Needs target/${PROFILE:-debug}/taskwire (cargo build -p taskwire-cli). What the servers log is in target/authorization.
set -euo pipefail
cd "$(dirname "$0")/.."

export TASKWIRE_BIN=${TASKWIRE_BIN:-$PWD/target/${PROFILE:-debug}/taskwire}
if [[ ! -x $TASKWIRE_BIN ]]; then
  echo "${0##*/}: $TASKWIRE_BIN is missing: cargo build -p taskwire-cli" >&2
  exit 2
fi

sh interop/setup.sh
node=$PWD/interop/node_modules/node/bin/node
"$node" --version >/dev/null 2>&1 || node=node

suite=interop/authorization
if [[ ! -d $suite/node_modules || $suite/package-lock.json -nt $suite/node_modules ]]; then
  (cd "$suite" && npm ci --no-audit --no-fund --loglevel=error >/dev/null)
  touch "$suite/node_modules"
fi

export LOG_DIR=$PWD/target/authorization
mkdir -p "$LOG_DIR"
cd "$suite"
exec "$node" --test --test-reporter=spec authorization.test.mjs
