#!/usr/bin/env bash
# Runs public MCP clients, unmodified, against the conformance fixtures.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/fixtures.sh

trap stop_server EXIT
mkdir -p target/clients
start_server target/clients/server.log
# The 2025-11-25 era is not served yet.
INTEROP_LEGACY=0 sh interop/run.sh "$url"
