"""Converts the record of a run to TensorBoard's summaries: scalars of steps, markers and texts of events.

Each line of the metrics becomes one TensorBoard event with all its numbers. Long runs are thinned out (see
`is_kept`): TensorBoard shows some thousand points per curve, and event files should stay small.

| tags | values |
| --- | --- |
| ``job/NAME`` | the numbers of every step, under the names of ``metrics.jsonl``, and ``step_s`` |
| ``signals/NAME`` | the named signals of the policies |
| ``straggler_fractions/peer_N`` | the speed of a peer as a fraction of the median peer's |
| ``markers/KIND`` | a point at the step of a decision or a change: the size that was requested or reached |
| ``settings/NAME`` | a point at each step in which a rule changed a setting: the new value |
| ``rescale/PART_s``, ``recovery/PART_s``, ``checkpoint/...`` | the durations of the parts of a change |
| ``events/KIND`` | the events as texts, in the words of ``kungfu why`` |
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.plugins.text.metadata import create_summary_metadata
from tensorboard.util.tensor_util import make_tensor_proto

from kungfu.event_log.events import LoggedEvent
from kungfu.event_log.job import FIGURES_OF_JOB
from kungfu.event_log.logged_event import Topic
from kungfu.event_log.numbers import as_float, as_whole, step_seconds
from kungfu.event_log.record_follower import NewRecords

Scalars = dict[str, float]

# Every step is written up to this one, then every 10th, from ten times this step every 100th, and so on.
_ALL_STEPS = 10_000
# The texts of these topics have separate tags; all other topics share the tag of the job.
_TEXTS: Mapping[Topic, str] = {
    **dict.fromkeys(("decision", "call", "superseded", "refusal"), "decisions"),
    "setting": "settings", "shadow": "shadow", "held back": "held back", "rescale": "rescales",
    "recovery": "recoveries", "request": "requests", "checkpoint": "checkpoints", "view": "views",
}  # fmt: skip


def is_kept(step: int) -> bool:
    """True if the numbers of a step are written: every step up to 10,000, then every 10th up to 100,000, and so on.

    >>> [is_kept(step) for step in (9_999, 10_001, 10_010, 100_010, 100_100)]
    [True, False, True, False, True]
    """
    every = 1
    while step > _ALL_STEPS * every:
        every *= 10
    return step % every == 0


class SummaryMaker:
    """Makes TensorBoard events from the record, in its order.

    An event that names no step gets the newest known step.
    """

    def __init__(self) -> None:
        self._step = 0

    def made_of(self, new: NewRecords) -> Iterator[Event]:
        """The TensorBoard events for new lines of the record."""
        for row in new.rows:
            if (one := self._of_row(row)) is not None:
                yield one
        for event in new.events:
            yield from self._of_event(event)

    def _of_row(self, row: Mapping[str, Any]) -> Event | None:
        step, time = as_whole(row.get("step")), as_float(row.get("time"))
        # A line that lacks required fields, such as one from a damaged disk.
        if step is None or not 0 <= step < 1 << 62 or time is None:
            return None
        self._step = step
        return _event(time, step, _scalars(_numbers(row))) if is_kept(step) else None

    def _of_event(self, event: LoggedEvent) -> Iterator[Event]:
        self._step = max(self._step, getattr(event, "step", 0))
        step, time = getattr(event, "step", self._step), event.time or 0.0
        if numbers := event.markers():
            yield _event(time, step, _scalars(numbers))
        if text := _text(event):
            yield _event(time, step, [_text_value(f"events/{_TEXTS.get(event.topic, 'job')}", text)])


# ---- numbers ---------------------------------------------------------------------------------------------------------


def _numbers(row: Mapping[str, Any]) -> Scalars:
    """The numbers of a step by tag, including NaN and infinities; unknown values are absent."""
    numbers: Scalars = {}
    for name, value in row.items():
        number = None if name in ("time", "step") else as_float(value)
        if number is not None:
            group = "job" if name in FIGURES_OF_JOB or name == "learning_rate" else "signals"
            numbers[f"{group}/{name}"] = number
    if (seconds := step_seconds(row)) is not None:
        numbers["job/step_s"] = seconds
    fractions = row.get("straggler_fractions")
    for peer, value in fractions.items() if isinstance(fractions, Mapping) else ():
        if (speed := as_float(value)) is not None:
            numbers[f"straggler_fractions/peer_{peer}"] = speed
    return numbers


# ---- texts -----------------------------------------------------------------------------------------------------------


def _text(event: LoggedEvent) -> str:
    """An event in the words of ``kungfu why``; empty for an event without a line there."""
    if event.topic in ("rescale", "recovery"):
        return "\n".join([event.headline(), *(f"- {one}" for one in event.details())])
    return event.one_line()


def _text_value(tag: str, text: str) -> Summary.Value:
    """A text as a code block for TensorBoard, which then does not interpret Markdown or HTML in names."""
    block = "".join(f"    {line}\n" for line in text.splitlines())
    metadata = create_summary_metadata(display_name=None, description=None)
    return Summary.Value(tag=tag, metadata=metadata, tensor=make_tensor_proto([block.encode("utf-8", "replace")]))


def _scalars(numbers: Mapping[str, float]) -> Iterable[Summary.Value]:
    return [Summary.Value(tag=_utf8(tag), simple_value=value) for tag, value in numbers.items()]


def _utf8(name: str) -> str:
    """A name that a protocol buffer can hold: JSON may contain lone surrogates."""
    return name.encode("utf-8", "replace").decode()


def _event(time: float, step: int, values: Iterable[Summary.Value]) -> Event:
    return Event(wall_time=time, step=step, summary=Summary(value=values))
