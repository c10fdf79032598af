#!/usr/bin/env bash
# Makes what people install, each with the whole program in it: a tarball, a Debian package, an npm package.
#
#   scripts/package.sh [--binary FILE] [--out DIR] [--size-max BYTES]
#
# Without --binary a release is built. DIR (target/package) gets the packages, and the debug information in a file of its
# own. A program of more than BYTES (30000000; 0 is no limit) is not packed. The same program and commit give the same
# bytes; SOURCE_DATE_EPOCH sets the date in them (that of the commit), PACKAGE_MAINTAINER who answers for them.
set -euo pipefail
cd "$(dirname "$0")/.."

die() {
  echo "${0##*/}: $*" >&2
  exit 2
}

binary='' out=target/package size_max=30000000
while (($#)); do
  case $1 in
    --binary | --out | --size-max) [[ $# -ge 2 ]] || die "$1 needs a value" ;;&
    --binary) binary=$2 ;;
    --out) out=$2 ;;
    --size-max) size_max=$2 ;;
    *) die "$1: usage: scripts/package.sh [--binary FILE] [--out DIR] [--size-max BYTES]" ;;
  esac
  shift 2
done
[[ $size_max =~ ^[0-9]+$ ]] || die "--size-max is a number of bytes, not $size_max"
[[ $(uname -s) == Linux ]] || die "packages are made on Linux"
for tool in objcopy objdump dpkg-deb npm python3 cargo gzip xz; do
  command -v "$tool" >/dev/null || die "$tool is missing: packages need binutils, dpkg, npm, Python 3, cargo, gzip and xz"
done

if [[ -z $binary ]]; then
  cargo build --release --locked -p taskwire-cli
  binary=${CARGO_TARGET_DIR:-target}/release/taskwire
fi
[[ -x $binary ]] || die "$binary is no program"

version=$(sed -n 's/^version = "\(.*\)"$/\1/p' Cargo.toml)
said=$("$binary" --version)
[[ $said == "taskwire $version" ]] || die "$binary says that it is $said, not taskwire $version"
machine=$(uname -m)
case $machine in
  x86_64) deb_arch=amd64 npm_cpu=x64 ;;
  aarch64) deb_arch=arm64 npm_cpu=arm64 ;;
  *) die "no packages are made for $machine" ;;
esac
target=$machine-unknown-linux-gnu
name=taskwire-$version-$target

SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || echo 315532800)}
export SOURCE_DATE_EPOCH LC_ALL=C
umask 022

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$out" "$work/made"

# The program alone, and what a debugger wants beside it: gdb and backtraces find it by its name and checksum.
program=$work/taskwire
debug=$work/made/$name.debug
objcopy --only-keep-debug --compress-debug-sections "$binary" "$debug"
chmod 644 "$debug"
strip_to() {
  objcopy "$1" --remove-section=.gnu_debuglink "$binary" "$program"
  (cd "$work/made" && objcopy --add-gnu-debuglink="$name.debug" "$program")
  chmod 755 "$program"
}
bytes() { stat -c %s "$1"; }
# With the names of functions, for backtraces, if there is room for them.
strip_to --strip-debug
if ((size_max && $(bytes "$program") > size_max)); then strip_to --strip-all; fi
size=$(bytes "$program")
((size_max == 0 || size <= size_max)) || die "the program has $size bytes without debug information, more than $size_max"

# What the program needs of the system it runs on. Nothing is guessed: a library that is not known here is an error.
glibc=$(objdump -T "$program" | grep -o 'GLIBC_[0-9.]*' | sort -Vu | tail -n 1)
depends=''
while read -r library; do
  case $library in
    libc.so.6) depends+=", libc6 (>= ${glibc#GLIBC_})" ;;
    libgcc_s.so.1) depends+=", libgcc-s1" ;;
    libm.so.6 | libdl.so.2 | libpthread.so.0 | librt.so.1 | ld-linux-*) ;; # part of libc6
    *) die "the program needs $library, and no Debian package is known for it" ;;
  esac
