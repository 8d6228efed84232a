"""The page of a job in a real browser: while the job rescales, with a keyboard, with hostile texts, and 200 at once."""

from __future__ import annotations

import json
import math
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
from selenium.webdriver.common.keys import Keys

import kungfu as kf
from kungfu.cli.main import main
from kungfu.cli.page.decision_feed import MOST_ITEMS
from kungfu.compiler import compile_policies
from kungfu.compiler.serialize import plan_to_json
from kungfu.event_log import events
from kungfu.event_log.codec import event_to_line
from kungfu.policy_definition import Policy
from kungfu.runtime.job_api.job_file import read_job_file
from kungfu.trace.lines import header_line
from tests.jobs.browser import WIDE, Browser, assert_in_order, browsing
from tests.jobs.harness import ROOT, awaited, endless, page_address, started
from tests.soak import SOAK

pytestmark = SOAK

WITH_PAGE = ("-np", 2, "--max", 3, "--page", 0)


@contextmanager
def page_of(folder: Path) -> Iterator[str]:
    """``kungfu page RUN`` of a record; gives its address."""
    command = [sys.executable, "-m", "kungfu.cli.main", "page", str(folder)]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        found = re.search(r"http://[^/\s]+/(?=[;\s])", line)
        assert found, line
        yield found[0]
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(timeout=60)
        process.stdout.close()


def marked(browser: Browser, address: str) -> None:
    """Opens a page, and marks it: the mark is gone where it is loaded again."""
    browser.open(address)
    browser.run("window.isStillThere = true")


def test_a_job_rescales_before_a_browsers_eyes_by_commands_and_by_its_keyboard(tmp_path: Path) -> None:
    with started(tmp_path, *WITH_PAGE, program="network.py", arguments=endless(tmp_path)) as job:
        with browsing(tmp_path / "profile") as browser:
            browser.look_at(WIDE)
            marked(browser, page_address(job))
            browser.shows("#size", "2", within_s=120.0)
            browser.shows("#state", "running")
            assert main(["resize", "3", "--logdir", str(job.folder)]) == 0
            browser.shows("#size", "3")
            browser.shows("#changes-list", lambda text: "2 -> 3 peers" in text)
            awaited(
                lambda: len(browser.texts('#peers-body tr[data-state="training"]')) == 3, what="3 rows", deadline_s=30
            )
            assert "kungfu resize 3" in browser.text("#decisions-body")
            resized_by_keyboard(browser, secret=read_job_file(job.folder).secret)
            job.event("rescale", to=2)
            browser.shows("#size", "2")
            assert browser.run("return window.isStillThere"), "without a reload"
            assert_in_order(browser, but=["403"])
            browser.look_at(WIDE)
            stopped_by_buttons(browser)
        # The browser has left in the middle of the job's end.
        ended = job.end()
    assert ended.sizes == [2, 3, 2]
    with page_of(job.folder) as address, browsing(tmp_path / "profile-2") as browser:
        browser.look_at(WIDE)
        browser.open(address)
        browser.shows("#state", "over")
        browser.shows("#step", f"{ended.metrics[-1]['step']:,}")
        assert not browser.get("#actions").is_displayed()
        assert_in_order(browser)


def resized_by_keyboard(browser: Browser, *, secret: str) -> None:
    """Asks for two peers by keys alone: what would follow is shown first, and a wrong secret changes nothing."""
    browser.run("document.activeElement.blur(); window.scrollTo(0, 0)")
    for _ in range(12):
        browser.press(Keys.TAB)
        if browser.focused == "resize-button":
            break
    assert browser.focused == "resize-button", "a few tabs from the top"
    browser.press(Keys.ENTER)
    assert browser.focused == "request-size"
    browser.retype("2", Keys.TAB)
    assert browser.focused == "request-hold"
    browser.press(Keys.TAB)
    assert browser.focused == "request-secret"
    browser.press("wrong", Keys.ENTER)
    browser.shows("#request-error", lambda text: "not the job's secret" in text)
    assert not browser.get("#request-act").is_displayed()
    assert browser.focused == "request-secret"
    browser.retype(secret, Keys.ENTER)
    browser.shows("#request-preview", lambda text: "3 -> 2" in text)
    awaited(lambda: browser.focused == "request-act", what="the focus on the button that acts", deadline_s=10)
    assert browser.text("#size") == "3", "nothing was done yet"
    browser.press(Keys.ENTER)
    browser.shows("#request-status", lambda text: text.startswith("resize 2"))


