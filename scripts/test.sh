#!/usr/bin/env bash
# Everything that must hold, from a fresh clone on: formats, lints, tests, conformance, real clients and servers, crashes.
set -euo pipefail
cd "$(dirname "$0")/.."

step() { printf '\n== %s (%ss)\n' "$1" "$SECONDS"; }

step "clients and the conformance suite"
bash interop/setup.sh

step "PostgreSQL and PgBouncer"
run_ignored=(--run-ignored all)
if servers=$(bash scripts/postgres.sh); then
  eval "$servers"
elif [[ ${TASKWIRE_PG:-} == skip ]]; then
  run_ignored=()
else
  echo "the tests of the store for many nodes need them; TASKWIRE_PG=skip leaves those tests out"
  exit 1
fi

step "format"
cargo fmt --all --check

step "lints"
cargo clippy --workspace --all-targets --quiet -- -D warnings
for features in client server client,ledger client,oauth client,server oauth-server postgres tls traces; do
  cargo clippy -p taskwire --no-default-features --features "$features" --quiet -- -D warnings
done

step "what each side brings along"
without() {
  local tree
  tree=$(cargo tree -p taskwire --no-default-features --features "$1" -e normal --prefix none)
  if grep "^$2 " <<<"$tree"; then echo "taskwire with the feature \`$1\` alone must not depend on $2"; exit 1; fi
}
without client rusqlite
without client rmcp
without server rmcp
without server reqwest
without server tokio-postgres
without server jsonwebtoken
without server rustls
without server ring
without tls reqwest
without oauth-server reqwest
without traces reqwest
without traces jsonwebtoken

step "unit and integration tests"
if ! cargo nextest --version >/dev/null 2>&1; then cargo install --quiet --locked cargo-nextest; fi
cargo build --workspace --bins --examples --quiet
cargo nextest run --workspace --cargo-quiet "${run_ignored[@]}"
cargo test --workspace --doc --quiet
RUSTDOCFLAGS="-D warnings" cargo doc -p taskwire -p taskwire-core --no-deps --quiet

step "simulated worlds"
# Two minutes of fresh seeds. It prints the seed of a world in which something was wrong.
target/debug/sim --for 2m

step "conformance"
bash scripts/conform.sh

step "real clients"
bash scripts/clients.sh

step "clients that give up"
TASKWIRE_BIN=$PWD/target/debug/taskwire SLOW_SECONDS=8 HANGUP_SECONDS=13 bash scripts/frameworks.sh mcp1 mcp2 sdk1

step "a real browser"
bash scripts/dashboard.sh

step "real servers"
bash scripts/servers.sh

step "a real authorization server"
bash scripts/authorization.sh

[[ ${#run_ignored[@]} != 0 ]] || echo "LEFT OUT: every test that needs PostgreSQL (TASKWIRE_PG=skip)"
step "done"
