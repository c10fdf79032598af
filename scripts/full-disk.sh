#!/usr/bin/env bash
# What a server does whose disk is nearly full, and then really: one of 64 MiB, in memory. Needs root, for it mounts one; so it is no part of the
# test command.
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
stream=
clean() {
  if [[ -n $stream ]]; then kill "$stream" 2>/dev/null || true; fi
  if [[ -n $server ]]; then kill "$server" 2>/dev/null || true; wait "$server" 2>/dev/null || true; fi
  umount -l "$work/disk" 2>/dev/null || true
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
# start DATA: a server on this directory of the disk.
start() {
  "$taskwire" serve "$work/taskwire.toml" --data "$work/disk/$1" > "$work/out" 2> "$work/err" &
  server=$!
  : > "$work/ready"
  for _ in $(seq 100); do curl -fs http://127.0.0.1:18791/readyz > "$work/ready" 2>/dev/null && break; sleep 0.1; done
  grep -q ok "$work/ready" || fail "the server does not start: $(cat "$work/err")"
}
start data

# ask TOKEN METHOD NAME PARAMS: the whole answer, on one line. Its headers are in the file `headers`.
ask() {
  local meta='"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{"extensions":{"io.modelcontextprotocol/tasks":{}}}}'
  curl -sN -D "$work/headers" http://127.0.0.1:18791/mcp -H "Authorization: Bearer $1" -H 'Content-Type: application/json' \
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
filling=()
for _ in $(seq 8); do filling+=("$(call a fill | field result.taskId)"); done
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
say "what has ended is forgotten after five seconds, and there is room again"
for id in "${filling[@]}"; do [[ -z $id ]] || ask a tasks/cancel "$id" "\"taskId\":\"$id\"" > "$work/answer"; done
for _ in $(seq 600); do
  alive
  again=$(call b wait | field result.taskId)
  [[ -n $again ]] && break
  sleep 0.1
done
[[ -n $again ]] || fail "there is no room again: $(df -k "$work/disk" | tail -1), $(ls -l "$work/disk/data")"
alive
kill "$server"
wait "$server" || true

say "another program takes the whole disk"
sed -i 's/^disk_reserve_bytes = .*/disk_reserve_bytes = 0/' "$work/taskwire.toml"
start other
kept=()
for _ in $(seq 5); do kept+=("$(call b wait | field result.taskId)"); done
[[ -n ${kept[4]} ]] || fail "bob's tasks were not made"
ask b subscriptions/listen "" "\"notifications\":{\"taskIds\":[\"${kept[0]}\"]}" > "$work/events" &
stream=$!
for _ in $(seq 100); do grep -q acknowledged "$work/events" && break; sleep 0.1; done
grep -q acknowledged "$work/events" || fail "there is no stream: $(cat "$work/events")"
head -c 64M /dev/zero > "$work/disk/theirs" 2>/dev/null || true
for _ in $(seq 50); do
  alive
  call b wait > "$work/answer"
  id=$(field result.taskId < "$work/answer")
  [[ -z $id ]] && break
  kept+=("$id")
done
[[ -z $id ]] || fail "the disk was never full: $(df -k "$work/disk" | tail -1)"
grep -q '^HTTP/1.1 503' "$work/headers" && grep -qi '^retry-after:' "$work/headers" || fail "the refusal is $(cat "$work/headers")"
grep -q 'disk is full' "$work/answer" || fail "the refusal says $(cat "$work/answer")"
say "what is there is served meanwhile"
for id in "${kept[@]}"; do [[ $(status b "$id") == working ]] || fail "$id is gone"; done
curl -fs http://127.0.0.1:18791/readyz > "$work/answer" || fail "it does not say that it serves"
kill -0 "$stream" 2>/dev/null || fail "the stream has ended: $(cat "$work/events")"
alive
say "there is room again"
rm "$work/disk/theirs"
again=
for _ in $(seq 50); do
  alive
  again=$(call b wait | field result.taskId)
  [[ -n $again ]] && break
  sleep 0.1
done
[[ -n $again ]] || fail "no task is made: $(call b wait)"
ask b tasks/cancel "${kept[0]}" "\"taskId\":\"${kept[0]}\"" > "$work/answer"
for _ in $(seq 50); do grep -q cancelled "$work/events" && break; sleep 0.1; done
grep -q cancelled "$work/events" || fail "the stream does not go on: $(cat "$work/events")"
kill -9 "$server"
wait "$server" 2>/dev/null || true
start other
for id in "${kept[@]:1}" "$again"; do [[ $(status b "$id") == working ]] || fail "$id was acknowledged and is gone"; done
[[ $(status b "${kept[0]}") == cancelled ]] || fail "what ended goes on"
for id in "${kept[@]:1}" "$again"; do ask b tasks/cancel "$id" "\"taskId\":\"$id\"" > "$work/answer"; done
alive
say "it held"