def stopped_by_buttons(browser: Browser) -> None:
    """Asks for the end with a mouse; the secret is kept in the tab."""
    browser.get("#stop-button").click()
    browser.shows("#request-preview", lambda text: "training ends" in text)
    assert not browser.get("#request-secret-row").is_displayed()
    browser.get("#request-act").click()
    browser.shows("#request-status", lambda text: text.startswith("stop"))


# ---- hostile texts ---------------------------------------------------------------------------------------------------

HOSTILE = (
    "<script>window.isHit = 1</script>",
    "<img src=x onerror='window.isHit = 2'>",
    "\"'><svg onload=window.isHit=3>&lt;b&gt;",
    "javascript:window.isHit=4",
    "\u202etxet esrever\u202c \u0627\u0644\u0633\u0644\u0627\u0645",
    "\x00\x07\x1b[31mred\x1b[0m\x7f\u2028\u2029",
    "</li></ol></main><h1>mine</h1>",
    "{{constructor.constructor('window.isHit=5')()}}",
    "w" * 30_000,
)


def hostile_record(folder: Path) -> None:
    """A record whose every text is somebody's."""
    folder.mkdir()
    (folder / "peers").mkdir()
    record: list[Any] = [
        events.RecordEvent(version=events.RECORD_VERSION),
        events.StartedEvent(job=HOSTILE[0], size=2, command=HOSTILE),
        *(events.SpawnedEvent(peer=peer, pid=peer + 10) for peer in (0, 1)),
        events.ViewEvent(version=1, peers=(0, 1)),
    ]
    for step, text in enumerate(HOSTILE, 1):
        record += [
            events.DecisionEvent(step=step, rule=text, saw={text: 1.0}, size=2, asked=3, done=text, won=(text,),
                                 lost=(text,)),
            events.CheckpointEvent(step=step, rule=text, path=text, seconds=0.1, stop_s=0.1),
            events.LostEvent(peer=1, rank=1, how=text, error=text),
            events.RecoveredEvent(step=step, before=2, after=2, view=1 + step, lost={"1": text}, stop_s=0.1, state_of=0,
                                  noticed_by=text, redone=0, target=2, global_batch_size=8, noticed_s=0.0,
                                  regrouped_s=0.0, step_s=0.0, parts={text: 0.1}),
        ]  # fmt: skip
    record.append(events.FailedEvent(peer=0, error=" ".join(HOSTILE), code=1))
    (folder / "events.jsonl").write_text("".join(record_lines(record)))
    rows = [
        {"time": 100.0 + step, "step": step, "epoch": 0, "size": 2, "batch": 8, "loss": 1.0 / step,
         **{text: float(step) for text in HOSTILE}} for step in range(1, 50)
    ]  # fmt: skip
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "trace.jsonl").write_text(json.dumps(header_line(hostile_plan(), policies=HOSTILE[:1], every=100)) + "\n")


def hostile_plan() -> Any:
    """A plan in which policies, signals and hooks have hostile names: somebody has written them into the record."""

    def named(nth: int) -> Policy:
        def hook(control: object, seen: float) -> None:
            """Asks for nothing."""

        def body(training: Any) -> Any:
            agreed = kf.ops.all_reduce(training.published(f"signal_{nth}_"), "mean")
            return kf.control.every(2).call(hook, agreed)

        hook.__name__, body.__name__ = f"hook_{nth}_", f"policy_{nth}_"
        return kf.policy(body)()

    text = json.dumps(plan_to_json(compile_policies([named(nth) for nth in range(len(HOSTILE))])))
    for nth, hostile in enumerate(HOSTILE):
        for what in ("policy", "signal", "hook"):
            assert f"{what}_{nth}_" in text
            text = text.replace(f"{what}_{nth}_", json.dumps(hostile + what)[1:-1])
    return json.loads(text)


def record_lines(record: Sequence[Any]) -> list[str]:
    """The lines of a record, with the time that its agent stamps on each event but the first."""
    timed = [msgspec.structs.replace(one, time=100.0 + nth) if nth else one for nth, one in enumerate(record)]
    return [f"{event_to_line(one)}\n" for one in timed]


