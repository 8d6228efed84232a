"""What a peer tells the journal, by hand: no graph, no peers, a clock that is set."""

from __future__ import annotations

from dataclasses import replace

import pytest
from msgspec import structs, to_builtins

from kungfu.compiler.fired import FiredRule
from kungfu.control import Call
from kungfu.control.hook import HookRequest
from kungfu.rule_requests import HookAnswer
from kungfu.runtime.core.barrier import BarrierResult, Decision, LossRecovery
from kungfu.runtime.core.next_membership import JoinerOffer
from kungfu.runtime.core.request import (
    Asked,
    Leave,
    Resize,
    SetAverageInterval,
    SetBatch,
    SetRate,
    SetValue,
    StopTraining,
    merge,
)
from kungfu.runtime.core.size_limits import Hold, SizeLimits
from kungfu.runtime.core.terms import Terms
from kungfu.runtime.core.view import Peer, View
from kungfu.training.telemetry.event_log_writer import EventLogWriter
from kungfu.training.telemetry.step_timer import Downtime

PEERS = tuple(Peer(number, f"host:{number}") for number in range(4))
TWO = Decision(View(1, PEERS[:2]), Terms(global_batch_size=64, batch_per_peer=32.0))
FOUR = Decision(View(2, PEERS), Terms(global_batch_size=128, batch_per_peer=32.0))
GROW = Asked(Resize(4, "local_batch_size"), "gns_batch", 50, inputs={"noise_scale": 130.0})
FIGURES = {"step": 61, "loss": 0.5}
PREPARING = replace(TWO, terms=replace(TWO.terms, target_size=4))
BOTH = replace(TWO, terms=replace(TWO.terms, target_size=4, leaving=(1,)))


def result(before, after, *requests, peer=0, **more):
    """The result of a barrier between two decisions, on this peer."""
    return BarrierResult(before, replace(after, requests=requests), peer, **more)


def event_log(*, rank=0, deciding=()):
    """A chronicle, what it recorded, and its clock's hands."""
    recorded, hands = [], [100.0]

    def record(stream, fields):
        recorded.append((stream, fields() if callable(fields) else fields))

    made = EventLogWriter(record, deciding=deciding, clock=lambda: hands[0])
    made.joined(BarrierResult(None, TWO, rank), step=40)
    return made, recorded, hands


def events(recorded):
    return [to_builtins(event) for stream, event in recorded if stream == "events"]


def growing():
    """The writer of a coordinator whose last barrier has decided to grow from two peers to four, and its records."""
    made, recorded, _ = event_log()
    made.passed(result(TWO, PREPARING, GROW), step=51, stop_s=0.1)
    return made, recorded


def grown():
    """The barrier at which two prepared peers come in."""
    offer = JoinerOffer(PEERS[2:], parts={"spawn": 2.0, "ready": 1.0})
    return result(TWO, FOUR, offer=offer, parts={"barrier": 0.01, "attach": 0.02, "state": 0.03})


def stops(*first_steps_s):
    """What a peer's pace tells of a loss: without a step after it, then with steps of so many seconds."""
    known = iter([Downtime(5.0, 0.25, None, 0.5), *(Downtime(5.0, 0.25, seconds, 0.5) for seconds in first_steps_s)])
    return lambda: next(known, Downtime(5.0, 0.25, 0.5, 0.5))


def test_the_coordinator_tells_which_rules_may_decide_and_a_joiner_does_not():
    _, recorded, _ = event_log(deciding=["gns_batch", "hook"])
    assert events(recorded) == [{"event": "rules", "step": 41, "rules": ("gns_batch", "hook")}]
    assert event_log(rank=1, deciding=["gns_batch"])[1] == []


def test_a_decision_is_told_with_what_it_saw_and_what_was_done():
    _, recorded = growing()
    (event,) = events(recorded)
    assert event == {
        "event": "decision",
        "step": 50,
        "rule": "gns_batch",
        "saw": {"noise_scale": 130.0},
        "size": 2,
        "asked": 4,
        "done": "2 more are being prepared while training continues",
    }


