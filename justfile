# Short names for what scripts and cargo do. `just` lists them.

default:
    @just --list

# Format the code
fmt:
    cargo fmt --all

# Check format and lints, and dependencies if cargo-deny is installed
check:
    cargo fmt --all --check
    cargo clippy --workspace --all-targets --quiet -- -D warnings
    @if cargo deny --version >/dev/null 2>&1; then cargo deny check bans licenses sources; else echo "cargo-deny is not installed: dependencies are not checked"; fi

# Look for advisories about dependencies (needs cargo-deny and the network)
advisories:
    cargo deny check advisories

# Run everything that must hold: format, lints, tests, conformance, real clients and servers, crashes
test:
    bash scripts/test.sh

# Run simulated worlds: --for 10m, --seed N, --trace, --plant BUG
sim *args:
    cargo run -p taskwire-sim -- {{args}}

# Run the official conformance suite: [--url URL] [server|client]
conform *args:
    cargo build -p taskwire --example conformance --example conformance_client
    bash scripts/conform.sh {{args}}

# Run the benchmarks: --quick, --only STAGE, --out FILE
bench *args:
    cargo run --release --manifest-path bench/Cargo.toml -- {{args}}

# Serve the demo tools, or what a file says
run *args:
    cargo run --release -- serve {{args}}
