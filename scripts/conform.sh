#!/usr/bin/env bash
# conform.sh [--url URL]: runs the official conformance suite, revision 2026-07-28 and the Tasks extension, and fails
# unless every check passes without a warning.
#
# Without --url it serves the fixtures itself. Everything it writes is in target/conformance.
set -euo pipefail
cd "$(dirname "$0")/.."

revision=2026-07-28
core_checks=152 # at least: one more if lists are answered as event streams
tasks_checks=44 # exactly
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

# report GROUP RELATION COUNT: reads every checks.json of the group, and fails on failures and warnings, or if the
# number of passed checks is not RELATION (">=" or "==") COUNT.
report() {
  "$node" - "$out" "$@" <<'JS'
const fs = require("node:fs");
const [out, group, relation, count] = process.argv.slice(2);
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

const enough = relation === "==" ? passed === Number(count) : passed >= Number(count);
if (!enough) console.log(`conformance: ${group} must have ${relation} ${count} passed checks; see ${dir}.log`);
process.exitCode = enough && failed.length === 0 ? 0 : 1;
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

run core --suite all --spec-version "$revision"
for scenario in "${tasks_scenarios[@]}"; do
  run tasks --scenario "$scenario" # with --spec-version, extensions are silently left out
done

status=0
report core ">=" "$core_checks" || status=1
report tasks "==" "$tasks_checks" || status=1
exit "$status"