def test_a_decision_by_which_the_job_stays_as_it_is_is_told_as_such():
    writer, recorded, _ = event_log()
    writer.passed(result(TWO, replace(TWO, terms=replace(TWO.terms, refused_size=4)), GROW), step=51, stop_s=0.1)
    writer.passed(result(PREPARING, TWO, GROW), step=61, stop_s=0.1)  # the joiners are dismissed
    idle, withdrawn = (one for one in events(recorded) if one["event"] == "decision")
    assert (idle["done"], idle["has_no_effect"]) == ("4 is out of reach", True)
    assert (withdrawn["done"], "has_no_effect" in withdrawn) == ("2 peers on their way are dismissed", False)


def test_a_rescale_is_told_behind_the_first_step_of_the_new_view_with_all_its_parts():
    writer, recorded, hands = event_log()
    writer.passed(result(TWO, TWO, GROW), step=51, stop_s=0.1)
    writer.passed(grown(), step=60, stop_s=0.25)
    writer.stepped(FIGURES.copy)
    assert [event["event"] for event in events(recorded)] == ["decision"], "that step held the barrier"
    hands[0] += 0.5
    writer.stepped(FIGURES.copy)
    event = events(recorded)[1]
    assert (event["rule"], event["decided_at"], event["step"]) == ("gns_batch", 50, 60)
    assert (event["from"], event["to"], event["joined"], event["left"]) == (2, 4, (2, 3), ())
    assert (event["stop_s"], event["global_batch_size"]) == (0.25, 128)
    parts = {"spawn_s": 2.0, "ready_s": 1.0, "barrier_s": 0.01, "attach_s": 0.02, "state_s": 0.03}
    assert event["parts"] == {**parts, "first_step_s": 0.5}
    writer.stepped(FIGURES.copy)
    assert len(events(recorded)) == 2, "it is told once"


def test_a_rescale_behind_the_last_step_is_told_without_a_first_one():
    writer, recorded, _ = event_log()
    another_batch = replace(FOUR, terms=replace(FOUR.terms, base_batch=64, base_size=2))
    writer.passed(replace(grown(), after=another_batch), step=60, stop_s=0.25)
    writer.stepped(FIGURES.copy)
    writer.ended()
    writer.ended()
    (event,) = events(recorded)
    assert (event["event"], event["to"], "first_step_s" in event["parts"]) == ("rescale", 4, False)
    assert (event["base_global_batch_size"], event["base_size"]) == (64, 2), "from which rules choose"


def test_a_peer_for_whom_nobody_came_is_told_by_name_also_where_others_came():
    for ready in (0, 1):
        writer, recorded, _ = event_log()
        writer.passed(result(TWO, BOTH, GROW, SLOW), step=51, stop_s=0.1)
        after = replace(TWO, view=View(1 + ready, PEERS[: 2 + ready]), terms=replace(TWO.terms, refused_size=4))
        offer = JoinerOffer(PEERS[2 : 2 + ready], missing=(5, 6), reason="no host has a free slot")
        writer.passed(result(BOTH, after, offer=offer), step=60, stop_s=0.1)
        writer.passed(result(after, after), step=70, stop_s=0.1)
        (event,) = [one for one in events(recorded) if one["event"] == "refused"]
        assert (event["rule"], event["asked"], event["size"]) == ("gns_batch and slow", 4, 2 + ready)
        assert (event["reason"], event["peers"]) == ("no host has a free slot", (1,))


def test_an_older_offer_with_missing_peers_is_no_refusal_while_others_are_awaited():
    writer, recorded, _ = event_log()
    writer.passed(result(PREPARING, PREPARING, SLOW, offer=JoinerOffer(missing=(5, 6))), step=60, stop_s=0.1)
    assert [one["event"] for one in events(recorded)] == ["decision"]


HOOK = FiredRule(51, "hook", Call(print, ()), float("nan"), {"noise": 2.5})


def test_a_call_of_a_hook_is_told_with_all_that_it_asked_for():
    writer, recorded, _ = event_log()
    writer.called(HOOK, HookAnswer((HookRequest("rescale", 4), HookRequest("checkpoint")), 4, "too late"))
    (event,) = events(recorded)
    assert (event["event"], event["rule"], event["step"], event["saw"]) == ("called", "hook", 51, {"noise": 2.5})
    assert (event["asked"], list(event["also"]), event["ignored"]) == (4, ["checkpoint()"], "too late")


