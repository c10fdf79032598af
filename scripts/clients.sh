#!/usr/bin/env bash
# Runs public MCP clients, unmodified, against the conformance fixtures.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/fixtures.sh

trap stop_server EXIT
mkdir -p target/clients
start_server target/clients/server.log
sh interop/run.sh "$url"
