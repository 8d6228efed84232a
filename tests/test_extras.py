"""The base runs without the modules of any extra; a command that needs one names it, and works with that one alone."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import kungfu
from kungfu.extras import EXTRAS, advice_for, distribution, install_command
from tests.cli.recorded import GROWN, measured, written
from tests.lean_start import environment

ROOT = Path(kungfu.__file__).parents[1]

# Runs commands in one process, first without the modules of all extras, then with those of one at a time.
PROGRAM = """
import contextlib, importlib, io, json, sys
from kungfu import policies
from kungfu.cli.main import main
from kungfu.cli.run import main as start
from kungfu.extras import EXTRAS

policies.gns_batch(max_peers=4)


def said(command):
    out, err = io.StringIO(), io.StringIO()
    program, *words = command
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = {"kungfu": main, "kungfu-run": start}[program](words)
        except SystemExit as end:
            code = end.code
    return code, out.getvalue(), err.getvalue()


commands, modules, drawn = json.loads(sys.argv[1])
found = [said(command) for command in commands]
for extra, name in modules.items():
    for module in EXTRAS[extra]:
        del sys.modules[module]
    importlib.import_module(name)
    if extra == "plots":
        found.append(said(drawn))
    sys.modules |= dict.fromkeys(EXTRAS[extra])
assert "tensorflow" not in sys.modules
print(json.dumps(found))
"""
# A module of kungfu that imports all modules of an extra.
USERS = {
    "metrics": "kungfu.cli.export.prometheus",
    "page": "kungfu.cli.page.server",
    "plan": "kungfu_planning.cli.tuning",
    "plots": "kungfu.cli.draw.picture",
    "tensorboard": "kungfu.cli.export.tensorboard_writer",
}


def project() -> dict[str, Any]:
    """The table of the project in pyproject.toml."""
    found: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return found


def test_the_base_is_small_and_an_extra_installs_the_modules_by_which_it_is_known() -> None:
    found, providers = project(), packages_distributions()
    extras = found["optional-dependencies"]
    assert len(found["dependencies"]) <= 10
    (everything,) = extras["all"]
    assert Requirement(everything).extras == EXTRAS.keys() == USERS.keys()
    assert f"{found['name']}[all]" in extras["dev"]
    for extra, modules in EXTRAS.items():
        installed = {canonicalize_name(name) for module in modules for name in providers[module]}
        assert installed == {canonicalize_name(Requirement(line).name) for line in extras[extra]}


@pytest.mark.slow
def test_a_command_without_its_extra_names_it_and_every_other_command_works(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        written(tmp_path / name, GROWN, metrics=[measured(step) for step in range(1, 100)])
    simulate = ("plan", "simulate", "generated:elan:5", "--gpus", "32", "--policy", "fifo")
    job = ("-np", "1", sys.executable, "-c", "")
    without = f"no plot is drawn: it needs matplotlib; {install_command('plots')}"
    expected: dict[tuple[str, ...], tuple[int, str]] = {
        ("kungfu", "--version"): (0, f"kungfu {kungfu.__version__}\n"),
        ("kungfu", "explain", "gns_batch(max_peers=4)"): (0, "gns_batch"),
        ("kungfu", "why", "a"): (0, "training begins"),
        ("kungfu", "completion", "bash"): (0, "_shtab_kungfu_run"),
        ("kungfu", "status", "a"): (2, "holds no job.json"),
        ("kungfu", "chaos", "a", "--dry-run"): (2, "holds no job.json"),
        ("kungfu", "replay", "a"): (2, "there is no such file"),
        ("kungfu", *simulate): (0, "fifo"),
        ("kungfu", "plan", "--help"): (0, "simulate"),
        ("kungfu", "compare", "a", "b"): (0, f"kungfu compare: {without}"),
        ("kungfu", "compare", "a", "b", "--json"): (0, '"plot": null'),
        ("kungfu", "compare", "a", "b", "--to", "c.png"): _refused("kungfu compare: ", "plots", "matplotlib"),
        ("kungfu", "draw", "a"): _refused("kungfu draw: ", "plots", "matplotlib"),
        ("kungfu", *simulate, "--plot"): _refused("kungfu plan simulate: ", "plots", "matplotlib"),
        ("kungfu", "plan", "tuning", "x.yaml"): _refused("kungfu plan: error: tuning ", "plan", "pydantic"),
        ("kungfu", "page", "a"): _refused("kungfu page: ", "page", "uvicorn"),
        ("kungfu", "tensorboard", "a"): _refused("kungfu tensorboard: ", "tensorboard", "tensorboard"),
        ("kungfu-run", "--page", *job): _refused("kungfu-run: --page ", "page", "starlette and uvicorn"),
        ("kungfu-run", "--tensorboard", "x", *job): _refused(
            "kungfu-run: --tensorboard ", "tensorboard", "tensorboard"
        ),
        ("kungfu-run", "--metrics-port", "0", *job): _refused(
            "kungfu-run: --metrics-port ", "metrics", "prometheus_client"
        ),
    }
    blocked = environment(*(module for modules in EXTRAS.values() for module in modules)) | {"COLUMNS": "160"}
    words = json.dumps([[*expected], USERS, ["kungfu", "draw", "a"]])
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM, words], cwd=tmp_path, env=blocked, capture_output=True, text=True, timeout=120,
        check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    *found, drawn = json.loads(ran.stdout)
    for (command, (code, text)), (found_code, out, err) in zip(expected.items(), found, strict=True):
        assert (found_code, text in out + err) == (code, True), (command, out, err)
    assert (drawn[0], (tmp_path / "a" / "run.png").exists()) == (0, True), drawn
    assert not (tmp_path / "runs").exists()


def _refused(start: str, extra: str, modules: str) -> tuple[int, str]:
    return 2, f"{start}needs {modules}; {install_command(extra)}\n"


def test_the_name_of_the_distribution_is_that_of_the_installed_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    distribution.cache_clear()
    try:
        monkeypatch.setattr(sys, "path", [str(tmp_path)])
        assert (distribution(), install_command("page")) == ("", f"pip install '{ROOT}[page]'"), "a checkout"
        distribution.cache_clear()
        (about := tmp_path / "other-1.2.dist-info").mkdir()
        (about / "METADATA").write_text("Metadata-Version: 2.1\nName: other\nVersion: 1.2\n")
        (about / "top_level.txt").write_text("kungfu\n")
        assert install_command("page") == "pip install 'other[page]'"
    finally:
        distribution.cache_clear()


def test_only_a_module_of_an_extra_is_advised_to_be_installed() -> None:
    assert advice_for(ModuleNotFoundError("", name="yaml.nodes")).startswith("needs yaml; pip install ")
    assert [advice_for(error) for error in (ModuleNotFoundError("", name="yam"), ImportError("", name="yaml"))] == [
        "",
        "",
    ]
