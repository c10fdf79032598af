#!/usr/bin/env bash
# Tries public MCP clients, frameworks and bridges, unmodified, with commands that are quick, slow, or ask something, and with callers
# that hang up: interop/frameworks/trial.py says what is checked, interop/README.md what came of it.
#
#   frameworks.sh [NAME…]     all of them take about 40 minutes; ends with a table, and with "N passed, M failed"
#   frameworks.sh --list      their names
#
# TASKWIRE_BIN  the program; target/${PROFILE:-debug}/taskwire is built if it is not given
# SLOW_SECONDS, HANGUP_SECONDS  how long the slow command (75), and the one that callers hang up on (25), take
# CHECKS        some of list,quick,question,slow,gives up,again,killed
#
# Packages are installed on the way, one venv for each framework, into target/frameworks. What servers and drivers write is there too, in runs.
set -euo pipefail
cd "$(dirname "$0")/.."

names=(mcp1 mcp1-stdio mcp2 mcp2-stdio fastmcp openai-agents llama-index langchain pydantic-ai autogen crewai crewai-tools strands smolagents google-adk mcp-use
  sdk1 sdk2 ai-sdk mcp-remote supergateway mcp-proxy inspector)
drivers=$PWD/interop/frameworks
work=$PWD/target/frameworks
results=$work/results

die() {
  echo "${0##*/}: $*" >&2
  exit 2
}

# quietly COMMAND…: shows the output only when the command fails.
quietly() {
  if ! "$@" >"$work/install.log" 2>&1; then
    cat "$work/install.log" >&2
    die "failed: $*"
  fi
}

# python_of NAME: sets `driver` to a Python with what the framework needs, and installs that if it is missing or out of date.
python_of() {
  local wanted=$drivers/py/$1.txt venv=$work/venvs/$1
  [[ $1 != crewai-tools ]] || wanted=$drivers/py/crewai.txt venv=$work/venvs/crewai
  if [[ ! -e $wanted ]]; then
    # One of those that interop/setup.sh has installed.
    driver=("$PWD/interop/.venv/bin/python")
    [[ -x ${driver[0]} ]] || driver=(env "PYTHONPATH=$PWD/interop/.py" "${PYTHON:-python3}")
    return
  fi
  if ! cmp -s "$wanted" "$venv/installed.txt"; then
    echo "installing $(paste -sd ' ' "$wanted")"
    rm -rf "$venv"
    export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore PIP_NO_INPUT=1
    if "${PYTHON:-python3}" -m venv "$venv" >/dev/null 2>&1 && "$venv/bin/python" -m pip --version >/dev/null 2>&1; then
      quietly "$venv/bin/python" -m pip install -q -r "$wanted"
    else
      rm -rf "$venv"
      quietly "${PYTHON:-python3}" -m pip install -q --target "$venv/py" -r "$wanted"
    fi
    cp "$wanted" "$venv/installed.txt"
  fi
  driver=("$venv/bin/python")
  [[ -x ${driver[0]} ]] || driver=(env "PYTHONPATH=$venv/py" "${PYTHON:-python3}")
}

# node_of NAME: sets `driver` to a Node with what the driver needs. interop/setup.sh has installed the official SDKs and the Inspector.
node_of() {
  if [[ $1 == @(ai-sdk|mcp-remote|supergateway) ]] && ! cmp -s "$drivers/ts/package-lock.json" "$drivers/ts/node_modules/installed.json"; then
    echo "installing npm packages"
    quietly npm ci --prefix "$drivers/ts" --no-audit --no-fund --loglevel=error
    cp "$drivers/ts/package-lock.json" "$drivers/ts/node_modules/installed.json"
  fi
  driver=("$PWD/interop/node_modules/node/bin/node")
  "${driver[0]}" --version >/dev/null 2>&1 || driver=(node)
}

if [[ ${1:-} == --list ]]; then
  printf '%s\n' "${names[@]}"
  exit
fi
chosen=("$@")
[[ $# -gt 0 ]] || chosen=("${names[@]}")
for name in "${chosen[@]}"; do
  [[ " ${names[*]} " == *" $name "* ]] || die "there is no $name: --list names them"
done

if [[ -z ${TASKWIRE_BIN:-} ]]; then
  cargo build --quiet -p taskwire-cli ${PROFILE:+--profile "$PROFILE"}
  TASKWIRE_BIN=$PWD/target/${PROFILE:-debug}/taskwire
fi
[[ -x $TASKWIRE_BIN ]] || die "$TASKWIRE_BIN is missing"
export TASKWIRE_BIN
mkdir -p "$work/venvs" "$results"
sh interop/setup.sh

limit=$((2 * ${SLOW_SECONDS:-75} + 6 * ${HANGUP_SECONDS:-25} + 300))
for name in "${chosen[@]}"; do
  echo "== $name"
  rm -f "$results/$name.json"
  # One driver for a server at a URL and for one that it starts.
  kind=${name%-stdio}
  if [[ -e $drivers/py/try-$kind.py ]]; then
    python_of "$kind"
    driver+=(-B "$drivers/py/try-$kind.py")
  else
    node_of "$kind"
    driver+=("$drivers/ts/try-$kind.mjs")
  fi
  timeout "$limit" python3 -B "$drivers/trial.py" "$name" "$results" -- "${driver[@]}" || true
done
python3 -B "$drivers/trial.py" --table "$results" "${chosen[@]}"
