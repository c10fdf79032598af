#!/usr/bin/env bash
# Installs each package that scripts/package.sh makes, and uses it as people would: its version, a command served over stdio
# and over HTTP, and a call of it by the same program. Nothing outside a directory of its own is touched.
#
#   scripts/package-test.sh [--binary FILE]
#
# Without --binary a release is built, and must not be too large; with it, this program is packed, whatever its size.
# Needs what scripts/package.sh needs, and dpkg. Ends with "N passed, M failed".
set -euo pipefail
cd "$(dirname "$0")/.."

die() {
  echo "${0##*/}: $*" >&2
  exit 2
}

options=()
while (($#)); do
  case $1 in
    --binary)
      [[ $# -ge 2 ]] || die "--binary needs a value"
      options=(--binary "$2" --size-max 0)
      shift 2
      ;;
    *) die "$1: usage: scripts/package-test.sh [--binary FILE]" ;;
  esac
done

work=$(mktemp -d)
server=
tidy_up() {
  [[ -z $server ]] || kill "$server" 2>/dev/null || true
  rm -rf "$work"
}
trap tidy_up EXIT

passed=0 failed=0
# check WHAT COMMAND...: counts it, and shows what was written if it failed.
check() {
  local what=$1
  shift
  if "$@" >"$work/log" 2>&1; then
    passed=$((passed + 1))
    echo "ok   $what"
  else
    failed=$((failed + 1))
    echo "FAIL $what"
    sed 's/^/     /' "$work/log"
  fi
}

# expect TEXT COMMAND...: its output is this text, and nothing else.
expect() {
  local wanted=$1 got
  shift
  got=$("$@") || return 1
  [[ $got == "$wanted" ]] || {
    printf 'expected: %s\ngot:      %s\n' "$wanted" "$got"
    return 1
  }
}

echo "== making them"
bash scripts/package.sh --out "$work/packages" "${options[@]}"
is_the_same_again() {
  bash scripts/package.sh --out "$work/again" "${options[@]}" && diff -rq "$work/packages" "$work/again"
}
check "the same program gives the same bytes" is_the_same_again
is_refused() {
  local code=0
  bash scripts/package.sh --out "$work/none" "${options[@]}" --size-max 1000 2>"$work/refusal" || code=$?
  cat "$work/refusal"
  ((code == 2)) && grep -q 'more than 1000' "$work/refusal" && [[ -z $(ls -A "$work/none") ]]
}
check "a program that is too large is refused" is_refused
version=$(sed -n 's/^version = "\(.*\)"$/\1/p' Cargo.toml)
tarball=$(echo "$work"/packages/*.tar.gz)
deb=$(echo "$work"/packages/*.deb)
tgz=$work/packages/taskwire-$version.tgz

# Somebody with nothing of their own but this.
export HOME=$work/home XDG_CONFIG_HOME=$work/home/.config TASKWIRE_STATE_DIR=$work/home/state npm_config_cache=$work/npm-cache
export npm_config_update_notifier=false npm_config_audit=false npm_config_fund=false npm_config_offline=true
unset TASKWIRE_TOKEN TASKWIRE_CLIENT_CONFIG
mkdir -p "$HOME"
cat >"$work/taskwire.toml" <<'TOML'
[[tool]]
name = "greet"
description = "Greets somebody"
command = ["echo", "Hello {name}"]
input = { name = { type = "string" } }
TOML

data=0
over_stdio() {
  data=$((data + 1))
  expect "Hello Ada" "$@" call "stdio:$* serve $work/taskwire.toml --stdio --data $work/data/$data" greet name=Ada
}

over_http() {
  local said=$work/said line url='' answered=0
  data=$((data + 1))
  rm -f "$said"
  mkfifo "$said"
  "$@" serve "$work/taskwire.toml" --listen 127.0.0.1:0 --data "$work/data/$data" >"$said" 2>"$work/server.log" &
  server=$!
  exec 3<"$said"
  while [[ -z $url ]] && read -r -t 30 line <&3; do
    if [[ $line =~ ^[[:space:]]*endpoint[[:space:]]+(http://[^[:space:]]+) ]]; then url=${BASH_REMATCH[1]}; fi
  done
  if [[ -n $url ]]; then expect "Hello Grace" "$@" call "$url" greet name=Grace || answered=$?; else answered=1; fi
  kill "$server" || answered=1
  wait "$server" || answered=1
  server=
  exec 3<&-
  ((answered == 0)) || {
    cat "$work/server.log"
    return 1
  }
}

# works NAME COMMAND...: the program of this package does what it is for.
works() {
  local name=$1
  shift
  check "$name: its version" expect "taskwire $version" "$@" --version
  check "$name: a call over stdio" over_stdio "$@"
  check "$name: a call over HTTP" over_http "$@"
}

echo "== tarball"
mkdir "$work/tar"
check "tarball: unpacks" tar -C "$work/tar" -xzf "$tarball"
unpacked=$(echo "$work"/tar/taskwire-*)
works "tarball" "$unpacked/taskwire"
has_all() {
  local file
  for file in README.md CHANGELOG.md LICENSE-MIT LICENSE-APACHE THIRD-PARTY-LICENSES completions/_taskwire completions/taskwire.fish \
    docs/manual/README.md docs/images/call.svg man/taskwire.1 man/taskwire-store-move.1; do
    [[ -s $unpacked/$file ]] || { echo "no $file"; return 1; }
  done
  bash -n "$unpacked/completions/taskwire.bash"
}
check "tarball: has documents, licenses, completions and manual pages" has_all

# is_page FILE: a manual page that can be read, if there is a program to read it with.
is_page() {
  gzip -dcf "$1" | grep -q '^\.TH taskwire' || { echo "$1 is no manual page"; return 1; }
  ! command -v man >/dev/null || man -l "$1" | grep -q SYNOPSIS
}
check "tarball: a manual page can be read" is_page "$unpacked/man/taskwire-serve.1"

echo "== Debian package"
root=$work/root
admin=$root/var/lib/dpkg
mkdir -p "$admin/info" "$admin/updates"
# What this machine has of what it depends on, so that dpkg itself says whether that is enough.
: >"$admin/status"
mapfile -t needed < <(dpkg-deb -f "$deb" Depends | tr ',' '\n' | awk '{ print $1 }')
for package in "${needed[@]}"; do
  dpkg-query -s "$package" >>"$admin/status"
  echo >>"$admin/status"
  : >"$admin/info/$package:$(dpkg --print-architecture).list"
done
into_root() { dpkg --root="$root" --log="$work/dpkg.log" --force-not-root --force-bad-path "$@"; }
check "deb: installs, with what it depends on" into_root -i "$deb"
works "deb" "$root/usr/bin/taskwire"
is_placed() {
  local file
  for file in bash-completion/completions/taskwire zsh/vendor-completions/_taskwire fish/vendor_completions.d/taskwire.fish; do
    [[ -s $root/usr/share/$file ]] || { echo "no /usr/share/$file"; return 1; }
  done
  grep -qx 'ListenStream=127.0.0.1:8787' "$root/usr/lib/systemd/system/taskwire@.socket" &&
    grep -qx 'Type=notify' "$root/usr/lib/systemd/system/taskwire@.service" &&
    grep -qx 'KillMode=process' "$root/usr/lib/systemd/system/taskwire@.service"
}
check "deb: completions and the service are where they are looked for" is_placed
check "deb: a manual page can be read" is_page "$root/usr/share/man/man1/taskwire-serve.1.gz"
is_quiet() {
  # Nothing is enabled or run by installing it.
  [[ ! -e $root/etc ]] && [[ $(dpkg-deb --ctrl-tarfile "$deb" | tar -t | sort | tr '\n' ' ') == "./ ./control ./md5sums " ]]
}
check "deb: starts and enables nothing" is_quiet
check "deb: is removed" into_root --purge taskwire
is_gone() {
  local left
  left=$(find "$root" -path "$root/var" -prune -o -type f -print)
  [[ -z $left ]] || { echo "$left"; return 1; }
}
check "deb: leaves nothing behind" is_gone

echo "== npm package"
check "npm: installs" npm install --global --prefix "$work/prefix" "$tgz"
works "npm" "$work/prefix/bin/taskwire"
check "npm: a manual page can be read" is_page "$work/prefix/share/man/man1/taskwire-serve.1"
check "npx: its version" expect "taskwire $version" npx --yes --package "$tgz" taskwire --version
npx_over_stdio() {
  expect "Hello Ada" "$work/prefix/bin/taskwire" call \
    "stdio:npx --yes --package $tgz taskwire serve $work/taskwire.toml --stdio --data $work/data/npx" greet name=Ada
}
check "npx: a call over stdio" npx_over_stdio
check "npm: is removed" npm uninstall --global --prefix "$work/prefix" taskwire
is_uninstalled() { [[ ! -e $work/prefix/bin/taskwire && ! -e $work/prefix/lib/node_modules/taskwire ]]; }
check "npm: leaves nothing behind" is_uninstalled

echo "== debug information"
has_debug_information() {
  local debug
  debug=$(echo "$work"/packages/*.debug)
  objdump -h "$debug" | grep -q 'debug_line' || return 1
  ! objdump -h "$unpacked/taskwire" | grep -q 'debug_line' || return 1
  # What leads from one to the other.
  objdump -s -j .gnu_debuglink "$unpacked/taskwire" | grep -q 'taskwire'
}
check "debug information is apart, and can be found" has_debug_information

echo
echo "$passed passed, $failed failed"
((failed == 0))
