"""Nothing in the runtime or in training is decided by what a text of ours says: kinds, ranks and ids are fields.

Looked for are the ways to read a text. A few lines read texts of others, such as command lines and names of files; each
is here with what it reads.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "kungfu"
READS = re.compile(
    r"\bin str\(|[\"'] (?:not )?in \w*(?:how|why|error|reason|message|text|said)\b"
    r"|\.(?:startswith|endswith)\(|\bre\.(?:compile|search|match|fullmatch|findall|split|sub)\("
    r"|\.(?:args\[0\]|message) ==|str\(\w*error\) =="
)
# What such a line holds, wherever it stands, and what it reads.
ALLOWED = {
    "_IPV6 = ": "addresses of hosts",
    "_NAME = ": "names of hosts, and names under which users register values",
    "word.startswith(_BY_NAME)": "the user's list of devices",
    "_PYTHON = ": "the user's command line",
    're.match(r"-[b': "the user's command line",
    '.endswith(".py")': "the user's command line",
    'data.endswith(b"\\n")': "the last byte of a file of the record",
    "re.sub(": "a tag, which becomes a name of Horovod's",
    "_COUNTED = ": "names of variables that Keras counts",
    "_HEADLINE = ": "what a program printed last, to show it to people",
    "file.startswith(": "paths of source files",
    "name.startswith(prefix)": "names of the parts of a span, which are keys",
    **dict.fromkeys(("_HOROVOD = ", "_MACHINE = ", "_GLOO = "), "errors of Horovod, which have nothing but texts"),
    "_HARMLESS = ": "types of TensorFlow's ops",
    "_DRAWN = ": "types of TensorFlow's ops",
    "_SUMMED = ": "types of TensorFlow's ops",
    'endswith(f"/{name}")': "paths of variables",
    '"seed" not in str(key)': "keys of configs",
    "_ADDRESS = ": "texts that stand for objects of the program",
    "__module__.startswith(": "modules of classes that users pass",
    "_NUMBERED": "names of the folders of checkpoints",
    **dict.fromkeys(("name.startswith(_TRAINED)", "name.startswith(within)"), "names of variables"),
}


def reading() -> dict[str, list[str]]:
    """The lines that read texts, by file."""
    files = [PACKAGE / "errors.py", *(PACKAGE / "runtime").rglob("*.py"), *(PACKAGE / "training").rglob("*.py")]
    found: dict[str, list[str]] = {}
    for path in files:
        if "_pb2" in path.name:
            continue
        lines = [line.strip() for line in path.read_text().splitlines() if READS.search(line.partition("  #")[0])]
        if lines:
            found[str(path.relative_to(PACKAGE))] = lines
    return found


def test_nothing_is_decided_by_a_text_of_ours() -> None:
    found = [(path, line) for path, lines in reading().items() for line in lines]
    others = [f"{path}: {line}" for path, line in found if not any(one in line for one in ALLOWED)]
    assert others == [], "carry what is decided in a field, or say here what this reads"


def test_each_exception_is_still_needed() -> None:
    lines = [line for found in reading().values() for line in found]
    assert [one for one in ALLOWED if not any(one in line for line in lines)] == []


@pytest.mark.parametrize(
    "line",
    ['if "secret" in str(error):', 'if "kf.attach()" in how:', 'if said.startswith("waited"):', "re.compile(r'rank')"],
)
def test_the_ways_to_read_a_text_are_known(line: str) -> None:
    assert READS.search(line)
