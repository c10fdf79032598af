#!/usr/bin/env bash
# Shows a trace in a real collector: MLflow, which takes OTLP over HTTP in JSON as the OpenTelemetry Collector does, and can be had
# from PyPI. A server runs a command as a task, and MLflow must have the spans of the call and of its work, one below the other.
#
#   bash scripts/traces.sh
#
# The program is $TASKWIRE_BIN, or target/debug/taskwire. Needs Python 3.11 or newer with venv, and puts MLflow (about 1 GB) into
# $TASKWIRE_MLFLOW, or target/mlflow. It is no part of scripts/test.sh, which takes spans with a collector of its own.
set -euo pipefail
cd "$(dirname "$0")/.."

bin=${TASKWIRE_BIN:-$PWD/target/debug/taskwire}
venv=${TASKWIRE_MLFLOW:-$PWD/target/mlflow}
work=$(mktemp -d)
pids=()
clean() {
  # A second signal ends our server at once.
  for pid in "${pids[@]}" "${pids[@]}"; do kill "$pid" 2>/dev/null || true; done
  wait
  rm -rf "$work"
}
trap clean EXIT

die() {
  echo "traces: $*" >&2
  exit 1
}

# until_true WHAT COMMAND...: waits until the command succeeds, at most for 90 s
until_true() {
  local what=$1 begun=$SECONDS
  shift
  until "$@" >/dev/null 2>&1; do
    ((SECONDS - begun < 90)) || die "$what did not happen within 90 s"
    sleep 0.2
  done
}

[[ -x $bin ]] || die "$bin is not there: cargo build"
if [[ ! -x $venv/bin/mlflow ]]; then
  python3 -m venv "$venv"
  "$venv/bin/pip" install -q 'mlflow>=3.17'
fi

port=$("$venv/bin/python" -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
collector=http://127.0.0.1:$port
(cd "$work" && exec "$venv/bin/mlflow" server --backend-store-uri "sqlite:///$work/mlflow.db" --workers 1 --port "$port") >"$work/mlflow" 2>&1 &
pids+=($!)
until_true "MLflow's start" curl -sf "$collector/health"

cat >"$work/taskwire.toml" <<EOF
data = "data"
[traces]
endpoint = "$collector"
headers = { x-mlflow-experiment-id = "0" }
interval = "1s"
[[tool]]
name = "tells"
command = ["sh", "-c", "echo \$TRACEPARENT"]
task = "always"
EOF
"$bin" serve "$work/taskwire.toml" --listen 127.0.0.1:0 >"$work/out" 2>"$work/log" &
server=$!
pids+=("$server")
until_true "the server's start" grep -q 'endpoint ' "$work/out"
url=$(awk '$1 == "endpoint" { print $2 }' "$work/out")

parent=$(TASKWIRE_STATE_DIR=$work/state "$bin" call "$url" tells 2>/dev/null)
[[ $parent =~ ^00-([0-9a-f]{32})-([0-9a-f]{16})-01$ ]] || die "the command was told no place in a trace: $parent"
trace=${BASH_REMATCH[1]} span=${BASH_REMATCH[2]}
# A server that ends sends what it has.
kill "$server"
wait "$server" || true
if grep 'traces cannot be sent' "$work/log"; then die "the collector did not take them"; fi

"$venv/bin/python" - "$collector" "$trace" "$span" <<'EOF'
import sys

from mlflow import MlflowClient

collector, trace, own = sys.argv[1:]
spans = {span.span_id: span for span in MlflowClient(collector).get_trace(f"tr-{trace}").data.spans}
run = spans[own]
call = spans[run.parent_id]
assert (run.name, call.name) == ("run tells", "tools/call tells"), (run.name, call.name)
assert call.parent_id is None and call.start_time_ns <= run.start_time_ns <= run.end_time_ns, (call, run)
assert run.attributes["taskwire.outcome"] == "completed", run.attributes
print(f"trace {trace}, as MLflow has it:")
for depth, span in enumerate([call, run]):
    took = (span.end_time_ns - span.start_time_ns) / 1e6
    print(f"{'  ' * depth}{span.name}  {took:.1f} ms  {dict(span.attributes)}")
    for event in span.events:
        print(f"{'  ' * depth}  - {event.name}")
EOF