def test_only_rank_0_tells_and_a_peer_that_becomes_rank_0_goes_on_from_there():
    writer, recorded, _ = event_log(rank=1)
    writer.passed(result(TWO, TWO, GROW, peer=1), step=51, stop_s=0.1)
    writer.called(HOOK, HookAnswer((), None))
    writer.stepped(FIGURES.copy)
    assert recorded == []
    first = replace(FOUR, view=View(2, PEERS[1:]))
    writer.passed(replace(grown(), after=first, peer=1), step=60, stop_s=0.1)
    writer.stepped(FIGURES.copy)
    writer.stepped(FIGURES.copy)
    assert events(recorded)[0]["rule"] == "gns_batch"


def test_a_step_is_told_with_what_the_monitors_showed():
    writer, recorded, _ = event_log()
    writer.stepped(lambda: FIGURES | {"noise_scale": 12.5})
    ((stream, fields),) = recorded
    assert stream == "metrics"
    assert {name: fields[name] for name in ("step", "loss", "noise_scale")} == {**FIGURES, "noise_scale": 12.5}


def test_who_comes_after_a_loss_comes_for_the_lost_and_by_no_earlier_decision():
    writer, recorded, _ = event_log()
    writer.passed(result(TWO, FOUR, GROW), step=51, stop_s=0.1)
    writer.recovered(LOST, step=60, redone=0, stop=stops())
    writer.stepped(FIGURES.copy)
    writer.passed(grown(), step=80, stop_s=0.1)
    writer.stepped(FIGURES.copy)
    writer.stepped(FIGURES.copy)
    decision, undone, recovered, rescale = events(recorded)
    assert (decision["rule"], undone["event"], recovered["event"]) == ("gns_batch", "rescale", "recovered")
    assert (rescale["rule"], rescale["decided_at"]) == ("", None)


LOST = result(FOUR, TWO, recovery=LossRecovery({2: "killed", 3: "killed"}, "died", 0), parts={"regroup": 0.2})


def test_a_recovery_is_reported_behind_the_next_step_with_its_parts():
    writer, recorded, _ = event_log()
    writer.recovered(LOST, step=60, redone=1, stop=stops(0.75))
    assert events(recorded) == []
    writer.stepped(FIGURES.copy)
    (event,) = events(recorded)
    assert (event["event"], event["from"], event["to"], event["redone"]) == ("recovered", 4, 2, 1)
    assert {name: event[name] for name in ("stop_s", "noticed_s", "regrouped_s", "step_s")} == {
        "stop_s": 5.5, "noticed_s": 5.0, "regrouped_s": 0.25, "step_s": 0.5,
    }  # fmt: skip
    assert event["parts"] == {"regroup_s": 0.2, "first_step_s": 0.75}
    writer.stepped(FIGURES.copy)
    writer.ended()
    assert len(events(recorded)) == 1, "it is told once"


def test_a_change_of_membership_without_a_step_is_reported_with_the_next_one():
    writer, recorded, _ = event_log()
    writer.passed(grown(), step=60, stop_s=0.25)
    writer.stepped(FIGURES.copy)
    writer.recovered(LOST, step=60, redone=0, stop=stops())
    writer.recovered(replace(LOST, before=TWO), step=60, redone=0, stop=stops())
    assert [(event["event"], event["stop_s"]) for event in events(recorded)] == [("rescale", 0.25), ("recovered", 5.25)]
    assert events(recorded)[1]["parts"] == {"regroup_s": 0.2}
    writer.stepped(FIGURES.copy)
    assert [event["event"] for event in events(recorded)] == ["rescale", "recovered", "recovered"]


# ---- what several ask for, and what did not happen -------------------------------------------------------------------

SLOW = Asked(Leave((1,), "replaced", 2, "local_batch_size"), "slow", 50, inputs={"marked": 1.0})


def test_each_rule_of_a_request_is_reported_with_its_outcome():
    writer, recorded, _ = event_log()
    writer.passed(result(TWO, BOTH, GROW, SLOW), step=51, stop_s=0.1)
    found = [(event["rule"], event["saw"], event["done"]) for event in events(recorded)]
    assert found == [
        ("gns_batch", {"noise_scale": 130.0}, "2 more are being prepared while training continues"),
        ("slow", {"marked": 1.0}, "1 peer will be replaced; others are being prepared"),
    ]
    writer.passed(grown(), step=60, stop_s=0.25)
    writer.ended()
    assert events(recorded)[-1]["rule"] == "gns_batch and slow"


