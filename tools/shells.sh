#!/usr/bin/env bash
# Brings the shells in which `make soak` tries `kungfu completion`: Debian's zsh and fish.
# What is there already costs nothing. Prints nothing but what has to be done by hand.
set -euo pipefail
cache=${XDG_CACHE_HOME:-$HOME/.cache}/kungfu
mkdir -p "$cache"

missing=()
for shell in zsh fish; do
    command -v "$shell" >/dev/null || missing+=("$shell")
done
if [ ${#missing[@]} -gt 0 ]; then
    if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
        echo "set-up: there is no ${missing[*]}; install Debian's packages of these names" >&2
        exit 1
    fi
    { apt-get update && apt-get install --yes --no-install-recommends "${missing[@]}"; } \
        >"$cache/shells.log" 2>&1 || { tail -n 20 "$cache/shells.log"; exit 1; }
fi
