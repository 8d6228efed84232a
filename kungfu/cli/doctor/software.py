"""The checks of the software: Python, TensorFlow and other libraries, the compiler, the native op, Horovod."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, requires, version
from typing import Any

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from kungfu import __version__
from kungfu.cli.doctor.finding import Finding, Severity
from kungfu.cli.doctor.probe import Probe
from kungfu.event_log.values import counted
from kungfu.extras import EXTRAS, distribution, install_command, missing
from kungfu.runtime.settings import AttachmentName

LIBRARIES = ("tensorflow", "keras", "numpy", "grpcio", "protobuf", "horovod")
_NEEDED = LIBRARIES[:-1]
_INSTALL = "install kungfu with pip, which brings it"
_WITH_CUDA = "`pip install 'tensorflow[and-cuda]'` of this version brings the libraries of CUDA"
_DRIVER = ", and `nvidia-smi` shows whether the driver answers"
_ON_CORES = "; to train on the cores, `export CUDA_VISIBLE_DEVICES=`"


def installed_libraries() -> dict[str, str]:
    """The versions of the installed libraries, by name."""
    found = dict[str, str]()
    for name in LIBRARIES:
        with suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


def supported_versions() -> dict[str, SpecifierSet]:
    """The library versions that the installed kungfu supports, by name; empty if kungfu is not installed."""
    name = distribution()
    needed = [Requirement(line) for line in requires(name) or ()] if name else []
    return {one.name: one.specifier for one in needed if one.marker is None}  # requirements of an extra have a marker


def check_software(
    probe: Probe,
    *,
    attachment: AttachmentName,
    libraries: Mapping[str, str],
    supported: Mapping[str, SpecifierSet],
    devices: Sequence[str],
) -> Iterator[Finding]:
    """The findings about the software.

    Args:
        attachment: The attachment of the job; a missing Horovod is a problem only for attachment "horovod".
        supported: The supported versions by name; a library without an entry may have any version.
        devices: The devices that this host's peers share, by their names in CUDA.
    """
    yield Finding("kungfu", f"{__version__}, Python {sys.version.split()[0]} at {sys.executable}")
    yield _libraries(libraries, supported)
    yield _extras()
    yield _tensorflow(probe, devices)
    yield _compiler(has_op="path" in probe.known.get("native op", {}))
    yield _native_op(probe)
    yield _horovod(probe, wanted=attachment == "horovod")


def _libraries(libraries: Mapping[str, str], supported: Mapping[str, SpecifierSet]) -> Finding:
    missing = [name for name in _NEEDED if name not in libraries]
    shown = ", ".join(f"{name} {libraries[name]}" for name in _NEEDED if name in libraries)
    if missing:
        return Finding("libraries", f"{shown}; missing: {', '.join(missing)}", "problem", _INSTALL)
    unlike = {
        name: supported[name]
        for name in _NEEDED
        if name in supported and not supported[name].contains(libraries[name], prereleases=True)
    }
    if not unlike:
        return Finding("libraries", shown)
    outside = ", ".join(f"{name} {versions}" for name, versions in unlike.items())
    # An older version lacks functions that kungfu calls; a newer version is not known to fail.
    severity: Severity = "problem" if any(_is_older(libraries[name], one) for name, one in unlike.items()) else "remark"
    words = " ".join(f"'{name}{versions}'" for name, versions in unlike.items())
    return Finding("libraries", f"{shown}; kungfu supports: {outside}", severity, f"pip install {words}")


def _is_older(installed: str, supported: SpecifierSet) -> bool:
    return any(one.operator == ">=" and Version(installed) < Version(one.version) for one in supported)


def _extras() -> Finding:
    """The missing extras; no remark, since training needs none of them."""
    lacking = [extra for extra in EXTRAS if missing(extra)]
    if not lacking:
        return Finding("extras", "all installed")
    return Finding("extras", f"not installed: {', '.join(lacking)}", advice=install_command(",".join(lacking)))


def _tensorflow(probe: Probe, devices: Sequence[str]) -> Finding:
    result = probe.known.get("tensorflow", {})
    if "version" in result:
        return _loaded(result, devices)
    if "error" in result:
        return Finding("TensorFlow", f"does not load: {result['error']}", "problem", _INSTALL)
    advice = "try `python -c 'import tensorflow'`"
    # SIGILL is the only signal with a single usual cause.
    if "SIGILL" in probe.ended:
        advice = "its binaries need a processor with AVX: use another machine, or a TensorFlow compiled for this one"
    return Finding("TensorFlow", probe.ended, "problem", advice)


def _loaded(result: Mapping[str, Any], devices: Sequence[str]) -> Finding:
    gpus = result["gpus"]
    found = f"{result['version']} loads, and finds {counted(gpus, 'GPU')}"
    # The peers would train on the CPU without an error.
    if devices and not gpus:
        found += f", and this host has {counted(len(devices), 'device')}: {', '.join(devices)}"
        unbuilt, driver = ("", _DRIVER) if result["with CUDA"] else ("; it is built without CUDA", "")
        return Finding("TensorFlow", found + unbuilt, "remark", _WITH_CUDA + driver + _ON_CORES)
    # Under WSL, for example, the driver lists no devices: all peers would use the first one.
    if gpus > 1 and not devices:
        listed = ",".join(map(str, range(gpus)))
        advice = f"`export CUDA_VISIBLE_DEVICES={listed}` before kungfu-run: each slot gets one of those"
        return Finding("TensorFlow", f"{found}, and the driver does not show them to kungfu", "remark", advice)
    return Finding("TensorFlow", found)


def _compiler(*, has_op: bool) -> Finding:
    path = shutil.which("g++")
    if path is not None:
        first = subprocess.run([path, "--version"], capture_output=True, text=True, check=False).stdout.splitlines()
        return Finding("compiler", first[0] if first else path)
    # An op that is already compiled needs no compiler until a version changes.
    severity: Severity = "remark" if has_op else "problem"
    return Finding("compiler", "no g++ on PATH", severity, "Debian, Ubuntu: apt-get install g++")


def _native_op(probe: Probe) -> Finding:
    result = probe.known.get("native op", {})
    if "path" in result:
        return Finding("native op", f"loads ({result['seconds']:g} s) from {result['path']}")
    found = result.get("error") or (probe.ended if probe.missing == "native op" else "not tried without TensorFlow")
    return Finding("native op", found, "problem", "run `python -m kungfu.native` once the above is mended")


def _horovod(probe: Probe, *, wanted: bool) -> Finding:
    result = probe.known.get("horovod", {})
    if "version" in result:
        return Finding("Horovod", f"{result['version']} loads")
    if not wanted:
        return Finding("Horovod", "not needed on one machine" + ("" if "error" in result else ", and not tried"))
    found = result.get("error") or (probe.ended if probe.missing == "horovod" else "not tried without TensorFlow")
    return Finding("Horovod", found, "problem", "between hosts it is needed: run `python -m kungfu.native.horovod`")
