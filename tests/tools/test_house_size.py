"""The counts of the house, on small texts."""

from __future__ import annotations

import ast
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tools import house_size

MODULE = '''"""A docstring

with a blank line in it."""
# a comment
text = """a string

over lines"""  # a comment beside code


def f() -> None:
    """Another one."""
'''


def test_lines_of_python_are_code_docstrings_comments_and_blank() -> None:
    assert house_size.python_lines(MODULE) == {"code": 4, "docstring": 4, "comment": 1, "blank": 2}


@pytest.mark.parametrize(
    ("text", "suffix", "code", "comment", "blank"),
    [
        ("// why\n\n#include <a>\nint a;  // b\n", ".cc", 2, 1, 1),
        ("/** why\n * so */\nlet a = 1;\n", ".js", 1, 2, 0),
        ("# why\na: 1\n", ".yaml", 1, 1, 0),
        ("# a title\n\ntext\n", ".md", 2, 0, 1),
        ('{"a": 1}\n', ".json", 1, 0, 0),
    ],
)
def test_lines_of_other_languages_are_counted(text: str, suffix: str, code: int, comment: int, blank: int) -> None:
    found = house_size.other_lines(text, suffix)
    assert (found["code"], found["comment"], found["blank"]) == (code, comment, blank)


@pytest.mark.parametrize(
    ("path", "row"),
    [
        ("conftest.py", "(root)"),
        ("kungfu/worth.py", "kungfu"),
        ("kungfu/runtime/core/view.py", "kungfu/runtime"),
        ("kungfu/runtime/ipc/messages_pb2.py", "kungfu/runtime generated"),
        ("kungfu/native/state/digest.cc", "kungfu/native .cc"),
        ("kungfu_planning/schedule/job.py", "kungfu_planning/schedule"),
        ("tests/cli/test_run.py", "tests"),
        ("docs/grafana.json", "docs .json"),
    ],
)
def test_a_file_is_counted_in_the_row_of_its_package_and_language(path: str, row: str) -> None:
    assert house_size.row_of(path) == row


def test_the_sums_hold_python_that_people_write_with_planning_apart() -> None:
    line = "a = 1\n"
    rows = house_size.lines_by_row(
        {
            "kungfu/a.py": line,
            "kungfu/ipc/b_pb2.py": line,
            "kungfu/native/c.cc": "int c;\n",
            "kungfu/tune/d.py": line,
            "kungfu/cli/simulate.py": line,
            "kungfu_planning/tune/e.py": line,
            "tests/test_f.py": line,
        }
    )
    sums = {row: lines["code"] for row, lines in rows.items() if row.startswith("SUM")}
    assert sums == {"SUM kungfu without planning": 1, "SUM kungfu, planning": 3, "SUM tests": 1}


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ("match a:\n  case AEvent(x=1) | BEvent():\n    pass", {"AEvent", "BEvent"}),
        ("isinstance(a, AEvent | events.BEvent)", {"AEvent", "BEvent"}),
        ("TOLD = {AEvent: 1}\nDECISIONS = (BEvent, CEvent)", {"AEvent", "BEvent", "CEvent"}),
        ("if type(a) is AEvent: pass", {"AEvent"}),
        ("from events import AEvent\ndef f(a: AEvent) -> BEvent: return BEvent(1)", set()),
    ],
)
def test_an_event_is_matched_by_a_pattern_a_check_or_a_table(code: str, found: set[str]) -> None:
    assert house_size.told_apart(ast.parse(code)) & {"AEvent", "BEvent", "CEvent"} == found


def test_classes_of_more_than_seven_fields_count_inherited_and_set_ones() -> None:
    fields = "".join(f"  f{one}: int\n" for one in range(7))
    stores = "".join(f"    self.f{one} = 1\n" for one in range(8))
    text = f"class A:\n  k: ClassVar[int]\n{fields}\nclass B(A):\n  g: int\nclass C:\n  def __init__(self):\n{stores}"
    assert house_size.large_classes([ast.parse(text)]) == {"B": 8, "C": 8}


