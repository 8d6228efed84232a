#!/usr/bin/env bash
# Brings an environment to what the sources ask for, part by part; a part that is up to date costs nothing.
# setup.sh [ENVIRONMENT [LOCK]]: .venv and requirements.lock where none is named.
#
# Each part leaves a stamp that holds the hash of all it was made from, so a changed lock or a moved checkout redoes
# just what depends on it. An installation that was cut off in the middle leaves a marker, and the next call starts
# from an empty environment, because pip cannot tell a half-written package from a whole one.
set -euo pipefail
cd "$(dirname "$0")/.."
venv=$PWD/${1:-.venv}
lock=${2:-requirements.lock}
stamps=$venv/.setup
log=$stamps/log
marker=$stamps/unfinished
exec 9<tools/setup.sh
flock 9                              # two calls at once would install into each other's files
unset MAKEFLAGS MAKELEVEL MFLAGS     # what is built here is not a part of our make
export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1 PIP_ROOT_USER_ACTION=ignore
export TF_CPP_MIN_LOG_LEVEL=${TF_CPP_MIN_LOG_LEVEL:-3}

find_python() {
    local candidate
    local candidates=${PYTHON:-python3.11 python3.12 python3.13 python3}
    for candidate in $candidates; do
        "$candidate" -c "$base_if_ours" 2>/dev/null && return
    done
    echo "set-up: none of '$candidates' is Python 3.11 to 3.13;" \
        "install one, or name it: make setup PYTHON=/path/to/python3.11" >&2
    return 1
}

# The Python under an active environment, which may be the very one that we are about to rebuild.
base_if_ours='import sys
if sys.version_info[:2] not in ((3, 11), (3, 12), (3, 13)):
    sys.exit(1)
print(sys._base_executable)'

key_of() { sha256sum | cut -c1-16; }

locked() { grep -E "^($1)==" "$lock"; }

# part NAME KEY FUNCTION: runs FUNCTION quietly unless the stamp says KEY; one line with its seconds, or its log's tail.
part() {
    local name=$1 key=$2 function=$3 started=$SECONDS
    [ "$(cat "$stamps/$name" 2>/dev/null)" = "$key" ] && return
    printf '%-12s ' "$name"
    set -m                           # a group of its own, so that an interrupt ends all that the part has started
    ("$function") >"$log" 2>&1 9<&- &
    trap 'kill -- -$! 2>/dev/null; echo interrupted; exit 130' INT TERM
    set +m
    if ! wait $!; then
        printf 'failed after %d s; the end of %s:\n\n' $((SECONDS - started)) "$log"
        tail -n 30 "$log"
        exit 1
    fi
    trap - INT TERM
    echo "$key" >"$stamps/$name"
    printf '%4d s\n' $((SECONDS - started))
}

make_environment() {
    "$python" -m venv "$venv" || "$python" -m venv --clear "$venv"
    mkdir -p "$stamps"
    locked 'pip|setuptools|wheel' | python -m pip install --quiet --requirement /dev/stdin
}

install_packages() {
    touch "$marker"
    strangers | xargs --no-run-if-empty python -m pip uninstall --yes
    if ! python -m pip install --no-compile --requirement "$lock"; then
        grep -q '^Installing collected' "$log" || rm "$marker"    # it had not begun to write
        return 1
    fi
    rm "$marker"
    # pip would compile on one core, and tests of packages too. Some files are written for another Python.
    python -m compileall -q -j 0 -x /tests/ "$(python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')" || :
}

# What is installed and not in the lock, as after a change of the lock: it may not fit the others.
strangers() {
    comm -23 <(python -m pip list --format=freeze | names) <({ cat "$lock"; printf '%s\n' kungfu-training horovod; } | names)
}
names() { sed -n 's/^\([A-Za-z0-9][^ =]*\).*/\1/p' | tr 'A-Z_.' 'a-z--' | sort -u; }

install_horovod() { python -m kungfu.native.horovod; }

# What builds kungfu, apart from the environment, whose setuptools is older for the build of Horovod.
install_build_tools() {
    rm -rf "$stamps/build-tools"
    python -m pip install --target "$stamps/build-tools" --requirement requirements-build.lock
}

install_kungfu() {
    PYTHONPATH=$stamps/build-tools python -m pip install --no-deps --no-build-isolation --editable .
}

# Only now: until it is installed anew, kungfu still asks for what an older pyproject.toml asked for.
check_packages() { python -m pip check; }

compile_native() { python -m kungfu.native; }

python=$(find_python)
export PATH=$venv/bin:$PATH
begun=$SECONDS
here=$("$python" --version; echo "$PWD")
if [ -e "$marker" ] || { [ -e "$stamps/environment" ] && [ "$(cat "$stamps/place" 2>/dev/null)" != "$here" ]; }; then
    rm -rf "$venv"                   # cut off in the middle, moved, or another Python
fi
mkdir -p "$stamps"
echo "$here" >"$stamps/place"
part environment "$(locked 'pip|setuptools|wheel' | key_of)" make_environment
part packages "$(key_of <"$lock")" install_packages
part horovod "$( (locked tensorflow; cat kungfu/native/horovod.*) | key_of)" install_horovod
part build "$(key_of <requirements-build.lock)" install_build_tools
part kungfu "$( (cat pyproject.toml setup.py; grep "^__version__" kungfu/__init__.py) | key_of)" install_kungfu
part check "$(cat "$lock" pyproject.toml | key_of)" check_packages
part native "$(cat "$lock" kungfu/native/*.py kungfu/native/*/* 2>/dev/null | key_of)" compile_native
[ $((SECONDS - begun)) -lt 2 ] || echo "set-up done in $((SECONDS - begun)) s"
