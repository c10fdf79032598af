#!/bin/sh
# run.sh URL: runs every public-client program against a server that already
# listens there, and ends with "N passed, M failed". INTEROP_LEGACY=0 leaves
# the 2025-11-25 era out.
set -u
url=${1:?usage: run.sh URL}
cd "$(dirname "$0")" || exit 2
sh ./setup.sh || exit 2

passed=0
failed=0
out=$(mktemp -d) || exit 2
trap 'rm -rf "$out"' EXIT

# tally PASSED FAILED STATUS: a program that died without a summary is one failure
tally() {
  good=${1:-0}
  bad=${2:-0}
  [ "$bad" -eq 0 ] && [ "$3" -ne 0 ] && bad=1
  passed=$((passed + good))
  failed=$((failed + bad))
}

node=node_modules/node/bin/node
"$node" --version >/dev/null 2>&1 || node=node

for file in ts/*.test.mjs; do
  case $file in
    ts/legacy-* | ts/inspector*) [ "${INTEROP_LEGACY:-1}" != 0 ] || continue ;;
  esac
  echo "== $file"
  INTEROP_URL=$url "$node" --test \
    --test-reporter=spec --test-reporter-destination=stdout \
    --test-reporter=tap --test-reporter-destination="$out/tap" "$file"
  status=$?
  count() { sed -n "s/^# $1 \([0-9][0-9]*\)\$/\1/p" "$out/tap" | tail -n 1; }
  bad=$(($(count fail || echo 0) + $(count cancelled || echo 0)))
  tally "$(count pass)" "$bad" "$status"
  : >"$out/tap"
done

if [ -x .venv/bin/python ]; then
  python=.venv/bin/python
else
  python=${PYTHON:-python3}
  PYTHONPATH=$PWD/.py${PYTHONPATH:+:$PYTHONPATH}
  export PYTHONPATH
fi

for file in py/mcp_official.py py/fastmcp_client.py; do
  echo "== $file"
  { "$python" -B "$file" "$url" 2>&1; echo $? >"$out/status"; } | tee "$out/log" | grep -Ev '^[0-9]+ passed, [0-9]+ failed$'
  summary=$(grep -E '^[0-9]+ passed, [0-9]+ failed$' "$out/log" | tail -n 1)
  good=${summary%% *}
  bad=${summary#*, }
  tally "$good" "${bad%% *}" "$(cat "$out/status")"
done

echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ] && [ "$passed" -gt 0 ]
