"""What happened, as items of a page: each decision with its outcome, each change with its parts, each failure."""

from __future__ import annotations

import json
from typing import Any

from kungfu.cli.page.decision_feed import MOST_ITEMS, DecisionFeed
from kungfu.cli.page.run_model import as_text
from kungfu.event_log.job import Job
from tests.cli.recorded import FAILED, GROWN
from tests.event_log.made import KINDS, made

HOSTILE = "<img src=x onerror=alert(1)></script>\u2028\ud800"


class Items(DecisionFeed):
    """The items of a job that follows from the same events."""

    def __init__(self, *events: Any) -> None:
        super().__init__()
        self.job = Job()
        self.follow(*events)

    def follow(self, *events: Any) -> None:
        for event in events:
            self.job = self.job.after(event)
            self.add(event, self.job)


def of_kind(items: DecisionFeed, kind: str) -> list[dict[str, Any]]:
    return [item for item in items.all() if item["kind"] == kind]


def test_a_decision_has_what_it_saw_and_what_came_of_it() -> None:
    first, second = of_kind(Items(*GROWN), "decision")
    assert (first["rule"], first["step"], first["asked"]) == ("gns_batch", 50, "3 peers instead of 2")
    assert first["saw"] == [["noise scale", "50.7"], ["local batch size", "16"]]
    outcome = "3 peers after step 163; training stood still for 135 ms"
    assert (first["state"], first["outcome"]) == ("carried out", outcome)
    assert second["contest"] == ["gns_batch wanted 4, schedule wanted 2: schedule won"]


def test_a_change_has_its_parts_with_when_they_were() -> None:
    grown, shrunk = of_kind(Items(*GROWN), "change")
    assert (grown["before"], grown["after"], grown["stop_s"], grown["is_loss"]) == (2, 3, 0.134796, False)
    assert {part["name"]: part["phase"] for part in grown["parts"]} == {
        "ready": "beside", "spawn": "beside", "barrier": "stopped", "attach": "stopped", "state": "stopped",
        "first step": "after",
    }  # fmt: skip
    assert grown["details"][-1].endswith("the batch is now 48 samples")
    assert shrunk["headline"] == "step 301: 3 -> 2 peers; peer 2 left"
    lost = made(event="recovered", step=47, to=1, lost={"1": "killed by SIGKILL"}, parts={"regroup_s": 0.1})
    [recovery] = of_kind(Items(lost), "change")
    assert (recovery["is_loss"], recovery["cause"]) == (True, "loss of 1 peer")


def test_failures_are_told_with_their_cause_and_once() -> None:
    failures = [item["headline"] for item in of_kind(Items(*FAILED), "failure")]
    assert "this run failed: rank 1 (peer 1): killed by SIGKILL" in failures
    assert "peer 2 never got ready: peer 2: waited 300 s" in failures
    assert "peer 1 ended: killed by SIGKILL" in failures
    assert not any("peer 2 ended" in one for one in failures), "it was dismissed, which was told"


def test_settings_of_one_rule_are_one_item_until_something_else_happens() -> None:
    fields: dict[str, Any] = {"event": "set", "rule": "decay", "what": "learning rate", "unit": "steps"}
    items = Items(*(made(**fields, step=step, to=1 / step) for step in range(1, 11)))
    [run] = items.all()
    assert run["headline"] == "steps 1 to 10: decay sets the learning rate 10 times, from 1 to 0.100"
    items.follow(made(event="view", version=2, peers=[0]), made(**fields, step=11, to=0.05))
    assert [item["kind"] for item in items.all()] == ["setting", "event", "setting"]


def test_only_the_newest_items_of_a_kind_are_kept_and_others_stay() -> None:
    items = Items(GROWN[5], *(made(event="not finite", what="loss", step=step, value="NaN") for step in range(1000)))
    failures = of_kind(items, "failure")
    assert (len(failures), failures[-1]["step"]) == (MOST_ITEMS, 999)
    assert len(of_kind(items, "decision")) == 1
    assert len(items.changed()) == MOST_ITEMS + 1


def test_every_kind_of_event_can_be_told_and_hostile_texts_stay_texts() -> None:
    texts = dict.fromkeys(("rule", "reason", "error", "how", "name", "why"), HOSTILE)
    items = Items()
    for kind in KINDS:
        event = made(event=kind)
        fields = {name: text for name, text in texts.items() if isinstance(getattr(event, name, None), str)}
        items.follow(made(event=kind, **fields))
    text = as_text(items.all())
    assert text.isascii()
    assert "\n" not in text
    assert any(HOSTILE in item["headline"] for item in json.loads(text))


def test_a_decision_under_way_changes_when_it_is_carried_out_refused_or_superseded() -> None:
    items, other = Items(*GROWN[:6]), Items(*GROWN[:6])
    [open_] = items.changed()[-1:]
    assert (open_["state"], open_["outcome"]) == ("decided", "1 more is being prepared while training continues")
    assert not items.changed()
    items.follow(made(event="refused", rule="gns_batch", asked=3, size=2, reason="no host has a free slot"))
    closed, refused = items.changed()
    reason = "refused: no host has a free slot"
    assert (closed["id"], closed["state"], closed["outcome"]) == (open_["id"], "refused", reason)
    assert refused["headline"] == "refused: gns_batch wanted 3 peers"
    other.changed()
    other.follow(made(event="superseded", rule="gns_batch", step=50, asked=3, by="stop_on_nan", later=57))
    [closed] = other.changed()
    assert (closed["id"], closed["state"]) == (open_["id"], "superseded")
    assert closed["outcome"] == "nothing came of it, since stop_on_nan came after it, at step 57"
