#!/usr/bin/env bash
# The dashboard in a real browser, Chromium, fed by the real program: every flow, a server that is killed, 100,000 lines, axe.
#
#   bash scripts/dashboard.sh [FILE...]
#
# The program is $TASKWIRE_BIN, or target/debug/taskwire; the browser is $TASKWIRE_CHROMIUM, or one that the system has. As root on
# Debian it installs the browser. TASKWIRE_DASHBOARD_PICTURES=DIR keeps pictures of every page in both themes and on a phone.
set -euo pipefail
cd "$(dirname "$0")/.."

log=$(mktemp)
trap 'rm -f "$log"' EXIT

# quietly COMMAND...: shows the output only when the command fails
quietly() {
  "$@" >"$log" 2>&1 </dev/null && return
  cat "$log" >&2
  echo "dashboard: failed: $*" >&2
  return 1
}

find_browser() { command -v chromium || command -v chromium-browser || command -v google-chrome || true; }

export TASKWIRE_BIN=${TASKWIRE_BIN:-$PWD/target/debug/taskwire}
[[ -x $TASKWIRE_BIN ]] || { echo "dashboard: $TASKWIRE_BIN is not there: cargo build" >&2; exit 1; }
browser=${TASKWIRE_CHROMIUM:-$(find_browser)}
if [[ -z $browser && $(id -u) == 0 ]] && command -v apt-get >/dev/null; then
  export DEBIAN_FRONTEND=noninteractive
  install=(apt-get -qq -y -o DPkg::Lock::Timeout=300 install --no-install-recommends chromium fonts-dejavu-core)
  # Lists of packages that are old or absent are the usual reason for a failure.
  "${install[@]}" >"$log" 2>&1 </dev/null || { quietly apt-get -qq update && quietly "${install[@]}"; }
  echo "dashboard: installed chromium" >&2
  browser=$(find_browser)
fi
if [[ -z $browser ]]; then
  echo "dashboard: Chromium is missing. Debian: apt-get install chromium (as root). Elsewhere: TASKWIRE_CHROMIUM=<the program>." >&2
  exit 1
fi
export TASKWIRE_CHROMIUM=$browser
# The tests run elsewhere.
for name in TASKWIRE_BIN TASKWIRE_DASHBOARD_DEV TASKWIRE_DASHBOARD_PICTURES; do
  [[ -z ${!name:-} ]] || export "$name=$(realpath -m "${!name}")"
done

cd interop/dashboard
if [[ ! -e node_modules/.complete || package-lock.json -nt node_modules/.complete ]]; then
  quietly npm ci --ignore-scripts --no-audit --no-fund --loglevel=error
  touch node_modules/.complete
fi
[[ $# != 0 ]] || set -- ./*.test.js
# One file after the other: the measures are of one browser alone.
node --test --test-concurrency=1 --test-reporter=spec "$@"
