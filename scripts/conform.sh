#!/usr/bin/env bash
# conform.sh [--url URL]: runs the official conformance suite, everything at its own revision and then each revision by
# itself, and the Tasks extension; fails unless every check passes without a warning.
#
# Without --url it serves the fixtures itself. Everything it writes is in target/conformance.
set -euo pipefail
cd "$(dirname "$0")/.."

# How many checks must pass, exactly. Lists are answered as JSON; as event streams they would add a check to `all`, to
# 2025-11-25 and to 2026-07-28 (server-sse-streams-functional).
all_checks=233
revision_checks=(2025-03-26=3 2025-06-18=56 2025-11-25=83 2026-07-28=152)
tasks_checks=44
tasks_scenarios=(
  tasks-lifecycle tasks-capability-negotiation tasks-wire-fields tasks-request-state-removal tasks-mrtr-input
  tasks-request-headers tasks-dispatch-and-envelope tasks-status-notifications tasks-required-task-error tasks-mrtr-composition
)
out=target/conformance
suite=interop/node_modules/@modelcontextprotocol/conformance/dist/index.js
url=
. scripts/fixtures.sh

# run GROUP ARGUMENT...: runs scenarios; their checks go to $out/GROUP, what is printed to $out/GROUP.log.
# Whether they passed is decided by `report`: the suite's exit code does not know of warnings.
run() {
  local group=$1
  shift
  "$node" "$suite" server --url "$url" "$@" -o "$out/$group" >>"$out/$group.log" 2>&1 || true
}

# report GROUP COUNT: reads every checks.json of the group, and fails on failures and warnings, or if the number of passed
# checks is not COUNT.
report() {
  "$node" - "$out" "$@" <<'JS'
const fs = require("node:fs");
const [out, group, count] = process.argv.slice(2);
const dir = `${out}/${group}`;
const folders = fs.existsSync(dir) ? fs.readdirSync(dir).sort() : [];
const read = (folder) => {
  const scenario = folder.replace(/^server-/, "").replace(/-\d{4}-\d\d-\d\dT.*$/, "");
  const file = `${dir}/${folder}/checks.json`;
  if (!fs.existsSync(file)) return [{ scenario, status: "FAILURE", id: "no-checks", errorMessage: "the scenario died" }];
  return JSON.parse(fs.readFileSync(file, "utf8")).map((check) => ({ scenario, ...check }));
};
const checks = folders.flatMap(read);
const having = (...statuses) => checks.filter((check) => statuses.includes(check.status));

const passed = having("SUCCESS").length;
const failed = having("FAILURE", "WARNING");
const skipped = having("SKIPPED").length;
for (const { scenario, status, id, name, errorMessage } of failed) {
  console.log(`${status} ${scenario}: ${name ? `${name} (${id})` : id}${errorMessage ? `\n    ${errorMessage}` : ""}`);
}
console.log(`conformance: ${passed} passed, ${failed.length} failed (${group}${skipped ? `, ${skipped} skipped` : ""})`);

const complete = passed === Number(count);
if (!complete) console.log(`conformance: ${group} must have ${count} passed checks; see ${dir}.log`);
process.exitCode = complete && failed.length === 0 ? 0 : 1;
JS
}

while (($# > 0)); do
  case $1 in
    --url)
      url=${2:?--url needs a value}
      shift 2
      ;;
    *) die "usage: conform.sh [--url URL]" ;;
  esac
done

# The suite never overwrites old results, and `report` would count them.
rm -rf "$out"
mkdir -p "$out"
trap stop_server EXIT
[[ -n $url ]] || start_server "$out/server.log"

run all --suite all
for each in "${revision_checks[@]}"; do
  run "${each%=*}" --suite all --spec-version "${each%=*}" # leaves extensions out
done
for scenario in "${tasks_scenarios[@]}"; do
  run tasks --scenario "$scenario"
done

status=0
report all "$all_checks" || status=1
for each in "${revision_checks[@]}"; do
  report "${each%=*}" "${each#*=}" || status=1
done
report tasks "$tasks_checks" || status=1
exit "$status"
