"""The extras of the distribution: optional libraries, and the advice to install a missing one."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib.util import find_spec
from pathlib import Path

__all__ = ["EXTRAS", "advice_for", "distribution", "install_command", "missing"]

# The modules of each extra of `[all]` in pyproject.toml that kungfu imports.
EXTRAS: Mapping[str, tuple[str, ...]] = {
    "metrics": ("prometheus_client",),
    "page": ("starlette", "uvicorn"),
    "plan": ("pydantic", "yaml"),
    "plots": ("matplotlib",),
    "tensorboard": ("tensorboard",),
}
# Not in `[all]`, since MLflow brings dozens of packages.
_MODULES = {**EXTRAS, "mlflow": ("mlflow",)}


def missing(extra: str) -> str:
    """The advice to install an extra; empty if all its modules are installed. Loads none of them."""
    modules = [name for name in _MODULES[extra] if find_spec(name) is None]
    return _advice(extra, *modules) if modules else ""


def advice_for(error: Exception) -> str:
    """The advice to install the extra of the module that an import did not find; empty for other errors."""
    module = (error.name or "").partition(".")[0] if isinstance(error, ModuleNotFoundError) else ""
    extra = next((name for name, modules in _MODULES.items() if module in modules), "")
    return _advice(extra, module) if extra else ""


def _advice(extra: str, *modules: str) -> str:
    return f"needs {' and '.join(modules)}; {install_command(extra)}"


def install_command(extra: str) -> str:
    """The command that installs an extra of the installed distribution, or else of the folder that holds kungfu."""
    return f"pip install '{distribution() or Path(__file__).parents[1]}[{extra}]'"


@cache
def distribution() -> str:
    """The name of the installed distribution that provides kungfu; empty if kungfu is not installed."""
    from importlib.metadata import packages_distributions  # reads the metadata of every installed distribution

    return next(iter(packages_distributions().get("kungfu", ())), "")
