#!/usr/bin/env bash
# conform.sh [--url URL] [server|client]: runs the official conformance suite against the server, everything at its own
# revision and then each revision by itself, and the Tasks extension; then against the client, likewise. Fails unless every
# check passes without a warning, but for what interop/expected-failures.yaml excuses.
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
# The same for the client. Some checks are made for each request: each counts once, however many requests there are.
client_checks=365
client_revision_checks=(2025-03-26=13 2025-06-18=51 2025-11-25=203 2026-07-28=351)
excused=interop/expected-failures.yaml
out=target/conformance
suite=interop/node_modules/@modelcontextprotocol/conformance/dist/index.js
url=
. scripts/fixtures.sh
client=target/${PROFILE:-debug}/examples/conformance_client

# run GROUP ARGUMENT...: runs scenarios against the server; their checks go to $out/GROUP, what is printed to
# $out/GROUP.log. Whether they passed is decided by `report`: the suite's exit code does not know of warnings.
run() {
  local group=$1
  shift
  "$node" "$suite" server --url "$url" "$@" -o "$out/$group" >>"$out/$group.log" 2>&1 || true
}

# run_client GROUP ARGUMENT...: the same against the client.
run_client() {
  local group=$1
  shift
  NO_PROXY=localhost "$node" "$suite" client --command "$client" --suite all "$@" -o "$out/$group" >>"$out/$group.log" 2>&1 || true
}

# report GROUP COUNT [EXCUSED]: reads every checks.json of the group, and fails on failures and warnings, or if the number of
# passed checks is not COUNT.
#
# With EXCUSED, the group is one of the client's. The suite does not mind how a client ends: that it says `ok` is checked
# here. A failure that EXCUSED lists is reported as such; an excuse that is not needed any more is a failure.
report() {
  "$node" - "$out" "$@" <<'JS'
const fs = require("node:fs");
const [out, group, count, excusedFile] = process.argv.slice(2);
const dir = `${out}/${group}`;

// The folders of scenarios: the name, then the time. A name can have slashes.
const stamp = /-\d{4}-\d\d-\d\dT.*$/;
const foldersIn = (path) =>
  fs.readdirSync(path).sort().flatMap((name) => (stamp.test(name) ? [`${path}/${name}`] : foldersIn(`${path}/${name}`)));
const folders = fs.existsSync(dir) ? foldersIn(dir) : [];
const lines = (file) => (fs.existsSync(file) ? fs.readFileSync(file, "utf8").trim().split("\n") : []);

const read = (folder) => {
  const scenario = folder.slice(dir.length + 1).replace(/^server-/, "").replace(stamp, "");
  const failure = (id, errorMessage) => ({ scenario, status: "FAILURE", id, errorMessage });
  const file = `${folder}/checks.json`;
  if (!fs.existsSync(file)) return [failure("no-checks", "the scenario died")];
  const checks = JSON.parse(fs.readFileSync(file, "utf8")).map((check) => ({ scenario, ...check }));
  if (excusedFile && lines(`${folder}/stdout.txt`).at(-1) !== "ok") {
    checks.push(failure("client-ended", lines(`${folder}/stderr.txt`).at(-1) || "the client did not say `ok`"));
  }
  return checks;
};
const checks = folders.flatMap(read);

// `- scenario # why` or `- scenario:check # why`.
const problems = [];
const excuses = new Map();
for (const line of excusedFile ? lines(excusedFile) : []) {
  const [, entry, why] = line.match(/^\s*- (\S+)\s*(?:#\s*(.*))?$/) ?? [];
  if (!entry) continue;
  if (!why) problems.push(`${excusedFile}: ${entry} needs a reason`);
  if (checks.some(({ scenario }) => scenario === entry.split(":")[0])) excuses.set(entry, 0);
}
const excuse = ({ scenario, id }) => [scenario, `${scenario}:${id}`].find((entry) => excuses.has(entry));

const failed = [];
const passed = [];
let skipped = 0;
for (const check of checks) {
  if (check.status === "SKIPPED") skipped += 1;
  if (check.status === "SUCCESS" && !excuses.has(check.scenario)) passed.push(check);
  if (check.status !== "FAILURE" && check.status !== "WARNING") continue;
  const entry = excuse(check);
  if (!entry) failed.push(check);
  else excuses.set(entry, excuses.get(entry) + 1);
}
let excused = 0;
for (const [entry, used] of excuses) {
  excused += used;
  if (used === 0) problems.push(`${excusedFile}: ${entry} passes; remove it`);
}

for (const { scenario, status, id, name, errorMessage } of failed) {
  console.log(`${status} ${scenario}: ${name ? `${name} (${id})` : id}${errorMessage ? `\n    ${errorMessage}` : ""}`);
}
for (const problem of problems) console.log(problem);
const number = excusedFile ? new Set(passed.map(({ scenario, id, name }) => `${scenario} ${id} ${name}`)).size : passed.length;
const also = [skipped && `, ${skipped} skipped`, excused && `, ${excused} excused`].filter(Boolean).join("");
console.log(`conformance: ${number} passed, ${failed.length} failed (${group}${also})`);

const complete = number === Number(count);
if (!complete) console.log(`conformance: ${group} must have ${count} passed checks; see ${dir}.log`);
process.exitCode = complete && failed.length === 0 && problems.length === 0 ? 0 : 1;
JS
}

what=both
while (($# > 0)); do
  case $1 in
    --url)
      url=${2:?--url needs a value}
      shift 2
      ;;
    server | client)
      what=$1
      shift
      ;;
    *) die "usage: conform.sh [--url URL] [server|client]" ;;
  esac
done

# The suite never overwrites old results, and `report` would count them.
rm -rf "$out"
mkdir -p "$out"
trap stop_server EXIT
status=0

if [[ $what != client ]]; then
  [[ -n $url ]] || start_server "$out/server.log"
  run all --suite all
  for each in "${revision_checks[@]}"; do
    run "${each%=*}" --suite all --spec-version "${each%=*}" # leaves extensions out
  done
  for scenario in "${tasks_scenarios[@]}"; do
    run tasks --scenario "$scenario"
  done

  report all "$all_checks" || status=1
  for each in "${revision_checks[@]}"; do
    report "${each%=*}" "${each#*=}" || status=1
  done
  report tasks "$tasks_checks" || status=1
fi

if [[ $what != server ]]; then
  [[ -x $client ]] || die "$client is missing: cargo build -p taskwire --example conformance_client"
  run_client client
  for each in "${client_revision_checks[@]}"; do
    run_client "client-${each%=*}" --spec-version "${each%=*}" # leaves extensions out
  done

  report client "$client_checks" "$excused" || status=1
  for each in "${client_revision_checks[@]}"; do
    report "client-${each%=*}" "${each#*=}" "$excused" || status=1
  done
fi
exit "$status"
