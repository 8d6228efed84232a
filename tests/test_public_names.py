"""The names that a program finds in the package itself."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from subprocess import PIPE
from types import ModuleType
from typing import Any

import pytest

import kungfu as kf
from tests.lean_start import environment

ROOT = Path(kf.__file__).parent
NAMES = {
    "errors": {"DeadlineExceeded", "KungfuError", "PeerFailure", "PolicyError", "UsageError"},
    "a run": {"Training", "attach"},
    "a policy": {"Keep", "Policy", "Rule", "Signal", "TrainingSignals", "fold", "policy"},
    "several policies": {"Budget", "at_least", "at_most", "compose", "first", "shadow"},
    "vocabulary": {"control", "monitor", "ops", "policies", "worth"},
}


def test_the_list_is_this_one_and_holds_at_most_25_names() -> None:
    assert set(kf.__all__) == set().union(*NAMES.values())
    assert len(kf.__all__) <= 25
    assert set(kf.__all__) <= set(dir(kf))


def test_an_import_loads_neither_tensorflow_nor_the_prebuilt_policies() -> None:
    program = (
        "import sys, kungfu as kf; assert not {'tensorflow', 'kungfu.policies'} & set(sys.modules); "
        "kf.policies.gns_batch(max_peers=4); assert 'tensorflow' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)


def test_the_door_to_keras_is_found_without_an_import_of_its_own() -> None:
    program = "import sys, kungfu as kf; assert 'kungfu.keras' not in sys.modules; print(kf.keras.attach.__module__)"
    told = environment("matplotlib", "sklearn")
    ran = subprocess.run([sys.executable, "-c", program], env=told, check=True, timeout=120, stdout=PIPE, text=True)
    assert ran.stdout == "kungfu.keras.attach_model\n"
    assert "keras" in dir(kf)


def test_every_name_that_a_message_tells_to_write_exists() -> None:
    for path in ROOT.rglob("*.py"):
        for name in re.findall(r"(?<![\w.])kf((?:\.[a-z]\w*)+)", path.read_text()):
            found: Any = kf
            for part in name[1:].split("."):
                found = getattr(found, part, None)
                assert found is not None, f"{path}: kf{name}"
                # Beyond a function, and in its result, there is nothing to look up.
                if not isinstance(found, ModuleType):
                    break


def test_an_operation_is_found_under_ops_only() -> None:
    with pytest.raises(AttributeError, match=r"module 'kungfu' has no attribute 'clip'; write kf\.ops\.clip"):
        _ = kf.clip
    with pytest.raises(AttributeError, match=r"module 'kungfu' has no attribute 'clop'$"):
        _ = kf.clop
