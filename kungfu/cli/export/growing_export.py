"""Exports a growing record batch by batch: what cannot be written is retried, so that nothing is left out.

While writing fails, no more of the record is read. Memory is therefore bounded, whatever the length of the outage.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeVar

from kungfu.event_log.record_follower import NewRecords, RecordFollower

# Peers report their steps every two seconds.
LOOK_EVERY_S = 1.0
T = TypeVar("T")


def export_growing(
    record: Path,
    made_of: Callable[[NewRecords], Iterable[T]],
    write: Callable[[T], None],
    *,
    target: str,
    later: str,
    is_over: Callable[[float], bool],
    report: Callable[[str], None],
) -> bool:
    """Exports a record, including lines that are added later, until the run is over.

    Args:
        made_of: Makes the batches of new lines of the record.
        write: Writes a batch whole or not at all; raises ``OSError`` if the batch must be retried.
        target: The name of the destination in remarks.
        later: The command that exports the whole record after the run.
        is_over: Waits up to the given seconds for the end of the run, and returns True at the end.
        report: Called with a remark when writing fails, and when writing succeeds again.

    Returns:
        True if everything was written.

    Raises:
        UsageError: The record is of another version, or cannot be read.
    """
    follower, pending = RecordFollower(record), deque[T]()
    is_reported = ending = False
    while True:
        # Batches that could not be written before are written before new ones.
        if not pending:
            pending.extend(made_of(follower.read()))
        try:
            while pending:
                write(pending[0])
                pending.popleft()
                if is_reported:
                    report(f"{target} can be written again: what was missing is there now")
                    is_reported = False
        except OSError as error:
            if not is_reported:
                report(f"{target} cannot be written ({error.strerror}); training continues, and it is retried")
            is_reported = True
        if follower.has_more and not pending:
            continue
        # The run is over, and writing its whole record was tried.
        if ending:
            break
        ending = is_over(LOOK_EVERY_S)
    if is_reported:
        report(f"{target} lacks the end of the run, which could not be written; {later} writes it")
    if follower.damaged:
        report(f"{follower.damaged} damaged lines of {record} were left out")
    return not is_reported