@pytest.mark.parametrize(
    ("what", "words"),
    [
        (SetBatch(64.0), "a global batch size of 64"),
        (SetRate(0.5), "a learning rate of 0.5"),
        (SetAverageInterval(16.0), "an average of models every 16 steps"),
        (SetValue("ema", [1]), "the value 'ema' to be [1]"),
    ],
)
def test_a_superseded_setting_is_recorded_and_told_in_its_own_words(what, words):
    writer, recorded, _ = event_log()
    writer.superseded([Asked(what, "hook", 50, superseded_by="batch")])
    ((_, event),) = recorded
    assert (event.asked, event.what, event.by) == (0, words, "batch")
    assert event.headline() == f"step 50: hook wanted {words}; nothing came of it, since batch came before it"


def test_a_request_of_a_broken_barrier_that_its_rule_has_made_anew_is_not_told():
    writer, recorded, _ = event_log()
    writer.superseded([replace(GROW, superseded_by=GROW.by)])
    assert events(recorded) == []
    writer.superseded([replace(GROW, superseded_by=GROW.by)], later=55)
    assert [event["later"] for event in events(recorded)] == [55]


def test_a_size_that_a_hook_asks_for_beside_the_end_of_training_is_told():
    writer, recorded, _ = event_log()
    end = replace(GROW, what=StopTraining())
    writer.set([end], step=end.step)
    writer.superseded(merge([GROW, end])[1:])
    assert [(one["event"], one["rule"]) for one in events(recorded)] == [("set", GROW.by), ("superseded", GROW.by)]


def test_what_was_superseded_is_told_by_rank_0():
    requests = [replace(GROW, by="hook", superseded_by="gns_batch")]
    for rank, expected in ((0, [("superseded", "hook", 4, "gns_batch")]), (1, [])):
        writer, recorded, _ = event_log(rank=rank)
        writer.superseded(requests)
        assert [(one["event"], one["rule"], one["asked"], one["by"]) for one in events(recorded)] == expected


def test_what_a_hold_has_stopped_is_told_by_rank_0_with_the_hold():
    leave = Asked(Leave((1,), "now", 1), "hook", 51)
    terms = replace(TWO.terms, sizes=SizeLimits(hold=Hold(2, until=1700000000.0), revision=1))
    for rank in (0, 1):
        writer, recorded, _ = event_log(rank=rank)
        writer.held(result(TWO, replace(TWO, terms=terms, held=(GROW, leave))))
        told = [(one["rule"], one["held"], one["until"], one["by"]) for one in events(recorded)]
        common = 2, 1700000000.0, "a person's hold"
        assert told == ([] if rank else [("gns_batch", *common), ("hook", *common)])
        assert [one["saw"] for one in events(recorded)[:1]] == ([] if rank else [{"noise_scale": 130.0}])


def test_what_was_under_way_is_told_when_something_else_takes_its_place():
    writer, recorded = growing()
    newer = Asked(Resize(1, "local_batch_size"), "kungfu resize 1", 55)
    one = replace(TWO, view=View(2, PEERS[:1]))
    writer.passed(result(PREPARING, one, newer), step=55, stop_s=0.1)
    first, second, third = events(recorded)
    assert (first["event"], third["event"], third["rule"]) == ("decision", "decision", "kungfu resize 1")
    assert (second["event"], second["rule"], second["by"]) == ("superseded", "gns_batch", "kungfu resize 1")


def test_the_end_of_training_takes_the_place_of_a_growth():
    writer, recorded = growing()
    writer.set([Asked(StopTraining(), "stop_on_nan", 57)], step=58)
    writer.passed(result(PREPARING, replace(TWO, terms=replace(TWO.terms, stopped=True))), step=58, stop_s=0.1)
    decision, ends, over = events(recorded)
    assert (decision["event"], ends["event"], over["event"]) == ("decision", "set", "superseded")
    assert (over["rule"], over["step"], over["by"], over["later"]) == ("gns_batch", 50, "stop_on_nan", 58)


