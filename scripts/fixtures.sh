# Sourced: serves the conformance fixtures, from target/${PROFILE:-debug}/examples/conformance
# (cargo build -p taskwire --example conformance). Set a trap for stop_server.
binary=target/${PROFILE:-debug}/examples/conformance
server=
data=

sh interop/setup.sh
node=interop/node_modules/node/bin/node
"$node" --version >/dev/null 2>&1 || node=node

die() {
  echo "${0##*/}: $*" >&2
  exit 2
}

stop_server() {
  if [[ -n $server ]]; then
    kill "$server" 2>/dev/null || true
    wait "$server" 2>/dev/null || true
  fi
  [[ -z $data ]] || rm -rf "$data"
}

free_port() {
  "$node" -e 'const s = require("net").createServer().listen(0, "127.0.0.1", () => { console.log(s.address().port); s.close(); })'
}

# start_server LOG: serves the fixtures on a free port and sets `url`.
start_server() {
  local log=$1
  [[ -x $binary ]] || die "$binary is missing: cargo build -p taskwire --example conformance"
  local port
  port=$(free_port)
  data=$(mktemp -d)
  "$binary" --listen "127.0.0.1:$port" --data "$data" >"$log" 2>&1 &
  server=$!
  for ((i = 0; i < 100; i++)); do
    if curl -fsS -o /dev/null "http://127.0.0.1:$port/readyz" 2>/dev/null; then
      url=http://127.0.0.1:$port/mcp
      return
    fi
    kill -0 "$server" 2>/dev/null || break
    sleep 0.1
  done
  cat "$log" >&2
  die "the server did not get ready"
}
