"""A peer without TensorFlow: holds barriers with a state of one number and an all-reduce that nobody calls.

The job grows from 2 to 3 peers and shrinks to 2 again. The argument says what goes wrong on the way: ``nothing``,
``member is wrong``, ``member exits``, ``script fails``, ``waits``; or that the joiner has another model, ``joiner
differs``.
"""

from __future__ import annotations

import signal
import sys
import threading
import time

from kungfu.errors import UsageError
from kungfu.runtime.core.barrier import BarrierResult
from kungfu.runtime.core.program_identity import Description, ProgramPart
from kungfu.runtime.core.request import Asked, Resize
from kungfu.runtime.core.terms import Terms
from kungfu.runtime.peer.exit_report import ExitReport
from kungfu.runtime.peer.membership import JobMembership
from kungfu.runtime.settings import Settings, read_settings
from tests.runtime.peer.held import Numbers
from tests.runtime.peer.running import Socket


class State(Numbers):
    """How many barriers this job has held."""

    def __init__(self) -> None:
        super().__init__([0])

    @property
    def barriers(self) -> int:
        return int(self.variables[0][0])

    def count(self) -> None:
        self.variables[0] += 1


def main(mishap: str) -> None:
    settings = read_settings()
    assert settings is not None
    state, offered = State(), threading.Event()
    ExitReport(settings, steps=lambda: state.barriers)
    membership = JobMembership(settings, attachment=Socket(), on_offer=offered.set)
    unlike = (mishap, settings.peer) == ("joiner differs", 2)
    description = Description((ProgramPart.of("model", f"kernel (2, {3 if unlike else 2})"),))
    result = membership.join(state, description=description, machine=f"{4 if unlike else 2} threads")
    terms = result.after.terms if result.after.terms.batch_per_peer else Terms(64, 32.0)
    print(f"joined a view of {result.after.view.size}", flush=True)
    if mishap == "waits":
        signal.pause()
    train(membership, state, terms, offered, mishap=mishap, settings=settings)
    if mishap == "script fails" and settings.peer == 0:
        raise ValueError("cannot save the model")


def train(
    membership: JobMembership, state: State, terms: Terms, offered: threading.Event, *, mishap: str, settings: Settings
) -> None:
    """Barriers until the job has grown and shrunk again, or its growth was refused."""
    size = 3 if state.barriers else 2
    while True:
        state.count()
        if mishap == "member is wrong" and settings.peer == 1 and state.barriers == 2:
            raise UsageError("a file of this peer is missing")
        if mishap == "member exits" and settings.peer == 1 and state.barriers == 2:
            sys.exit(7)
        if terms.target_size and settings.peer == 0:
            until = time.monotonic() + 120.0
            while not offered.wait(0.05) and membership.lasting_failure() is None:  # the followers wait in the barrier
                assert time.monotonic() < until
        result = membership.hold_barrier(state, terms, requests=requests_of(state, size))
        terms, before, size = result.after.terms, size, result.after.view.size
        if result.rank is None:
            return membership.finish({"steps": state.barriers, "traces": 0}, leaving=True)
        if is_over(result, before):
            membership.final_barrier(state, terms)
            return membership.finish({"steps": state.barriers, "traces": 0}, leaving=False)


def requests_of(state: State, size: int) -> tuple[Asked, ...]:
    target = 3 if state.barriers == 1 else 2 if size == 3 else None
    if target is None:
        return ()
    return (Asked(Resize(target, "local_batch_size"), "there and back", state.barriers),)


def is_over(result: BarrierResult, before: int) -> bool:
    return result.after.view.size < before or result.after.terms.refused_size > 0


if __name__ == "__main__":
    main(sys.argv[1])