done < <(objdump -p "$program" | awk '$1 == "NEEDED" { print $2 }' | sort)
depends=${depends#, }
[[ $depends == *libc6* ]] || die "the program does not use glibc: the packages would say so"

# What all of them have.
common=$work/common
mkdir -p "$common/completions" "$common/docs"
cp README.md CHANGELOG.md LICENSE-MIT LICENSE-APACHE "$common/"
# What the README shows, and the manual that it leads to.
cp -R docs/images docs/manual "$common/docs/"
python3 -B packaging/third-party.py "$target" >"$common/THIRD-PARTY-LICENSES"
"$program" completions bash >"$common/completions/taskwire.bash"
"$program" completions zsh >"$common/completions/_taskwire"
"$program" completions fish >"$common/completions/taskwire.fish"
"$program" man --dir "$common/man"

# Everything in a directory is as old as the commit.
same_age() { find "$1" -print0 | xargs -0 touch -h --date="@$SOURCE_DATE_EPOCH"; }

tarball() {
  local root=$work/tar/$name
  mkdir -p "$root"
  cp -R "$common/." "$root/"
  cp packaging/taskwire@.service packaging/taskwire@.socket "$root/"
  install -m 755 "$program" "$root/taskwire"
  tar --sort=name --mtime="@$SOURCE_DATE_EPOCH" --owner=0 --group=0 --numeric-owner --format=gnu -C "$work/tar" -cf - "$name" |
    gzip -9n >"$work/made/$name.tar.gz"
}

debian() {
  local root=$work/deb
  local doc=$root/usr/share/doc/taskwire
  mkdir -p "$root/DEBIAN" "$doc"
  install -D -m 755 "$program" "$root/usr/bin/taskwire"
  install -D -m 644 packaging/taskwire@.service "$root/usr/lib/systemd/system/taskwire@.service"
  install -D -m 644 packaging/taskwire@.socket "$root/usr/lib/systemd/system/taskwire@.socket"
  install -D -m 644 "$common/completions/taskwire.bash" "$root/usr/share/bash-completion/completions/taskwire"
  install -D -m 644 "$common/completions/_taskwire" "$root/usr/share/zsh/vendor-completions/_taskwire"
  install -D -m 644 "$common/completions/taskwire.fish" "$root/usr/share/fish/vendor_completions.d/taskwire.fish"
  local page
  for page in "$common"/man/*.1; do
    install -d "$root/usr/share/man/man1"
    gzip -9nc "$page" >"$root/usr/share/man/man1/${page##*/}.gz"
  done
  cp -R README.md "$common/docs" "$doc/"
  gzip -9nc CHANGELOG.md >"$doc/changelog.gz"
  gzip -9nc "$common/THIRD-PARTY-LICENSES" >"$doc/THIRD-PARTY-LICENSES.gz"
  # The text of the license, as that format wants it: indented, and no line empty.
  sed 's/^/ /; s/^ $/ ./' LICENSE-MIT >"$work/mit"
  sed -e "/^@MIT@\$/r $work/mit" -e '/^@MIT@$/d' packaging/copyright >"$doc/copyright"
  (cd "$root" && find usr -type f -print0 | sort -z | xargs -0 md5sum) >"$root/DEBIAN/md5sums"
  cat >"$root/DEBIAN/control" <<CONTROL
Package: taskwire
Version: $version
Architecture: $deb_arch
Maintainer: ${PACKAGE_MAINTAINER:-the Taskwire authors <maintainers@taskwire.invalid>}
Installed-Size: $(du -k --apparent-size -s "$root/usr" | cut -f 1)
Depends: $depends
Section: net
Priority: optional
Description: durable and live tools for the Model Context Protocol
 Taskwire makes long-running MCP tools durable and live: a quick call returns
 its result, a slow one returns a task handle and goes on, and what it writes
 can be watched as it is written. One program is the server and the client.
CONTROL
  same_age "$root"
  # Not zstd, which older releases of Debian cannot read.
  dpkg-deb --root-owner-group -Zxz --build "$root" "$work/made/taskwire_${version}_$deb_arch.deb" >/dev/null
}

npm_package() {
  local root=$work/npm
  mkdir -p "$root/bin"
  cp -R "$common"/{completions,docs,man,README.md,CHANGELOG.md,LICENSE-MIT,LICENSE-APACHE,THIRD-PARTY-LICENSES} "$root/"
  # npm puts them where `man` looks.
  local pages
  pages=$(cd "$root" && printf '"%s", ' man/*.1)
  install -m 755 "$program" "$root/bin/taskwire"
  sed -e "s/@VERSION@/$version/; s/@OS@/linux/; s/@CPU@/$npm_cpu/; s/@LIBC@/glibc/; s|@MAN@|${pages%, }|" packaging/package.json >"$root/package.json"
  npm pack "$root" --pack-destination "$work/made" --cache "$work/npm-cache" --offline --silent >/dev/null
}

tarball
debian
npm_package
same_age "$work/made"
cp -p "$work/made"/* "$out/"

echo "taskwire $version for $target: $size bytes, needs $depends"
(cd "$work/made" && for file in *; do printf '%12d %s\n' "$(bytes "$file")" "$out/$file"; done)
