#!/usr/bin/env bash
# What a server does whose disk is really full: one of 64 MiB, in memory. Needs root, for it mounts one; so it is no part of the test command.
#
# Needs target/${PROFILE:-debug}/taskwire (cargo build -p taskwire-cli), curl and python3.
set -euo pipefail
cd "$(dirname "$0")/.."

taskwire=${TASKWIRE_BIN:-$PWD/target/${PROFILE:-debug}/taskwire}
say() { printf '%s: %s\n' "${0##*/}" "$1"; }
fail() { say "$1" >&2; exit 1; }
[[ -x $taskwire ]] || fail "$taskwire is missing: cargo build -p taskwire-cli"
[[ $(id -u) == 0 ]] || fail "only root may mount a disk: try again with sudo"

work=$(mktemp -d)
server=
mkdir -m 700 "$work/disk"
clean() {
  if [[ -n $server ]]; then kill "$server" 2>/dev/null || true; wait "$server" 2>/dev/null || true; fi
  umount "$work/disk" 2>/dev/null || true
  rm -rf "$work"
}
trap clean EXIT
mount -t tmpfs -o size=64m,mode=700 tmpfs "$work/disk" || fail "a disk in memory cannot be mounted here"

cat > "$work/taskwire.toml" <<'TOML'
listen = "127.0.0.1:18791"
retention = "5s"

[limits]
disk_reserve_bytes = 16777216

[auth]
tokens = [{ token = "a", caller = "ann" }, { token = "b", caller = "bob" }]

[[tool]]
name = "fill"
description = "Writes without end"
command = ["sh", "-c", "yes 'a line of output that is long enough'"]
task = "always"
overflow = "fail"

[[tool]]
name = "wait"
description = "Waits"
command = ["sleep", "600"]
task = "always"

[[tool]]
name = "now"
description = "Is quick"
command = ["echo", "now"]
TOML
"$taskwire" serve "$work/taskwire.toml" --data "$work/disk/data" > "$work/out" 2> "$work/err" &
server=$!
for _ in $(seq 100); do curl -fs http://127.0.0.1:18791/readyz > "$work/ready" 2>/dev/null && break; sleep 0.1; done
grep -q ok "$work/ready" || fail "the server does not start: $(cat "$work/err")"

# ask TOKEN METHOD NAME PARAMS: the whole answer, on one line.
ask() {
  local meta='"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{"extensions":{"io.modelcontextprotocol/tasks":{}}}}'
  curl -s http://127.0.0.1:18791/mcp -H "Authorization: Bearer $1" -H 'Content-Type: application/json' \
    -H 'Accept: application/json, text/event-stream' -H 'MCP-Protocol-Version: 2026-07-28' -H "Mcp-Method: $2" -H "Mcp-Name: $3" \
    -d "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"$2\",\"params\":{$4,$meta}}"
}
call() { ask "$1" tools/call "$2" "\"name\":\"$2\",\"arguments\":{}"; }
field() { python3 -c 'import json,sys
value = json.load(sys.stdin)
for key in sys.argv[1].split("."): value = value.get(key, {}) if isinstance(value, dict) else {}
print(value if not isinstance(value, dict) else "")' "$1"; }
status() { ask "$1" tasks/get "$2" "\"taskId\":\"$2\"" | field result.status; }
alive() { kill -0 "$server" 2>/dev/null || fail "the server has ended: $(cat "$work/err")"; }

waits=$(call b wait | field result.taskId)
[[ -n $waits ]] || fail "bob's task was not made"
say "ann fills the disk"
for _ in $(seq 8); do call a fill > "$work/answer"; done
for _ in $(seq 300); do
  alive
  code=$(call b wait | field error.code)
  [[ $code == -31002 ]] && break
  sleep 0.1
done
[[ $code == -31002 ]] || fail "the disk was never short: $(df -k "$work/disk" | tail -1)"
say "no task is made: $(df -k --output=avail "$work/disk" | tail -1) KiB are left"
call b now | grep -q '"now\\n"' || fail "a quick call is not answered"
[[ $(status b "$waits") == working ]] || fail "bob's task is gone"
ask b tasks/cancel "$waits" "\"taskId\":\"$waits\"" > "$work/answer"
[[ $(status b "$waits") == cancelled ]] || fail "bob's task could not be cancelled"
alive
say "what was stopped is forgotten after five seconds, and there is room again"
for _ in $(seq 600); do
  alive
  again=$(call b wait | field result.taskId)
  [[ -n $again ]] && break
  sleep 0.1
done
[[ -n $again ]] || fail "there is no room again: $(df -k "$work/disk" | tail -1), $(ls -l "$work/disk/data")"
alive
say "it held"