def test_what_a_record_says_stays_text_and_breaks_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "<img src=x onerror=window.isHit=6>"
    hostile_record(folder)
    with page_of(folder) as address, browsing(tmp_path / "profile") as browser:
        browser.look_at(WIDE)
        marked(browser, address)
        browser.shows("#step", "49")
        browser.shows("#title", folder.name)
        awaited(lambda: len(browser.texts("#decisions-body tr")) == len(HOSTILE), what="the decisions", deadline_s=30)
        shown = "\n".join(
            [*browser.texts("#decisions-body tr"), *browser.texts("figure.chart"), *browser.texts("ol.items > li")]
        )
        for text in HOSTILE[:4]:
            assert text in shown
        assert_plan_is_text(browser)
        assert browser.texts("h1") == [folder.name]
        assert browser.run("return window.isHit ?? null") is None, "nothing of it has run"
        assert browser.run("return window.isStillThere"), "nothing of it has led elsewhere"
        assert browser.run("return document.querySelectorAll('main script, main img').length") == 0
        assert_in_order(browser)
        assert browser.run("return window.isHit ?? null") is None


def assert_plan_is_text(browser: Browser) -> None:
    """The plan has a box for each signal and each rule, with a short name in it and the whole one in its title."""
    awaited(lambda: browser.texts("#plan-graph g.rule .name"), what="the plan", deadline_s=30)
    assert browser.run("return document.querySelector('#no-plan').hidden"), browser.text("#no-plan")
    kinds = {"rule": "policy", "source": "signal"}
    for kind, what in kinds.items():
        titles = "\n".join(browser.texts(f"#plan-graph g.{kind} > title"))
        for text in HOSTILE:
            if "\x00" not in text:
                assert (text + what)[:200] in titles
        assert max(map(len, titles.split("\n"))) < 1000, "of a very long name the beginning"
        assert max(map(len, browser.texts(f"#plan-graph g.{kind} .name"))) <= 20
    boxes = browser.run("return [...document.querySelectorAll('#plan-graph g.node')].map((one) => one.getBBox().width)")
    assert max(boxes) <= 171, "no name leaves its box"
    assert browser.run("return document.querySelectorAll('#plan-graph :not(svg,g,path,rect,text,title)').length") == 0
    assert HOSTILE[0] + "hook" in browser.text("#plan-text")


# ---- many ------------------------------------------------------------------------------------------------------------


def test_a_page_that_stays_open_keeps_the_newest_items_of_each_kind_and_no_more(tmp_path: Path) -> None:
    begin: list[Any] = [
        events.RecordEvent(version=events.RECORD_VERSION),
        events.StartedEvent(job="j", size=1, command=("train.py",)),
    ]
    losses = [events.NotFiniteEvent(what="loss", step=step, value=math.nan) for step in range(1, MOST_ITEMS + 101)]
    lines = record_lines([*begin, *losses])
    record = tmp_path / "events.jsonl"
    record.write_text("".join(lines[: MOST_ITEMS + 2]))
    with page_of(tmp_path) as address, browsing(tmp_path / "profile") as browser:
        marked(browser, address)
        newest = "#failures-list > li:first-child"
        awaited(lambda: len(browser.texts("#failures-list > li")) == 10, what="ten failures", deadline_s=30)
        browser.get("#failures .more").click()
        assert browser.text("#failures .more") == "Show 10 only"
        browser.shows(newest, lambda text: f"step {MOST_ITEMS}" in text)
        with record.open("a") as file:
            file.write("".join(lines[MOST_ITEMS + 2 :]))
        browser.shows(newest, lambda text: f"step {MOST_ITEMS + 100}" in text)
        assert len(browser.texts("#failures-list > li")) == MOST_ITEMS
        assert browser.run("return window.isStillThere"), "without a reload"


# ---- the end of a run, a log, and several runs -----------------------------------------------------------------------