@pytest.mark.parametrize(
    ("body", "found"),
    [
        ("self.a.b.c.d()", ["self.a.b.c.d"]),
        ("self.a.b.c", []),
        ("run = self.run; run.a.b.c", ["self.run.a.b.c"]),
        ("a, b = self.a, self.b.c; b.d.e; a.b.c", ["self.b.c.d.e"]),
        ("a: A = self.a; f(lambda: a.b.c.d)", ["self.a.b.c.d"]),
        ("a = self.a; a = other; a.b.c.d", []),
        ("self.a().b.c.d.e", []),
        ("a = self.a\n  def g(a): a.b.c.d", []),
    ],
)
def test_chains_of_four_attributes_from_self_follow_local_names(body: str, found: list[str]) -> None:
    assert house_size.chains(ast.parse(f"def f(self):\n  {body}")) == found


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ("import json, os\nfrom msgspec.structs import replace", {"json", "msgspec"}),
        ("from kungfu.runtime.ipc import messages_pb2 as pb", {"protobuf"}),
        ("from kungfu.runtime.ipc.messages_pb2_grpc import JobServiceStub", {"protobuf"}),
        ("def f():\n  np.savez(room)\n  from struct import Struct", {"savez", "struct"}),
        ("from kungfu.cli import json_output\nmsgspec = pickle = 1", set()),
    ],
)
def test_an_encoding_is_used_by_the_modules_that_import_it(code: str, found: set[str]) -> None:
    assert house_size.encodings_of(ast.parse(code)) == found


def test_the_walk_is_the_types_that_exist_and_the_modules_that_name_them() -> None:
    sources = {
        "kungfu/runtime/core/next_membership.py": "class Decision: pass\nclass Resize: pass\n",
        "kungfu/runtime/core/view.py": "class View: pass\n",
        "kungfu/runtime/messages.proto": "message PeerStart {\n}\n",
        "kungfu/runtime/agent/executor.py": "pb.PeerStart(1)\n",
        "kungfu/runtime/agent/imports.py": "from a import Decision\n",
        "kungfu/cli/why.py": "Decision(1)\n",
    }
    walked = house_size.measure(sources)["walk"]
    assert walked["types"] == ["Decision", "pb.PeerStart", "View"]
    assert walked["files"] == ["kungfu/runtime/core/next_membership.py", "kungfu/runtime/agent/executor.py"]
    later = house_size.measure(sources | {"kungfu/runtime/core/request.py": "class Asked: pass\n"})["walk"]
    assert later["types"] == ["Decision", "pb.PeerStart", "View", "Asked", "Resize"]


def test_the_walk_from_fit_to_a_batch_is_its_types_and_the_modules_that_define_it() -> None:
    sources = {
        "kungfu/keras/loop.py": "class FitRun: pass\nclass Other: pass\n",
        "kungfu/keras/next_action.py": "def decide(): FitRun()\n",
        "kungfu/keras/evaluation.py": "def evaluate(): decide()\n",
        "kungfu/cli/run.py": "class Run: pass\n",
    }
    counted = house_size.measure(sources)["fit to a batch"]
    assert counted == {"types": ["FitRun"], "files": ["kungfu/keras/loop.py", "kungfu/keras/next_action.py"]}


@pytest.mark.slow
def test_a_checkout_and_its_commit_are_counted_alike(tmp_path: Path) -> None:
    (tmp_path / "tools").mkdir()
    shutil.copy(house_size.__file__, tmp_path / "tools")
    (tmp_path / "kungfu").mkdir()
    (tmp_path / "kungfu" / "a.py").write_text("a = 1\n")
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b"]
    for command in (["init", "-q"], ["add", "."], ["commit", "-qm", "a"]):
        subprocess.run([*git, *command], cwd=tmp_path, check=True)

    def counted(at: str) -> Any:
        line = [sys.executable, "tools/house_size.py", "--at", at]
        return json.loads(subprocess.check_output(line, cwd=tmp_path, text=True).splitlines()[-1])["lines"]

    assert counted("HEAD") == counted(".")
    assert counted(".")["kungfu"] == {"code": 1, "files": 1}
