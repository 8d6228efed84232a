"""From a command line to a policy."""

from __future__ import annotations

from pathlib import Path

import pytest

from kungfu.compiler import compile_policies, explain
from kungfu.errors import PolicyError
from kungfu.policy_definition.policy_path import load_policy

FILE = """
import kungfu as kf
from kungfu.policies import gns_batch, schedule

@kf.policy
def by_loss(training, *, every=5, note=""):
    return kf.control.every(every).rescale(training.mean_loss)

capped = kf.at_most(by_loss(), schedule({10: 2}))
answer = 42

def broken():
    return answer

def plain(every):
    return by_loss(every=every)
"""


def written(folder: Path, text: str = FILE) -> str:
    path = folder / "mine.py"
    path.write_text(text)
    return str(path)


@pytest.mark.parametrize(
    ("expression", "name"),
    [
        ("by_loss", "by_loss"),
        ("by_loss()", "by_loss"),
        ("by_loss(every=7, note='a:b(c)')", "by_loss"),
        ("schedule({10: 2, 20: 4}, keep='global_batch_size')", "schedule"),
        ("capped", "at_most(by_loss, schedule)"),
    ],
)
def test_a_policy_of_a_file_is_found_by_name_and_called_with_literals(
    tmp_path: Path, expression: str, name: str
) -> None:
    policy = load_policy(f"{written(tmp_path)}:{expression}")
    assert policy.name == name
    assert len(compile_policies([policy]).rules) == 1


def test_a_policy_of_a_module_is_found_by_name() -> None:
    assert load_policy("kungfu.policies:gns_batch(max_peers=8, every=10)").name == "gns_batch"
    assert load_policy("gns_batch(max_peers=8, every=10)").origin == "gns_batch(max_peers=8, every=10)"


def test_an_origin_inside_a_policy_file_points_there(tmp_path: Path) -> None:
    path = written(tmp_path)
    text = explain(compile_policies([load_policy(f"{path}:by_loss")]))
    assert "[mine.py:7]" in text


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("gns_batch", r"'gns_batch' names no policy; write PATH.py:NAME\(ARGS\) or MODULE:NAME\(ARGS\)"),
        ("gns(max_peers=3)", r"kungfu.policies has no 'gns'; it has .*gns_batch, .*schedule"),
        ("kungfu.policies:", "names no policy"),
        (":gns_batch", "names no policy"),
        ("kungfu.policies:gns_batch(max_peers=", r"is no Python expression .*write PATH.py"),
        ("kungfu.policies:gns_batch + 1", "is neither a name nor one call of a name"),
        (
            "kungfu.policies:gns_batch(max_peers=open('x'))",
            r"the argument open\('x'\) is not a literal; make that",
        ),
        ("kungfu.policies:autoscale", "autoscale: missing a required .*'max_peers'"),
        (
            "kungfu.policies:gns_batch(max_peer=3)",
            "no argument 'max_peer'; 'max_peers' may be meant; .*takes .*max_peers",
        ),
        ("no.such.module:x", "cannot load no.such.module .ModuleNotFoundError: No module named 'no'"),
        ("nowhere.py:x", "cannot load nowhere.py .no such file."),
    ],
)
def test_what_does_not_resolve_says_which_part(spec: str, message: str) -> None:
    with pytest.raises(PolicyError, match=message):
        load_policy(spec)


def test_a_file_of_the_folder_that_is_given_as_a_module_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own_policy.py").write_text("")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(PolicyError, match=r"for the file own_policy\.py write own_policy.py:NAME"):
        load_policy("own_policy:grow")


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("answer", "is 42, and neither a policy nor a function that makes one"),
        ("answer(3)", "is 42, and neither a policy"),
        ("plain(3, 4)", r"plain\(3, 4\)' cannot be called so: plain\(\) takes 1 positional argument but 2 were given"),
        ("broken", "gives 42, not a policy; decorate its function with @kf.policy"),
    ],
)
def test_what_is_no_policy_is_refused(tmp_path: Path, expression: str, message: str) -> None:
    with pytest.raises(PolicyError, match=message):
        load_policy(f"{written(tmp_path)}:{expression}")


def test_a_file_that_raises_when_it_is_loaded_is_named_with_its_error(tmp_path: Path) -> None:
    path = written(tmp_path, "raise ValueError('on purpose')")
    with pytest.raises(PolicyError, match=r"cannot load .*mine.py \(ValueError: on purpose\)") as caught:
        load_policy(f"{path}:x")
    assert isinstance(caught.value.__cause__, ValueError)
