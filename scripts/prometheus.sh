#!/usr/bin/env bash
# A real Prometheus reads a server: promtool checks the text of /metrics, Prometheus scrapes it, and answers each query of the
# dashboard.
#
#   bash scripts/prometheus.sh [URL]
#
# URL is the address of /metrics of a server that runs. Without it the script starts one with the demo tools (the program is
# $TASKWIRE_BIN, or target/debug/taskwire), and calls some of them. Needs curl and Python 3; where it runs as root on Debian it
# installs `prometheus`. It is no part of scripts/test.sh, which reads /metrics with a parser of its own.
set -euo pipefail
cd "$(dirname "$0")/.."

bin=${TASKWIRE_BIN:-target/debug/taskwire}
work=$(mktemp -d)
pids=()
policy=
clean() {
  # A second signal ends our server at once.
  for pid in "${pids[@]}" "${pids[@]}"; do kill "$pid" 2>/dev/null || true; done
  wait
  rm -rf "$work" ${policy:+"$policy"}
}
trap clean EXIT

die() {
  echo "prometheus: $*" >&2
  exit 1
}

# until_true WHAT COMMAND...: waits until the command succeeds, at most for 30 s
until_true() {
  local what=$1 begun=$SECONDS
  shift
  until "$@" >/dev/null 2>&1; do
    ((SECONDS - begun < 30)) || die "$what did not happen within 30 s"
    sleep 0.2
  done
}

if ! command -v promtool >/dev/null || ! command -v prometheus >/dev/null; then
  [[ $(id -u) == 0 ]] && command -v apt-get >/dev/null || die "install Prometheus first: https://prometheus.io/download"
  # The package would start a server of its own.
  if [[ ! -e /usr/sbin/policy-rc.d ]]; then
    policy=/usr/sbin/policy-rc.d
    printf '#!/bin/sh\nexit 101\n' >"$policy"
    chmod 755 "$policy"
  fi
  export DEBIAN_FRONTEND=noninteractive
  install=(apt-get -qq -y -o DPkg::Lock::Timeout=300 install --no-install-recommends prometheus)
  "${install[@]}" >"$work/apt" 2>&1 </dev/null || { apt-get -qq update && "${install[@]}"; } >"$work/apt" 2>&1 </dev/null || {
    cat "$work/apt" >&2
    die "the package \`prometheus\` could not be installed"
  }
fi

if (($#)); then
  url=$1
else
  [[ -x $bin ]] || die "$bin is not there: cargo build"
  printf 'demo = true\ndata = "data"\n[metrics]\nlisten = "127.0.0.1:0"\n' >"$work/taskwire.toml"
  "$bin" serve "$work/taskwire.toml" --listen 127.0.0.1:0 >"$work/out" 2>"$work/log" &
  pids+=($!)
  until_true "the start of the server" grep -q '^  metrics ' "$work/out"
  url=$(sed -n 's/^  metrics *//p' "$work/out")
  endpoint=$(sed -n 's/^  endpoint *//p' "$work/out")
  export TASKWIRE_STATE_DIR=$work/state
  for call in "countdown from=2" "tell_story pause_ms=1" "bake"; do
    # shellcheck disable=SC2086
    "$bin" call "$endpoint" $call >/dev/null 2>&1 || die "the call of \`$call\` failed"
  done
  "$bin" call "$endpoint" fail >/dev/null 2>&1 && die "\`fail\` did not fail"
  "$bin" call "$endpoint" count_far --detach >/dev/null
fi

echo "== promtool: the text of $url"
curl -fsS "$url" >"$work/metrics"
promtool check metrics <"$work/metrics"
grep -q '^taskwire_build_info{' "$work/metrics" || die "this is no server of ours: $url"

echo "== Prometheus: the queries of the dashboard"
rest=${url#http://}
port=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
cat >"$work/prometheus.yml" <<END
global: { scrape_interval: 1s }
scrape_configs:
  - job_name: taskwire
    metrics_path: /${rest#*/}
    static_configs: [{ targets: ["${rest%%/*}"] }]
END
promtool check config --syntax-only "$work/prometheus.yml" >/dev/null
prometheus --config.file="$work/prometheus.yml" --storage.tsdb.path="$work/tsdb" --web.listen-address="127.0.0.1:$port" \
  --log.level=warn >"$work/prometheus.log" 2>&1 &
pids+=($!)
has_scraped() {
  curl -fsS "http://127.0.0.1:$port/api/v1/query" --data-urlencode 'query=count_over_time(taskwire_build_info[1m]) > 4' | grep -q '"value"'
}
until_true "five scrapes" has_scraped

python3 - "$port" <<'END'
import json, sys, urllib.error, urllib.parse, urllib.request

# What only a server tells that shares its store, and what the embedded store does not.
MAY_BE_ABSENT = ("taskwire_lease_remaining_seconds", "taskwire_store_free_bytes", "taskwire_store_used_bytes")

dashboard = json.load(open("packaging/grafana/taskwire.json"))
wrong = count = 0
for panel in dashboard["panels"]:
    for target in panel.get("targets", []):
        query = target["expr"].replace("$instance", ".*").replace("$__rate_interval", "10s")
        url = f"http://127.0.0.1:{sys.argv[1]}/api/v1/query?" + urllib.parse.urlencode({"query": query})
        count += 1
        try:
            found = len(json.load(urllib.request.urlopen(url))["data"]["result"])
            problem = None if found or any(name in query for name in MAY_BE_ABSENT) else "nothing was found"
        except urllib.error.HTTPError as error:
            problem = error.read().decode()
        if problem:
            wrong += 1
            print(f"{panel['title']}: {query}: {problem}", file=sys.stderr)
print(f"{count} queries, {wrong} of them wrong")
sys.exit(bool(wrong))
END
