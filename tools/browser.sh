#!/usr/bin/env bash
# Brings what a test in a browser and `make screenshots` need beside .venv: Debian's Chromium with its driver, and axe-core.
# What is there already costs nothing. Prints nothing but what has to be done by hand.
#
# axe-core (MPL-2.0) is not ours to ship: a package of PyPI carries it, and it stays in ~/.cache/kungfu.
set -euo pipefail
cd "$(dirname "$0")/.."
cache=${XDG_CACHE_HOME:-$HOME/.cache}/kungfu
mkdir -p "$cache"
carrier=axe-playwright-python==0.1.8
python=.venv/bin/python
[ -x "$python" ] || python=python3

missing=()
for program in chromium chromedriver; do
    command -v "$program" >/dev/null || missing+=("$program")
done
if [ ${#missing[@]} -gt 0 ]; then
    if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
        echo "set-up: there is no ${missing[*]}; install Debian's packages chromium, chromium-driver and fonts-dejavu-core" >&2
        exit 1
    fi
    { apt-get update && apt-get install --yes --no-install-recommends chromium chromium-driver fonts-dejavu-core; } \
        >"$cache/browser.log" 2>&1 || { tail -n 20 "$cache/browser.log"; exit 1; }
fi

if [ ! -s "$cache/axe.min.js" ]; then
    got=$(mktemp -d)
    trap 'rm -rf "$got"' EXIT
    "$python" -m pip download --quiet --no-deps --dest "$got" "$carrier"
    "$python" - "$got" "$cache" <<'PYTHON'
import sys, zipfile
from pathlib import Path
[wheel] = Path(sys.argv[1]).glob("*.whl")
with zipfile.ZipFile(wheel) as archive:
    [name] = [one for one in archive.namelist() if one.endswith("axe.min.js")]
    Path(sys.argv[2], "axe.min.js").write_bytes(archive.read(name))
PYTHON
fi
