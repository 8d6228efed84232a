"""The pages on errors and on watching jobs: each message and each metric is one of the sources."""

from __future__ import annotations

import re

from tests.cli.export.test_prometheus import served_names
from tools.docs_site import messages
from tools.docs_site.pages import ROOT

PAGE = ROOT / "docs" / "troubleshooting.md"
CODE = re.compile(r"(?<!`)(`{1,2})(?!`)(.+?)(?<!`)\1(?!`)")


def quoted() -> list[str]:
    """The messages of the page: what stands as code in the first line of each entry."""
    lines = [line for line in PAGE.read_text().splitlines() if line.startswith("- `")]
    return [found[1].strip() for line in lines for found in CODE.findall(line)]


def test_every_message_is_one_that_the_program_has() -> None:
    texts = messages.templates(ROOT)
    assert len(quoted()) > 60
    assert [one for one in quoted() if not any(one in text for text in texts)] == []


def test_every_message_has_its_way_out() -> None:
    entries = re.split(r"^- `", PAGE.read_text(), flags=re.MULTILINE)[1:]
    assert all(re.match(r".*\n\n    \S", one) for one in entries), "a sentence, indented, below each message"


def test_all_messages_are_told_on_a_page_of_their_own() -> None:
    page = messages.page(ROOT)
    for title in messages.SITUATIONS:
        assert f"\n## {title}\n\n- `" in page, title
    for text in (
        "no program was given: kungfu-run -np 2 python train.py",
        "training.batches(remainder=…): must be one of …",
        "--secret-file …: cannot be read (…); …",
    ):
        assert f"- `{text}` (UsageError)" in page
    assert "(PolicyError)" in page


def test_the_page_on_watching_jobs_lists_every_metric_and_no_other() -> None:
    page = (ROOT / "docs" / "monitoring.md").read_text()
    listed = {name for line in page.splitlines() if line.startswith("| `kungfu_") for name in
              re.findall(r"`(kungfu_[a-z_]+)", line.split(" | ")[0])}  # fmt: skip
    served = {re.sub(r"_(bucket|sum|count)$", "", name) for name in served_names()}
    assert {name for name in served if not name.endswith("_created")} == listed
