"""The narrative of a run: everything that a person asks of it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from kungfu.cli.report.narrative import changes, decision_words, narrative, paces, waiting_words
from kungfu.event_log.events import AnyEvent
from kungfu.event_log.job import fold
from tests.cli.recorded import FAILED, GROWN, Events
from tests.event_log.made import made


def told(events: Events) -> str:
    return "\n".join(line for one in narrative(events) for line in (one.headline, *one.details))


def test_a_decision_is_told_with_its_step_rule_what_it_saw_and_what_was_done() -> None:
    decision = narrative([GROWN[0], GROWN[5]])[1]
    assert (decision.at_s, decision.headline) == (10.0, "step 50: gns_batch wants 3 peers instead of 2")
    done = "done: 1 more is being prepared while training continues"
    assert decision.details == ("it saw: noise scale 50.7, local batch size 16", done)
    odd = replace(GROWN[5], saw={"noise_scale": math.nan, "busy": "-Infinity"})
    assert narrative([GROWN[0], odd])[1].details == ("it saw: noise scale NaN, busy -Infinity", done)


def test_a_rescale_is_told_with_every_part_in_its_phase() -> None:
    rescale = next(one for one in narrative(GROWN) if "2 -> 3" in one.headline)
    assert rescale.headline == "step 163: 2 -> 3 peers; peer 2 joined"
    assert rescale.details == (
        "as gns_batch decided at step 50, 113 steps before",
        "made ready while training continued: spawn 4.6 s, ready 680 ms",
        "training stood still for 135 ms (barrier 34 ms, attach 12 ms, state 24 ms)",
        "the first step after it took 46 ms; the batch is now 48 samples",
    )


def test_a_combined_rule_says_which_policy_won_and_lists_no_request_twice() -> None:
    decision = next(one for one in narrative(GROWN) if "step 300" in one.headline)
    assert decision.details == (
        "it saw: noise scale 83.1",
        "gns_batch wanted 4, schedule wanted 2: schedule won",
        "done: 1 peer leaves at once",
    )


def test_the_end_sums_up_the_rescales_and_for_how_long_training_stood_still() -> None:
    end = narrative(GROWN)[-1]
    assert end.headline == "in all 20.0 s of training"
    assert end.details == (
        "2 rescales, for which training stood still for 200 ms (1 % of it)",
        "2 peers trained to the end: 479 steps, 1 trace per peer",
    )


def test_a_failure_comes_first_with_its_peer_its_log_and_the_exit_code() -> None:
    top = narrative(FAILED)[0]
    assert top.headline == "this run failed: rank 1 (peer 1): killed by SIGKILL"
    assert top.details == ("what it printed is in peers/peer-1.log", "the job's exit code is 1")


def test_refusals_hooks_dissent_and_deaths_are_told_and_an_expected_death_is_not() -> None:
    story = told(FAILED)
    assert "peer 2 was dismissed: waited 300 s for peer 2 to get ready" in story
    assert "refused: grow wanted 3 peers" in story
    assert "the hook hook was called; it wants no change of size" in story
    assert "it was given: loss -" in story
    assert "rank 0 grow asks for 3, rank 1 nothing" in story
    assert "peer 1 ended: killed by SIGKILL" in story
    assert "peer 2 ended" not in story


def test_a_growth_that_still_waits_for_joiners_says_so_at_the_end() -> None:
    waits = "still waits for joiners: gns_batch wanted 3 peers instead of 2 at step 50"
    assert waits in narrative(GROWN[:6])[-1].details
    assert waits not in narrative([*GROWN[:6], GROWN[7]])[-1].details


def test_a_rule_that_asks_anew_is_told_by_its_later_decision_alone() -> None:
    over = {"event": "superseded", "rule": "gns_batch", "step": 50, "asked": 3}
    anew, other = made(**over, by="gns_batch", later=60), made(**over, by="schedule", later=60)
    told_of = [[one.headline for one in narrative([*GROWN[:6], event])] for event in (anew, other)]
    line = "step 50: gns_batch wanted 3 peers; nothing came of it, since schedule came after it, at step 60"
    assert not any("nothing came of it" in one for one in told_of[0])
    assert line in told_of[1]
    assert (anew.one_line(), other.one_line()) == ("", line)
    waits = "still waits for joiners: gns_batch wanted 3 peers instead of 2 at step 50"
    assert waits not in narrative([*GROWN[:6], anew])[-1].details, "it counts all the same"


def test_a_job_that_runs_says_so_and_for_how_long_it_has_trained() -> None:
    """A peer that has left before is no end of training, and counts to no end."""
    end = narrative(GROWN[:13], now=167.3)[-1]
    assert end.headline == "the job runs: 2 peers train, for 1 min 0 s so far"
    assert end.details == ("2 rescales, for which training stood still for 200 ms (0.33 % of it)",)
    assert narrative(GROWN[:13])[-1].headline == "in all 13.7 s of training"
    assert narrative(GROWN[:3], now=105.0)[-1].headline == "the job runs, and gets ready to train"
    over = narrative(GROWN[:15], now=150.0)[-1].headline
    assert over == "the job runs: its training is over after 20.0 s, and its program continues"
    assert narrative(GROWN, now=150.0)[-1].headline == "in all 20.0 s of training", "it has said how it ended"


def test_a_joiner_that_was_late_is_told_at_the_end_with_the_rule_that_asked_for_it() -> None:
    def end_of(events: Events) -> tuple[str, ...]:
        return narrative(events)[-1].details

    growing = [*GROWN[:6], made(time=112.0, event="spawned", peer=3, pid=9)]
    over = [made(event="finished", peer=peer, steps=99) for peer in (0, 1)]
    gone = [made(event="dismissed", peer=peer, reason="no peer that trains is left") for peer in (2, 3)]
    ended = [*over, *gone, made(event="ended", reason="training is over")]
    asked = "gns_batch asked for 3 peers at step 50; "
    assert f"{asked}peers 2 and 3 were not ready when training ended" in end_of([*growing, *ended])
    ready = made(event="offered", peers=[2])
    assert f"{asked}peer 2 was ready too late to join when training ended" in end_of([*growing, ready, *ended])
    assert "asked for" not in " ".join(end_of([*growing, *over])), "it may train again"
    again = made(event="phase", phase=2, view=2, peers=[0, 1])
    joined = [again, made(event="view", version=2, peers=[0, 1, 2, 3]), *ended]
    assert "not ready" not in " ".join(end_of([*growing, *over, *joined]))


def test_a_view_of_the_same_peers_is_told_by_the_phase_alone() -> None:
    again = [made(event="phase", phase=2, view=2, peers=[0, 1]), made(event="view", version=2, peers=[0, 1])]
    told = [one.headline for one in narrative([*GROWN[:4], *again])]
    assert "phase 2 of the program: 2 peers are ready to train again" in told
    assert not any(one.startswith("view 2") for one in told)


def test_peers_that_train_a_second_time_are_counted_once() -> None:
    def through(time: float, phase: int) -> Events:
        return [made(time=time, event="finished", peer=peer, phase=phase, steps=9 * phase) for peer in (0, 1)]

    events = [made(time=1.0, event="view", version=1, peers=[0, 1]), *through(5.0, 1)]
    again = [*events, made(time=6.0, event="phase", phase=2, view=1, peers=[0, 1])]
    assert narrative(again, now=8.0)[-1].headline == "the job runs: 2 peers train, for 7.0 s so far"
    assert narrative([*again, *through(9.0, 2)])[-1].details[1].startswith("2 peers trained to the end: 18 steps")


def test_peers_in_place_of_lost_ones_are_no_rescale_and_a_loss_is_a_stop() -> None:
    replaced = made(time=14.0, event="rescale", decided_at=None, joined=[2], stop_s=0.1)
    grown = [made(time=15.0 + nth, event="rescale", rule="grow", decided_at=nth, joined=[3 + nth]) for nth in range(3)]
    took = {"count": 5, "p50": 0.021, "p90": 0.025, "p99": 0.04, "max": 1.25}
    end = made(time=19.0, event="finished", peer=0, steps=479, stop_s=took)
    conclusion = narrative([*LOSS, replaced, *grown, end])[-1].details
    assert conclusion[0].startswith("3 rescales and 1 recovery, for which training stood still for 350 ms")
    assert "a stop took 21 ms (median), 25 ms (90 %), 40 ms (99 %), at most 1.2 s; 5 counted" in conclusion
    assert changes(fold([replaced])) == "1 rescale", "nothing says that a peer was lost"


def test_the_paces_are_those_of_the_peer_with_the_most_steps() -> None:
    took = {"count": 478, "p50": 0.021, "p90": 0.025, "p99": 0.04, "max": 1.25}
    less = {"count": 2, "p50": 9.0, "p90": 9.0, "p99": 9.0, "max": 9.0}
    events = [
        made(time=1.0, event="finished", peer=2, leaving=True, steps=3, step_s=less),
        made(time=2.0, event="finished", peer=0, steps=479, step_s=took, stop_s={"count": 0}),
    ]
    told = "a step took 21 ms (median), 25 ms (90 %), 40 ms (99 %), at most 1.2 s; 478 counted"
    assert paces(fold(events)) == [told]
    assert told in narrative(events)[-1].details
    assert paces(fold([made(event="finished", steps=3)])) == paces(fold([])) == []


LOSS = tuple(made(**fields) for fields in (
    {"time": 10.0, "event": "view", "version": 1, "peers": [0, 1]},
    {"time": 12.0, "event": "peer ended", "peer": 1, "how": "exit code 1"},
    {"time": 12.0, "event": "lost", "peer": 1, "rank": 1, "how": "exit code 1", "error": "ValueError: wrong"},
    {
        "time": 12.5, "event": "recovered", "step": 47, "from": 2, "to": 1, "lost": {"1": "exit code 1"},
        "state_of": 0, "redone": 1, "target": 2, "global_batch_size": 12, "stop_s": 0.25, "parts": {"regroup_s": 0.2},
    },
    {"time": 20.0, "event": "offered", "peers": [2]},
))  # fmt: skip


def test_a_loss_and_what_followed_are_told_once_each_and_counted() -> None:
    _, lost, continued, total = narrative(LOSS)
    assert lost.headline == "rank 1 (peer 1) is lost: exit code 1"
    assert lost.details == ("its last error: ValueError: wrong", "what it printed is in peers/peer-1.log")
    assert continued.headline == "step 47: training continues with 1 peer of 2; the batch stays at 12 samples"
    assert "1 step of rank 0 will be redone: the state is that of peer 0" in told(LOSS)
    stood = "for which training stood still for 250 ms (2.5 % of it)"
    assert total.details[0] == f"0 rescales and 1 recovery, {stood}"


def test_the_report_says_what_a_full_disk_kept_from_the_record() -> None:
    """The report says where it happened, and at the end, what a full disk kept from the record."""
    full = {"event": "gap", "from": 112.0, "to": 114.0, "error": "No space left on device"}
    lacking = [made(**full, time=114.0, file="events.jsonl", lines=2), made(**full, file="metrics.jsonl")]
    story = told([*GROWN[:6], *lacking, *GROWN[6:]])
    assert "events.jsonl lacks 2 lines of 2.0 s, which could not be written (No space left on device)" in story
    assert story.endswith("2 events could not be written down, and what happened there is not counted")


def test_a_loss_that_is_no_number_is_reported_where_it_began() -> None:
    """A loss that is no number is reported where it began, and at the end if it stayed so."""
    began = made(time=111.0, event="not finite", what="loss", step=41, value="NaN")
    again = made(time=112.0, event="finite again", what="loss", step=45, since=41)
    story = told([*GROWN[:6], began, *GROWN[6:]])
    assert "step 41: the loss is NaN" in story
    assert story.endswith("the loss is no number since step 41, where it became NaN")
    story = told([*GROWN[:6], began, again, *GROWN[6:]])
    assert "step 45: the loss is a number again, for the first time since step 41" in story
    assert "the loss is no number since" not in story


# ---- settings that are changed again and again -----------------------------------------------------------------------


def setting(step: int, to: float | None, *, rule: str = "decay", what: str = "learning rate") -> AnyEvent:
    return made(time=float(step), event="set", step=step, rule=rule, saw={"loss": to}, what=what, to=to)


def test_consecutive_settings_of_one_rule_are_one_line() -> None:
    """A run of settings of one rule is one line, which ends where something else is reported."""
    batch = [setting(step, 8.0 * step, rule="batches", what="global batch size") for step in (3, 5)]
    before = [setting(step, 1 / 2**step) for step in range(1, 5)]
    events = [*before, *batch, made(time=6.0, event="view", version=2, peers=[0]), setting(7, 0.5)]
    stop = setting(8, None, what="stop")
    lines = [(one.headline, one.details) for one in narrative([*events, stop])[:-1]]
    assert lines == [
        ("steps 1 to 4: decay sets the learning rate 4 times, from 0.500 to 0.0625", ("at last it saw: loss 0.0625",)),
        ("steps 3 to 5: batches sets the global batch size 2 times, from 24 to 40", ("at last it saw: loss 40",)),
        ("view 2 is in force, 1 peer: peer 0", ()),
        ("step 7: decay sets the learning rate to 0.500", ("it saw: loss 0.500",)),
        ("step 8: decay ends training", ("it saw: loss -",)),
    ]


def test_a_checkpoint_says_how_long_it_took_and_that_training_went_on_without_one() -> None:
    kept = made(time=8.0, event="checkpoint", step=40, bytes=999, seconds=0.25, stop_s=0.002)
    first, second, *_ = narrative([kept, made(event="checkpoint", step=41, error="No space left", seconds=0.1)])
    assert first.details == ("rank 0 held the others for 2 ms, and wrote for 250 ms while all trained on",)
    assert second.details == ("training continued without it; what was there before is as it was",)


def test_a_record_without_an_end_or_a_training_says_so() -> None:
    assert "still running, or its agent was killed" in told(GROWN[:5])
    assert "still running" not in told(GROWN) + told(FAILED)
    assert narrative(GROWN[:1])[-1].headline == "training never began"


# ---- the present of a job --------------------------------------------------------------------------------------------

RECOVERED = {"event": "recovered", "step": 47, "from": 3, "to": 2, "lost": {"1": "killed"}, "stop_s": 11.8}
CAME = {"event": "rescale", "step": 1319, "from": 1, "to": 2, "joined": [2], "stop_s": 0.04}
SAW = "(noise scale 50.7, local batch size 16)"


@pytest.mark.parametrize(
    ("events", "words"),
    [
        ([GROWN[5]], f"step 50, gns_batch: 2 -> 3 peers, under way {SAW}"),
        ([GROWN[5], GROWN[-1]], f"step 50, gns_batch: 2 -> 3 peers {SAW}"),
        (GROWN[5:8], f"step 163, gns_batch: 2 -> 3 peers, stood still for 135 ms {SAW}"),
        (GROWN[:12], "step 301, at_most(gns_batch, schedule): 3 -> 2 peers, stood still for 65 ms (noise scale 83.1)"),
        ([GROWN[5], made(event="refused", rule="gns_batch", asked=3, reason="x")], f"gns_batch: 3 peers refused {SAW}"),
        ([FAILED[5]], "grow: 3 peers refused"),
        ([made(event="decision", step=9, rule="cap", saw={}, size=2, asked=2)], "step 9, cap: stays at 2 peers"),
        (
            [made(event="decision", step=9, rule="swap", saw={}, size=2, asked=2, done="", when="replaced", peers=[1])],
            "step 9, swap: peer 1 replaced, under way",
        ),
        ([made(event="regrouping")], ""),
        ([made(**RECOVERED)], "step 47, after the loss of 1 peer: 3 -> 2 peers, stood still for 11.8 s"),
        ([made(**CAME)], "step 1,319, in place of lost peers: 1 -> 2 peers, stood still for 40 ms"),
    ],
)
def test_the_newest_change_is_told_with_what_the_rule_behind_it_saw(events: Sequence[AnyEvent], words: str) -> None:
    assert decision_words(fold(events)) == words


def waits(*events: dict[str, Any]) -> str:
    begun = ({"event": "spawned", "peer": 0, "pid": 1}, {"event": "view", "version": 1, "peers": [0]})
    return waiting_words(fold(made(time=float(time), **one) for time, one in enumerate((*begun, *events))), now=43.0)


def test_a_job_waits_for_joiners_and_replacements_and_at_its_end_for_nobody() -> None:
    spawned = [{"event": "spawned", "peer": peer, "pid": 9} for peer in (1, 2, 3)]
    assert waits() == ""
    assert waits(*spawned) == "3 starting for 40 s"
    ready = (*spawned, {"event": "offered", "peers": [2]})
    assert waits(*ready) == "2 starting for 40 s, 1 ready for 40 s"
    assert waits(*ready, {"event": "view", "version": 2, "peers": [0, 1, 2]}) == "1 starting for 40 s"
    assert waits(*ready, {"event": "ended", "reason": "training is over"}) == ""
    lost = {"event": "regrouping", "version": 2, "peers": [0], "target": 3}
    assert waits(lost) == "2 replacements to come"
    assert waits(lost, spawned[0]) == "1 starting for 40 s, 1 replacement to come"
    assert waits(lost, {"event": "missing", "peers": [1], "reason": "x"}) == ""