def recorded(folder: Path, *, is_failed: bool = False) -> None:
    """A run of 60 steps in which a policy has asked for a third peer, with the logs of two peers."""
    (folder / "peers").mkdir(parents=True)
    ending = (
        events.FailedEvent(peer=1, error=HOSTILE[1], code=1) if is_failed else events.EndedEvent(reason="it is over")
    )
    lines = record_lines([
        events.RecordEvent(version=events.RECORD_VERSION),
        events.StartedEvent(job="j", size=2, command=("python", "train.py", "--name", HOSTILE[0])),
        *(events.SpawnedEvent(peer=peer, pid=peer + 10) for peer in range(12)),
        events.ViewEvent(version=1, peers=tuple(range(12))),
        events.DecisionEvent(step=9, rule="gns_batch", saw={"noise_scale": 116.0}, size=12, asked=13, done="x"),
        ending,
    ])  # fmt: skip
    (folder / "events.jsonl").write_text("".join(lines))
    rows = [
        {"time": 100.0 + step, "step": step, "epoch": 0, "size": 12, "batch": 8, "loss": 1.0 / step, "rate": 0.125,
         "samples_per_s": 8.0} for step in range(1, 60)
    ]  # fmt: skip
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "peers" / "peer-3.log").write_text("".join(f"line {number} {HOSTILE[1]}\n" for number in range(150)))


def test_a_page_folds_what_is_long_opens_a_log_by_its_keyboard_and_tells_the_end(tmp_path: Path) -> None:
    recorded(tmp_path / "run", is_failed=True)
    with page_of(tmp_path / "run") as address, browsing(tmp_path / "profile") as browser:
        browser.look_at(WIDE)
        browser.open(address)
        browser.shows("#change", "newest change: step 9, gns_batch: 12 -> 13 peers (noise scale 116)")
        assert browser.text("#command") == f"python train.py --name '{HOSTILE[0]}'"
        ended = f"Failed after 15.0 s: {HOSTILE[1]}. The record is in {tmp_path / 'run'}; "
        browser.shows("#ending", lambda text: text.startswith(ended))
        assert browser.run("return document.querySelector('#ending').dataset.tone") == "bad"
        assert browser.text("#flat-names") == "1 signal with one value all the time: rate 0.125"
        assert len(browser.texts("#charts canvas")) == 3
        assert browser.texts(".marks") == ["peers joined or leftpeers were lostsize that was asked for"]
        browser.get("#flat-names").click()
        awaited(lambda: browser.texts("#flat-charts canvas"), what="the chart of a flat signal", deadline_s=30)
        assert len(browser.texts("#peers-body tr")) == 10
        browser.get('button[aria-controls="peers-body"]').send_keys(Keys.ENTER)
        assert len(browser.texts("#peers-body tr")) == 12
        browser.get('button[data-log="3"]').send_keys(Keys.ENTER)
        text = browser.shows("#log-text", lambda text: "line 149" in text)
        assert (text.count("\n"), text.startswith(f"line 50 {HOSTILE[1]}")) == (99, True)
        assert browser.focused == "log-text"
        assert browser.run("const log = document.querySelector('#log-text'); return log.scrollTop > 0")
        assert_in_order(browser)
        browser.get('button[data-log="5"]').click()
        browser.shows("#log-text", lambda text: "holds no log of peer 5" in text)
        browser.get("#log-close").send_keys(Keys.ENTER)
        assert browser.run("return document.activeElement.dataset.log") == "5"
        assert browser.run("return window.isHit ?? null") is None


def test_two_ticked_runs_are_compared_and_each_leads_to_its_page_and_back(tmp_path: Path) -> None:
    recorded(tmp_path / "runs" / "a")
    recorded(tmp_path / "runs" / HOSTILE[1].replace("/", ""), is_failed=True)
    with page_of(tmp_path / "runs") as address, browsing(tmp_path / "profile") as browser:
        browser.look_at(WIDE)
        browser.open(address)
        awaited(lambda: len(browser.texts("#runs-body tr")) == 2, what="two runs", deadline_s=60)
        assert not browser.get("#compare").is_enabled()
        for box in browser.driver.find_elements("css selector", "#runs-body input"):
            box.send_keys(Keys.SPACE)
        browser.get("#compare").click()
        awaited(lambda: browser.texts("#comparison-table td"), what="the figures", deadline_s=120)
        assert browser.run("return document.querySelector('#comparison-plot').naturalWidth") > 500
        assert_in_order(browser)
        browser.look_at(WIDE)
        browser.driver.find_element("link text", "a").click()
        browser.shows("#title", "a")
        browser.shows("#ending", lambda text: text.startswith("Finished after 15.0 s: it is over."))
        browser.driver.find_element("link text", "all runs").click()
        awaited(lambda: len(browser.texts("#runs-body tr")) == 2, what="the list again", deadline_s=60)
        assert browser.run("return window.isHit ?? null") is None
