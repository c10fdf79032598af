#!/usr/bin/env bash
# Makes a container image without a container engine, and tries it: the program, the libraries that it needs, and the certificates of this
# machine, in an OCI archive that `docker load` and `podman load` take. There is no shell in it: for commands as tools
# packaging/container/Containerfile has one.
#
#   scripts/container.sh [--binary FILE] [--out DIR] [--no-try]
#
# Without --binary a release is built. DIR (target/container) gets the image. The same program and commit, on the same machine, give the
# same bytes. To try it, the image is unpacked and runs as process 1 of a namespace of its own, as a user without rights.
set -euo pipefail
cd "$(dirname "$0")/.."

die() {
  echo "${0##*/}: $*" >&2
  exit 2
}

binary='' out=target/container try=1
while (($#)); do
  case $1 in
    --binary | --out) [[ $# -ge 2 ]] || die "$1 needs a value" ;;&
    --binary) binary=$2 && shift 2 ;;
    --out) out=$2 && shift 2 ;;
    --no-try) try=0 && shift ;;
    *) die "$1: usage: scripts/container.sh [--binary FILE] [--out DIR] [--no-try]" ;;
  esac
done
[[ $(uname -s) == Linux ]] || die "images are made on Linux"
for tool in ldd objcopy python3 tar unshare chroot; do
  command -v "$tool" >/dev/null || die "$tool is missing: images need binutils, Python 3, tar and util-linux"
done
if [[ -z $binary ]]; then
  cargo build --release --locked -p taskwire-cli
  binary=${CARGO_TARGET_DIR:-target}/release/taskwire
fi
[[ -x $binary ]] || die "$binary is no program"
version=$(sed -n 's/^version = "\(.*\)"$/\1/p' Cargo.toml)
case $(uname -m) in
  x86_64) architecture=amd64 ;;
  aarch64) architecture=arm64 ;;
  *) die "no images are made for $(uname -m)" ;;
esac
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || echo 315532800)}
export SOURCE_DATE_EPOCH LC_ALL=C
umask 022

work=$(mktemp -d)
server=''
# Ends process 1 of the namespace, and with it all in there.
end_server() {
  local first
  first=$(cat "/proc/$server/task/$server/children" 2>/dev/null) || return 0
  [[ -z $first ]] || kill "-$1" $first 2>/dev/null || true
}
tidy_up() {
  [[ -z $server ]] || end_server KILL
  rm -rf "$work"
}
trap tidy_up EXIT
root=$work/root
mkdir -p "$root"/{data,dev,etc/ssl/certs,etc/taskwire,proc,sys,tmp,usr/bin,usr/share/doc/taskwire} "$out"
chmod 700 "$root/data"
chmod 1777 "$root/tmp"
objcopy --strip-debug "$binary" "$root/usr/bin/taskwire"
chmod 755 "$root/usr/bin/taskwire"
# Its libraries where it looks for them, and their licenses.
while read -r library; do
  install -D -m 755 "$(readlink -f "$library")" "$root$library"
done < <(ldd "$binary" | grep -o '/[^ ]*')
for package in libc6 libgcc-s1; do
  [[ ! -r /usr/share/doc/$package/copyright ]] || install -D -m 644 "/usr/share/doc/$package/copyright" "$root/usr/share/doc/$package/copyright"
done
cp LICENSE-MIT LICENSE-APACHE "$root/usr/share/doc/taskwire/"
[[ ! -r /etc/ssl/certs/ca-certificates.crt ]] || install -m 644 /etc/ssl/certs/ca-certificates.crt "$root/etc/ssl/certs/"
printf 'root:x:0:0::/:/none\ntaskwire:x:65532:65532::/data:/none\n' >"$root/etc/passwd"
printf 'root:x:0:\ntaskwire:x:65532:\n' >"$root/etc/group"
printf 'hosts: files dns\n' >"$root/etc/nsswitch.conf"

image=$out/taskwire-$version-$architecture.oci.tar
python3 -B packaging/container/image.py "$root" "$image" "$version" "$architecture"
echo "$(stat -c %s "$image") $image"
((try)) || exit 0

echo "== trying it"
mkdir "$work/image" "$work/new"
tar -C "$work/image" -xf "$image"
# Each part is what its name says, and the last layer is what the manifest says.
for part in "$work"/image/blobs/sha256/*; do
  [[ $(sha256sum "$part" | cut -d ' ' -f 1) == "${part##*/}" ]] || die "$part is not what its name says"
done
layer=$(python3 -c '
import json, pathlib, sys
image = pathlib.Path(sys.argv[1])
blob = lambda part: image / "blobs" / part["digest"].replace(":", "/")
manifest = json.loads(blob(json.loads((image / "index.json").read_text())["manifests"][0]).read_text())
print(blob(manifest["layers"][0]))
' "$work/image")
tar -C "$work/new" -xzf "$layer"
echo 'listen = "127.0.0.1:0"
demo = true
limits.disk_reserve_bytes = 0' >"$work/new/etc/taskwire/taskwire.toml"
mkfifo "$work/said"
# As root the user of the image, as anybody else that user.
as=(--userspec=65532:65532) alone=()
if (($(id -u) != 0)); then as=() alone=(--user --map-root-user); fi
(($(id -u) != 0)) || chmod 755 "$work" "$work/new"
unshare "${alone[@]}" --pid --fork --mount-proc="$work/new/proc" \
  chroot "${as[@]}" "$work/new" /usr/bin/taskwire serve /etc/taskwire/taskwire.toml --data /data/taskwire >"$work/said" 2>"$work/log" &
server=$!
exec 3<"$work/said"
url=''
while [[ -z $url ]] && read -r -t 30 line <&3; do
  if [[ $line =~ endpoint[[:space:]]+(http://[^[:space:]]+) ]]; then url=${BASH_REMATCH[1]}; fi
done
said=''
if [[ -n $url ]]; then said=$(TASKWIRE_STATE_DIR=$work/state "$binary" call "$url" countdown from=1) || true; fi
if [[ $said != *'Lift-off!'* ]]; then
  cat "$work/log" >&2
  die "the server in the image does not work: it said ${said:-nothing}"
fi
end_server TERM
wait "$server" || die "the server in the image did not end in good order"
server=''
[[ -f $work/new/data/taskwire/tasks.db ]] || die "its tasks are not where they belong"
echo "the image works: $said" | tr '\n' ' '
echo
