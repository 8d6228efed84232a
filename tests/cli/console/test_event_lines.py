"""The lines of events while a job runs: settings in a row are told together, and nothing is lost or out of order."""

from __future__ import annotations

from kungfu.cli.console.event_lines import HOLD_S, EventLines
from kungfu.event_log.events import AnyEvent
from tests.event_log.made import made


def setting(step: int, *, rule: str = "decay", what: str = "learning rate") -> AnyEvent:
    return made(event="set", step=step, rule=rule, saw={}, what=what, to=1 / step, over=0.0, unit="steps")


class Screen:
    """What was told, and a clock that only the test moves."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.now = 0.0
        self.events = EventLines(self.lines.append, clock=lambda: self.now)

    def taken(self) -> list[str]:
        lines, self.lines[:] = [*self.lines], []
        return lines


def test_a_rule_that_sets_a_rate_in_every_step_is_told_once_and_then_in_one_line() -> None:
    screen = Screen()
    for step in range(1, 101):
        screen.events.event(setting(step))
    assert screen.taken() == ["step 1: decay sets the learning rate to 1"]
    screen.events.print_rest()
    assert screen.taken() == ["steps 2 to 100: decay sets the learning rate 99 times, from 0.500 to 0.0100"]
    screen.events.print_rest()
    assert screen.taken() == []


def test_what_is_held_is_told_before_the_next_event_and_the_run_begins_anew_after_it() -> None:
    screen = Screen()
    for step in (1, 2):
        screen.events.event(setting(step))
    screen.events.event(made(event="view", version=2, peers=[0, 1]))
    screen.events.event(setting(4))
    assert screen.taken() == [
        "step 1: decay sets the learning rate to 1",
        "step 2: decay sets the learning rate to 0.500",
        "view 2: 2 peers train",
        "step 4: decay sets the learning rate to 0.250",
    ]


def test_an_event_that_is_not_told_ends_no_run() -> None:
    screen = Screen()
    screen.events.event(setting(1))
    screen.events.event(made(event="spawned", peer=3, pid=7))
    screen.events.event(setting(2))
    assert screen.taken() == ["step 1: decay sets the learning rate to 1"]


def test_rules_that_set_things_by_turns_have_a_line_each() -> None:
    screen = Screen()
    for step in range(1, 5):
        screen.events.event(setting(step))
        screen.events.event(setting(step, rule="grow", what="global batch size"))
    assert len(screen.taken()) == 2
    screen.events.print_rest()
    assert screen.taken() == [
        "steps 2 to 4: decay sets the learning rate 3 times, from 0.500 to 0.250",
        "steps 2 to 4: grow sets the global batch size 3 times, from 0.500 to 0.250",
    ]


def test_settings_that_go_on_for_long_are_told_from_time_to_time() -> None:
    screen = Screen()
    screen.events.event(setting(1))
    screen.taken()
    screen.now = 100.0  # nothing is held yet, so nothing gets due
    screen.events.print_due()
    screen.events.event(setting(2))
    screen.now += HOLD_S / 2
    screen.events.event(setting(3))
    screen.events.print_due()
    assert screen.taken() == []
    screen.now += HOLD_S / 2
    screen.events.print_due()
    assert screen.taken() == ["steps 2 to 3: decay sets the learning rate 2 times, from 0.500 to 0.333"]
    screen.events.event(setting(4))
    assert screen.taken() == [], "the run goes on"


def test_the_end_of_training_is_told_at_once() -> None:
    screen = Screen()
    for step in (1, 2):
        screen.events.event(setting(step, what="stop"))
    assert screen.taken() == ["step 1: decay ends training", "step 2: decay ends training"]