def test_peers_that_leave_while_the_job_grows_leave_the_growth_its_decision():
    writer, recorded = growing()
    evict = Asked(Leave((1,), "now", 1, "local_batch_size"), "evict", 54)
    one = replace(TWO, view=View(2, PEERS[:1]), terms=replace(TWO.terms, target_size=3))
    writer.passed(result(PREPARING, one, evict), step=55, stop_s=0.1)
    three = replace(FOUR, view=View(3, (PEERS[0], *PEERS[2:])))
    writer.passed(result(one, three, offer=JoinerOffer(PEERS[2:])), step=60, stop_s=0.25)
    writer.ended()
    found = [(event["rule"], event["decided_at"]) for event in events(recorded) if event["event"] == "rescale"]
    assert found == [("evict", 54), ("gns_batch", 50)]
    assert "superseded" not in {event["event"] for event in events(recorded)}


def test_a_growth_keeps_its_decision_through_a_loss():
    writer, recorded = growing()
    alone = Decision(View(4, PEERS[:1]), replace(TWO.terms, target_size=4))
    lost = result(PREPARING, alone, recovery=LossRecovery({1: "killed"}, "died", 0))
    writer.recovered(lost, step=55, redone=0, stop=stops(0.5))
    writer.stepped(FIGURES.copy)
    four = Decision(View(5, (PEERS[0], *PEERS[2:], Peer(4, "host:4"))), FOUR.terms)
    writer.passed(result(alone, four, offer=JoinerOffer((*PEERS[2:], Peer(4, "host:4")))), step=60, stop_s=0.2)
    writer.ended()
    decision, recovered, rescale = events(recorded)
    assert (decision["event"], recovered["event"]) == ("decision", "recovered")
    assert (rescale["rule"], rescale["decided_at"], rescale["to"]) == ("gns_batch", 50, 4)


def test_a_growth_whose_joiners_were_lost_too_is_over_and_told():
    writer, recorded = growing()
    writer.recovered(result(PREPARING, TWO, recovery=LossRecovery({}, "died", 0)), step=55, redone=0, stop=stops())
    over = events(recorded)[-1]
    assert (over["event"], over["rule"], over["later"]) == ("superseded", "gns_batch", 55)
    assert over["by"] == "the loss of peers"


def test_what_goes_on_is_not_told_as_superseded():
    writer, recorded = growing()
    writer.passed(result(PREPARING, PREPARING, replace(GROW, by="kungfu resize 4", step=55)), step=55, stop_s=0.1)
    assert [event["event"] for event in events(recorded)] == ["decision", "decision"]


def test_a_replacement_for_a_growing_job_is_reported_with_the_growth():
    writer, recorded = growing()
    writer.passed(result(PREPARING, BOTH, SLOW), step=55, stop_s=0.1)
    three = replace(FOUR, view=View(2, (PEERS[0], *PEERS[2:])))
    writer.passed(result(BOTH, three, offer=JoinerOffer(PEERS[2:])), step=60, stop_s=0.25)
    writer.ended()
    *decisions, rescale = events(recorded)
    assert [one["event"] for one in decisions] == ["decision", "decision"], "nothing was superseded"
    assert (rescale["rule"], rescale["left"], rescale["joined"]) == ("gns_batch and slow", (1,), (2, 3))


def test_a_size_that_takes_the_place_of_another_one_leaves_the_exchange_as_it_is():
    writer, recorded, _ = event_log()
    writer.passed(result(TWO, BOTH, GROW, SLOW), step=51, stop_s=0.1)
    newer = replace(GROW, by="hook", what=Resize(3))
    smaller = replace(TWO, terms=replace(TWO.terms, target_size=3, leaving=(1,)))
    writer.passed(result(BOTH, smaller, newer), step=55, stop_s=0.1)
    found = [(event["rule"], event["by"]) for event in events(recorded) if event["event"] == "superseded"]
    assert found == [("gns_batch", "hook")]
    writer.passed(result(smaller, FOUR, offer=JoinerOffer(PEERS[2:])), step=60, stop_s=0.25)
    writer.ended()
    assert events(recorded)[-1]["rule"] == "slow and hook"


def test_a_change_with_another_in_its_first_step_is_reported_by_its_coordinator():
    writer, recorded, _ = event_log()
    writer.passed(grown(), step=60, stop_s=0.1)
    writer.stepped(FIGURES.copy)
    writer.passed(result(FOUR, TWO, peer=3), step=61, stop_s=0.1)
    (grew,) = [event for event in events(recorded) if event["event"] == "rescale"]
    assert (grew["step"], grew["from"], grew["to"]) == (60, 2, 4)
    assert "first_step_s" not in grew["parts"]


