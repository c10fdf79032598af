#!/usr/bin/env bash
# conform-nodes.sh: the official conformance suite against three nodes on one PostgreSQL, through nginx, which sends each request to the
# next node, as packaging/cluster/nginx.conf does. Installs nginx where it may; see conform.sh for the rest.
set -euo pipefail
cd "$(dirname "$0")/.."

eval "$(bash scripts/postgres.sh)"
if ! command -v nginx >/dev/null && [[ $(id -u) == 0 ]]; then
  # It must not be started on the usual port.
  [[ -e /usr/sbin/policy-rc.d ]] || { printf '#!/bin/sh\nexit 101\n' >/usr/sbin/policy-rc.d && chmod 755 /usr/sbin/policy-rc.d && policy=1; }
  { apt-get -qq -y install --no-install-recommends nginx-light || { apt-get -qq update && apt-get -qq -y install --no-install-recommends nginx-light; }; } >/dev/null
  [[ -z ${policy:-} ]] || rm /usr/sbin/policy-rc.d
fi
command -v nginx >/dev/null || { echo "conform-nodes.sh: nginx is missing"; exit 1; }
cargo build --quiet -p taskwire --example conformance
cargo build --quiet -p taskwire-testkit --bin test-postgres

dir=$(mktemp -d)
pids=()
cleanup() {
  kill "${pids[@]}" 2>/dev/null || true
  exec 3>&- || true
  wait 2>/dev/null || true
  rm -rf "$dir"
}
trap cleanup EXIT
mkfifo "$dir/hold"
target/debug/test-postgres 18 <"$dir/hold" >"$dir/url" 3>&- &
exec 3>"$dir/hold"
until [[ -s $dir/url ]]; do sleep 0.1; done

port() { python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'; }
for node in a b c; do
  port=$(port)
  target/debug/examples/conformance --listen "127.0.0.1:$port" --data "$dir/$node" --store "$(cat "$dir/url")" >"$dir/$node.log" 2>&1 3>&- &
  pids+=($!)
  servers+="server 127.0.0.1:$port max_fails=0;"
done
front=$(port)
mkdir "$dir/tmp"
cat >"$dir/nginx.conf" <<CONF
daemon off; master_process off; pid $dir/nginx.pid; error_log $dir/nginx.log;
events {}
http {
  access_log off;
  client_body_temp_path $dir/tmp; proxy_temp_path $dir/tmp; fastcgi_temp_path $dir/tmp; uwsgi_temp_path $dir/tmp; scgi_temp_path $dir/tmp;
  upstream nodes { $servers keepalive 16; }
  server {
    listen 127.0.0.1:$front;
    location / {
      proxy_pass http://nodes; proxy_http_version 1.1; proxy_set_header Connection ""; proxy_set_header Host \$http_host;
      proxy_buffering off; proxy_read_timeout 1h;
    }
  }
}
CONF
nginx -c "$dir/nginx.conf" -e "$dir/nginx.log" 3>&- &
pids+=($!)
for _ in $(seq 100); do
  # Each node in turn.
  if curl -fsS -o /dev/null "http://127.0.0.1:$front/readyz" 2>/dev/null && curl -fsS -o /dev/null "http://127.0.0.1:$front/readyz" &&
    curl -fsS -o /dev/null "http://127.0.0.1:$front/readyz"; then
    bash scripts/conform.sh --url "http://127.0.0.1:$front/mcp" server | tee "$dir/report" || true
    # A fixture changes the list of tools of the node that it runs on: that list is the configuration of each node, so a stream on another
    # one hears nothing. Nothing else may be missing.
    if grep -E '^(FAILURE|WARNING) ' "$dir/report" | grep -vE '^WARNING .*sep-2575-server-sends-(tools|prompts)-list-changed'; then exit 1; fi
    for least in 'passed, 0 failed (2025-11-25)' 'passed, 0 failed (tasks'; do grep -qF "$least" "$dir/report" || exit 1; done
    echo "conformance on three nodes: nothing is missing but what one node's configuration says"
    exit
  fi
  sleep 0.1
done
cat "$dir"/*.log
exit 1
