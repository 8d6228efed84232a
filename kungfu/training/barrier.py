"""The host's side of a barrier: what the rules left in the ledger becomes a wish, and the passage becomes variables."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import tensorflow as tf

from kungfu.compiler import Plan
from kungfu.control import Call, Rescale
from kungfu.control.hook import Control
from kungfu.runtime.attachment.protocol import Attachment
from kungfu.runtime.deciding.decide import Terms, Wish
from kungfu.runtime.peer.alone import Alone
from kungfu.runtime.peer.membership import Membership, Passage
from kungfu.training.chronicle import Chronicle
from kungfu.training.graph.ledger import Ledger
from kungfu.training.graph.state import TrainingState

__all__ = ["Barrier", "Equipment"]


@dataclass(frozen=True)
class Equipment:
    """What a barrier works with."""

    ledger: Ledger
    plan: Plan
    state: TrainingState
    attachment: Attachment
    membership: Membership | Alone


@dataclass
class Barrier:
    """Held by all peers of a view together, from inside the graph; also how a peer comes in and goes out."""

    equipment: Equipment
    chronicle: Chronicle
    terms: Terms = field(default_factory=Terms)
    rank: int | None = 0
    size: int = 1

    def join(self, first_terms: Callable[[int], Terms]) -> None:
        """Enters the job. ``first_terms`` gives the batch of the very first view, from its size."""
        equipment = self.equipment
        passage = equipment.membership.join(equipment.state)
        after = passage.after
        terms = after.terms if after.terms.global_batch_size else first_terms(after.view.size)
        self._enter(passage, terms)
        equipment.state.thaw()
        self.chronicle.joined(passage)

    def meet(self) -> None:
        """The barrier of a running job: averages, calls hooks, decides, and enters the view that comes after."""
        started = time.monotonic()
        equipment, ledger = self.equipment, self.equipment.ledger
        ledger.posts.serve()
        self.average_statistics()
        wish = self._wish()
        passage = equipment.membership.meet(equipment.state, self.terms, wish=wish)
        changed = passage.before is not None and passage.after.view.version != passage.before.view.version
        if changed:
            self._enter(passage, passage.after.terms)
        else:
            self.terms = passage.after.terms
            ledger.place.assign_terms(self.terms)
        if ledger.outcomes.fired.shape[0]:
            ledger.outcomes.fired.assign(tf.zeros_like(ledger.outcomes.fired))
        ledger.timing.synchronised.assign(math.nan)  # the barrier's seconds are no step's
        equipment.state.thaw()
        self.chronicle.passed(passage, step=int(ledger.progress.step.numpy()), stop_s=time.monotonic() - started)

    def part(self) -> None:
        """Training is over on all peers: the averaged state becomes the job's, and the states are compared."""
        self.average_statistics()
        self.equipment.membership.part(self.equipment.state, self.terms)

    def average_statistics(self) -> None:
        """Statistics that layers keep of the data become their mean over peers."""
        variables = list(self.equipment.state.classes.averaged.values())
        if not variables or self.size == 1:
            return
        sums = self.equipment.attachment.all_reduce(
            [*(variable.read_value() for variable in variables), tf.zeros([0], tf.float32)],
            prescale=tf.constant(1.0 / self.size, tf.float32),
            order=self.equipment.ledger.order,
            tag="statistics",
        )
        for variable, mean in zip(variables, sums[:-1], strict=True):
            variable.assign(mean)

    def _enter(self, passage: Passage, terms: Terms) -> None:
        view, rank = passage.after.view, passage.after.rank
        self.terms, self.rank, self.size = terms, rank, view.size
        place = self.equipment.ledger.place
        place.assign(version=view.version, size=view.size, rank=-1 if rank is None else rank)
        place.assign_terms(terms)

    # ---- wishes ----------------------------------------------------------------------------------------------------

    def _wish(self) -> Wish | None:
        """What the rules that fired ask for; a hook's ``rescale`` is newer than a rule's."""
        outcomes, plan = self.equipment.ledger.outcomes, self.equipment.plan
        fired = outcomes.fired.numpy() if outcomes.fired.shape[0] else ()
        wish = None
        for index, rule in enumerate(plan.rules):
            if not fired[index]:
                continue
            saw = self._saw(index)
            if isinstance(rule.action, Rescale):
                size = round(float(outcomes.targets.numpy()[index]))
                wish = Wish(size, rule.action.keep, rule.name, self._step(), saw)
            elif isinstance(rule.action, Call):
                wish = self._call(rule.name, rule.action, saw) or wish
        return wish

    def _step(self) -> int:
        """The step whose rules fired: the one before the step that carried their post."""
        return int(self.equipment.ledger.progress.step.numpy()) - 1

    def _saw(self, index: int) -> dict[str, float]:
        plan = self.equipment.plan
        start = sum(len(names) for names in plan.saw[:index])
        values = self.equipment.ledger.outcomes.saw.numpy()[start : start + len(plan.saw[index])]
        return {name: float(value) for name, value in zip(plan.saw[index], values, strict=True)}

    def _call(self, name: str, action: Call, saw: Mapping[str, float]) -> Wish | None:
        """The hook of listing 1 of the KungFu paper: called on every peer, with agreed values."""
        control = Control(size=self.size, step=self._step())
        action.fn(control, *list(saw.values())[: len(action.signals)])
        self.chronicle.called(name, step=self._step(), saw=saw, asked=control.wanted)
        return None if control.wanted is None else Wish(control.wanted, "local_batch_size", name, self._step(), saw)