def measured(losses, *, first=41):
    """What is told of losses, one a step: the kind of event, the step, and the value or the step since when."""
    writer, recorded, _ = event_log()
    for step, loss in enumerate(losses, start=first):
        writer.measured(loss, step=step)
    return [(one["event"], one["step"], one.get("value", one.get("since"))) for one in events(recorded)]


def test_a_loss_that_is_no_number_is_reported_where_it_began_and_ended():
    nan, inf = float("nan"), float("inf")
    assert measured([0.5, 0.25]) == []
    assert measured([0.5, inf, inf, nan]) == [("not finite", 42, inf)]
    assert measured([inf, nan, 0.5, 0.25]) == [("not finite", 41, inf), ("finite again", 43, 41)]


def test_a_loss_that_is_no_number_by_turns_is_reported_once_in_a_hundred_steps():
    by_turns = measured([float("inf"), 0.5] * 500, first=1)
    assert len(by_turns) == 20
    assert by_turns[:3] == [("not finite", 1, float("inf")), ("finite again", 2, 1), ("not finite", 103, float("inf"))]
    stays = measured([float("inf"), 0.5] + [float("inf")] * 300, first=1)
    assert stays[2:] == [("not finite", 3, float("inf"))], "told at step 102"


def test_only_rank_0_tells_of_the_loss_and_who_becomes_it_tells_nothing_twice():
    writer, recorded, _ = event_log(rank=1)
    writer.measured(float("inf"), step=41)
    writer.recovered(LOST, step=41, redone=0, stop=stops())
    writer.measured(float("inf"), step=42)
    assert recorded == []
    writer.measured(0.5, step=43)
    assert [event["event"] for event in events(recorded)] == ["finite again"]


# ---- a batch and a rate that come with a size ------------------------------------------------------------------------

DECIDED = replace(GROW, what=Resize(4, "local_batch_size", batch=SetBatch(256.0), rate=SetRate(0.4, 10.0)))
WAITING = replace(PREPARING, terms=replace(PREPARING.terms, awaiting_size=DECIDED))
BOTH_SETTINGS = "a global batch size of 256 and a learning rate of 0.4"


def test_a_decision_about_a_size_is_told_with_its_batch_and_its_rate():
    writer, recorded, _ = event_log()
    writer.passed(result(TWO, WAITING, DECIDED), step=51, stop_s=0.1)
    (decision,) = events(recorded)
    assert (decision["asked"], decision["settings"]) == (4, BOTH_SETTINGS)
    assert decision["done"].endswith("while training continues; what else it asks for comes into force with them")


@pytest.mark.parametrize("ready", [0, 1])
def test_a_refusal_says_what_does_not_come_into_force(ready):
    writer, recorded, _ = event_log()
    writer.passed(result(TWO, WAITING, DECIDED), step=51, stop_s=0.1)
    after = replace(TWO, view=View(1 + ready, PEERS[: 2 + ready]), terms=replace(TWO.terms, refused_size=4))
    offer = JoinerOffer(PEERS[2 : 2 + ready], missing=(5, 6)[ready:], reason="no host has a free slot")
    writer.passed(result(WAITING, after, offer=offer), step=60, stop_s=0.1)
    (event,) = [one for one in events(recorded) if one["event"] == "refused"]
    assert (event["settings"], event["global_batch_size"]) == (BOTH_SETTINGS, TWO.terms.global_batch_size)


def test_a_batch_whose_size_was_missed_in_another_way_is_told():
    for target, told in ((4, []), (5, [BOTH_SETTINGS])):
        writer, recorded, _ = event_log()
        asked = replace(DECIDED, what=structs.replace(DECIDED.what, size=target))
        waiting = replace(PREPARING, terms=replace(PREPARING.terms, awaiting_size=asked))
        writer.passed(result(waiting, FOUR, offer=JoinerOffer(PEERS[2:])), step=60, stop_s=0.1)
        found = [one for one in events(recorded) if one["event"] == "superseded"]
        assert [one["what"] for one in found] == told
        assert [one["by"] for one in found] == ["a size of 4"] * len(told)


def test_a_setting_is_told_at_its_step_and_one_that_came_with_peers_at_theirs():
    writer, recorded, _ = event_log()
    for step in (51, 90):
        writer.set([Asked(SetBatch(256.0), "grow", 50)], step=step)
    assert [(one["step"], one.get("decided_at")) for one in events(recorded)] == [(50, None), (90, 50)]
