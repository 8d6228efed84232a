#!/usr/bin/env bash
# Brings the etcd with which the tests of `--store` run: the one that is installed, or else that of Debian's package,
# unpacked into ~/.cache/kungfu. It asks for no root, installs nothing, and what is there already costs nothing.
# Prints nothing unless it fails.
set -euo pipefail
cache=${XDG_CACHE_HOME:-$HOME/.cache}/kungfu
if command -v etcd >/dev/null || [ -x "$cache/etcd" ]; then
    exit 0
fi
for program in apt-get dpkg-deb; do
    command -v "$program" >/dev/null || { echo "set-up: there is no etcd, and no $program to bring it" >&2; exit 1; }
done
mkdir -p "$cache"
got=$(mktemp -d "$cache/etcd.XXXXXX")
trap 'rm -rf "$got"' EXIT
if ! (cd "$got" && apt-get download etcd-server) >"$cache/etcd.log" 2>&1; then
    echo "set-up: there is no etcd, and Debian's package etcd-server cannot be had; install etcd 3.4 or later" >&2
    tail -n 3 "$cache/etcd.log" >&2
    exit 1
fi
dpkg-deb --extract "$got"/etcd-server_*.deb "$got/package"
mv "$got/package/usr/bin/etcd" "$cache/etcd"    # at once: another call may be looking
