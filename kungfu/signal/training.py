"""The `training` argument of a policy."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from typing import TYPE_CHECKING, NoReturn, get_args

from kungfu.errors import PolicyError
from kungfu.signal.fold import Fold, fold
from kungfu.signal.fold.fold import labelled
from kungfu.signal.node import Collective, Map, Source, operate, where
from kungfu.signal.operation import DType, SignalType
from kungfu.signal.sources import SOURCES, SourceKind

# Signals derived from the sources of a step, by the names that users look for.
_MONITORS = {
    "noise_scale": "gradient_noise_scale",
    "gradient_noise": "gradient_noise_scale",
    "gns": "gradient_noise_scale",
    "variance": "gradient_variance",
    "samples_per_second": "throughput",
    "speed": "straggler_fractions",
    **{
        name: name
        for name in (
            "cost_so_far",
            "gradient_noise_scale",
            "gradient_variance",
            "noise_scale_estimate",
            "slowest_in_a_row",
            "straggler_fractions",
            "remaining_samples",
            "remaining_seconds",
            "scaling_efficiency",
            "stragglers",
            "throughput",
            "throughput_by_size",
        )
    },
}
_OTHER_WORDS = {
    "lr": "learning_rate",
    "batch": "global_batch_size",
    "batch_size": "global_batch_size",
    "world_size": "size",
    "peers": "size",
    "workers": "size",
    "gradients": "grads",
    "mean_gradients": "mean_grads",
    "iteration": "step",
    "iterations": "step",
}


class FedNumber(Fold):
    """The last number that the program fed; made by `TrainingSignals.fed`."""

    @property
    def is_new(self) -> Map:
        """True in the step whose message brought the number, also if the number equals the last (bool, agreed).

        >>> accuracy = TrainingSignals().fed("accuracy")
        >>> accuracy.is_new.count().named("validations").placement
        'agreed'
        """
        return operate("is_finite", self.observed[0])


class TrainingSignals:
    """The signals of a step: its sources, one property each, and signals derived from them.

    The methods `published` and `fed` return values from the user's program.

    If `job` is given, the signals belong to that job: the policies of other jobs may not use them. The table behind the
    properties is `kungfu.signal.SOURCES`. An unknown name raises `PolicyError`, with the name that was probably meant.

    >>> TrainingSignals().local_batch_size.placement
    'agreed'
    """

    def __init__(self, *, job: object = None) -> None:
        self._job = job

    if not TYPE_CHECKING:  # a type checker should find a misspelt name

        def __getattr__(self, name: str) -> NoReturn:
            """Raises `PolicyError` for an unknown name, with a suggestion."""
            if name.startswith("__"):
                raise AttributeError(name)  # Python looks up such names to copy or display an object
            raise PolicyError(
                f"{_meant(name)}a step offers no {name!r} to a policy; it offers {', '.join(sorted(SOURCES))}"
            )

    def __dir__(self) -> Iterable[str]:
        return sorted([*SOURCES, "fed", "published", "view_steps"])

    # ---- sources ---------------------------------------------------------------------------------------------------

    grads: Source
    """This peer's own gradients (float32[nest], local)."""

    loss: Source
    """This peer's own loss (float32, local)."""

    samples: Source
    """The number of samples in this peer's share of the step (float32, samples, local)."""

    micro_batches: Source
    """The micro-batches with samples in this peer's share of the step (int64, local).

    A share that is not split is one micro-batch; see ``max_local_batch_size`` of `training.batches`.
    """

    micro_batch_variance: Source
    """Variance of a sample's gradient within this peer's share; NaN with fewer than two micro-batches (float32,
    samples, local).

    With u micro-batches of ``b_i`` samples and gradients ``g_i``, and the share's mean gradient g, the trace of the
    covariance of a sample's gradient is estimated, without bias, by ``sum(b_i * |g_i - g|²) / (u - 1)``. A step then
    reads the gradients once more for each micro-batch, and once for the share.
    """

    rank: Source
    """This peer's rank in the view, 0 to size - 1 (int64, local)."""

    busy_seconds: Source
    """Time of this peer from the last synchronisation to its gradients; NaN after a barrier (float32, s, local)."""

    step_seconds: Source
    """The duration of the previous step on this peer; NaN after a barrier (float32, s, local).

    The time is unknown in the first two steps of a view, and in the second step after any other barrier: the duration
    of a barrier, and of the work after it, does not belong to any step.
    """

    host_joiners: Source
    """Joiners that are getting ready on this peer's host, and slow this peer down (int64, peers, local)."""

    mean_grads: Source
    """The gradients averaged over all samples of the step (float32[nest], agreed)."""

    mean_loss: Source
    """The loss averaged over all samples of the step (float32, agreed)."""

    total_samples: Source
    """Samples of the step over all peers (float32, samples, agreed)."""

    pending: Source
    """Peers join, or the barrier may change the cluster, as `change_due` says (bool, agreed).

    Joiners may take minutes to join, and no rule waits for them; measurements in the meantime may be disturbed.
    """

    change_due: Source
    """The barrier after this step may change the cluster, because a change is requested (bool, agreed).

    A change is requested by a rule that fired in the previous step to rescale, evict or replace, by joiners that are
    ready, and by requests from outside. A rule that changes a setting requests no change; neither does a hook, whose
    requests are known only when it is called. If a hook and a rule request sizes at one barrier, the earlier wins.
    """

    target_size: Source
    """Size of the job once the peers under way have joined; 0 if no peer is under way (int64, peers, agreed).

    The peers under way are joiners that were requested and have not joined yet.
    """

    barrier_due: Source
    """This step ends with a barrier that was requested, for example by a rule of the previous step (bool, agreed)."""

    replacing: Source
    """Peers are being exchanged: replacements are on their way or have just joined (bool, agreed).

    `pending` is then true as well; but `pending` may be true without an exchange, for example when the job grows.
    """

    step: Source
    """Number of the running step, from 1 (int64, steps, agreed)."""

    size: Source
    """Peers in the view (int64, peers, agreed)."""

    local_batch_size: Source
    """Global batch size divided by size (float32, samples, agreed)."""

    global_batch_size: Source
    """Samples requested by a step (int64, samples, agreed)."""

    epoch_samples: Source
    """Samples of an epoch; no step crosses its end; 0 if unknown (int64, samples, agreed)."""

    learning_rate: Source
    """The optimizer's learning rate, without the factor of `kf.control.learning_rate` (float32, agreed)."""

    requested_rate: Source
    """The learning rate that a rule or a hook requested last, 0 if none (float32, agreed).

    A request counts once its barrier has carried it out. During a ramp, or with a schedule of the optimizer,
    `learning_rate` differs from this rate.
    """

    view: Source
    """Number of the view, which increases whenever the set of peers changes (int64, agreed)."""

    min_size: Source
    """The minimum number of peers of the job (int64, peers, agreed)."""

    max_size: Source
    """The maximum number of peers of the job (int64, peers, agreed)."""

    replacement_refused: Source
    """The last replacement failed: no new peer came (bool, agreed).

    The signal remains true until the view changes, joiners are dismissed, or a host with free slots joins.
    """

    refused_size: Source
    """Last size that could not be reached, 0 if none (int64, peers, agreed)."""

    replaced_peers: Source
    """Peers replaced so far at the request of rules, hooks or commands (int64, peers, agreed)."""

    epoch: Source
    """The running epoch of the loader, or of `fit`, from 0 (int64, epochs, agreed).

    Each loader, and each call of `fit`, counts from 0; ``initial_epoch`` of `fit` does not count. 0 without a loader.
    """

    samples_done: Source
    """Samples trained on before this step (int64, samples, agreed)."""

    job_samples: Source
    """Samples of the whole job, all epochs of training.batches; 0 if unknown (int64, samples, agreed)."""

    clock_seconds: Source
    """Time since this peer's first step (float32, s, local)."""

    rescale_seconds: Source
    """The time for which the last rescale stopped this peer; NaN before its first (float32, s, local)."""

    previous_size: Source
    """Peers before the rescale; in kf.control.on_rescale() (int64, peers, agreed)."""

    previous_global_batch_size: Source
    """Samples of a step before the rescale; in kf.control.on_rescale() (int64, samples, agreed)."""

    base_global_batch_size: Source
    """Samples of a step, as last set outside kf.control.on_rescale(); in its rules (int64, samples, agreed).

    `attach` and rules in a step set this number. If every rescale computes the batch from this number and `base_size`,
    the batch depends on the size alone: growing and shrinking back restores the batch. Until a rule on a rescale has
    set a batch, this number equals `previous_global_batch_size`.
    """

    base_size: Source
    """Peers of the job when `base_global_batch_size` was set; in kf.control.on_rescale() (int64, peers, agreed).

    ``base_global_batch_size / base_size`` is the batch per peer from which rules on a rescale start.
    """

    # ---- from the user's program -----------------------------------------------------------------------------------

    def published(self, name: str, *, dtype: DType = "float32", unit: str = "", meaning: str = "") -> Source:
        """The number that the program's step publishes by ``training.publish(name, value)``, in the current step.

        For values that the user's model computes: an auxiliary loss, an accuracy, a statistic of the gradients. The
        number is local; for one number on all peers, write ``kf.ops.weighted_mean(x, training.samples)`` or
        ``kf.ops.all_reduce(x, "mean")``, which are sent with the gradients. On a peer without samples, or in a step
        without a call of ``publish``, the number is NaN, or 0 or false if it is not a float. Over micro-batches, floats
        are averaged, weighted by samples; for other dtypes, the last micro-batch with samples counts.

        Args:
            name: Letters, digits and ``_``; not a name of the step's signals. All policies must declare it identically.
            dtype: "float32", "int64" or "bool".
            unit: The unit, for readers of the plan.
            meaning: A short description for readers of the plan.

        Raises:
            PolicyError: The name or the dtype is invalid; later, if policies declare the name differently, and at the
                first step, if the program does not publish the number before ``training.average()``.

        Cost:
            A variable; no message.

        On rescale:
            Nothing is kept: each step has a new value.

        >>> import kungfu as kf
        >>> training = TrainingSignals()
        >>> accuracy = training.published("accuracy")
        >>> kf.ops.weighted_mean(accuracy, training.samples).placement
        'agreed'
        """
        _check_name(name, method="published")
        if dtype not in get_args(DType):
            raise PolicyError(
                f"training.published({name!r}, dtype={dtype!r}): write one of {', '.join(get_args(DType))}"
            )
        meaning = meaning or "published by the program in its step"
        kind = SourceKind(SignalType(dtype), meaning, unit, placement="local", given_by="publish")
        return Source(name, self._job, kind)

    def fed(self, name: str, *, unit: str = "", meaning: str = "") -> FedNumber:
        """The last number that the program fed by ``training.feed(name, value)`` between its steps, on rank 0.

        For values that only Python knows: a price, a validation accuracy, the hour. Every peer gets rank 0's number,
        which is sent with the next step's message, and stays valid until rank 0 feeds another. It is a float32 scalar;
        NaN until rank 0 has fed a first number. Its property `is_new` is true in the step that brings a number.

        Args:
            name: Letters, digits and ``_``; not a name of the step's signals. All policies must declare it identically.
            unit: The unit, as in "dollars/hour", for readers of the plan.
            meaning: A short description for readers of the plan.

        Raises:
            PolicyError: The name is invalid; later, if policies declare it differently.

        Cost:
            One float on the gradient all-reduce, one float of state.

        On rescale:
            The number is kept: it is part of the shared state, is sent to joiners and written to checkpoints, and
            remains when rank 0 leaves.

        >>> TrainingSignals().fed("price", unit="dollars/hour").placement
        'agreed'
        """
        _check_name(name, method="fed")
        meaning = f"{meaning or 'fed by the program between its steps'}; NaN unless just fed"
        kind = SourceKind(SignalType("float32"), meaning, unit, placement="local", given_by="feed")
        # The number fed to a peer since the last message is a local source, NaN if there is none. Rank 0's number is
        # sent with the next message, and a fold, which skips NaN, keeps the last number in the shared state.
        carried = Collective("sum", where(Source("rank") == 0, Source(name, self._job, kind), 0.0))
        last = labelled(fold(lambda _, newest: newest * 1.0, float("nan"), carried), label="last fed")
        return FedNumber(last.observed, last.recurrence, last.gate, last.on_rescale, name=name)

    # ---- derived signals -------------------------------------------------------------------------------------------

    @property
    def view_steps(self) -> Fold:
        """Steps since the cluster last changed: 1 in the first step of a view (int64, in steps, equal on all peers).

        A policy that decides by measurements can wait until the size is settled: ``.when(training.view_steps > 10)``.

        Cost:
            8 bytes of state, no message.

        On rescale:
            The count starts again.
        """
        return (self.size > 0).count(on_rescale="reset")


def _offered(name: str) -> property:
    kind = SOURCES[name]
    described = f"{kind.meaning} ({', '.join(filter(None, (str(kind.type), kind.unit, kind.placement)))})."
    return property(lambda training: Source(name, training._job), doc=described)


for _name in SOURCES:
    setattr(TrainingSignals, _name, _offered(_name))


def _meant(name: str) -> str:
    """A hint with the signal that an unknown ``name`` probably stands for; empty if there is none."""
    if name in _OTHER_WORDS:
        return f"write training.{_OTHER_WORDS[name]}: "
    close = get_close_matches(name, [*SOURCES, *_MONITORS], n=1, cutoff=0.75)
    if not close:
        return ""
    found = close[0]
    return f"write kf.monitor.{_MONITORS[found]}(training): " if found in _MONITORS else f"write training.{found}: "


# ---- sources of the user's program ----------------------------------------------------------------------------------


def _check_name(name: object, *, method: str) -> None:
    if not isinstance(name, str) or not name.isidentifier():
        raise PolicyError(
            f"training.{method}({name!r}): takes a name of letters, digits and _ that begins with no digit, as in "
            f'training.{method}("accuracy")'
        )
    if name in SOURCES:
        raise PolicyError(
            f"training.{method}({name!r}): a step offers a signal of this name itself; use training.{name}, or give "
            f"yours another name"
        )


def misuse(declared: Source, what: str, *, policy: str, where: str = "") -> PolicyError:
    """The error for a call that does not match a policy's declaration of a source.

    Args:
        declared: The source that the program publishes or feeds.
        what: The error in the call, as the end of a sentence that begins with the call.
        policy: The name of a policy that uses the source.
        where: The user's ``file:line`` of the call; empty if a call is missing.
    """
    at = f" ({where})" if where else ""
    return PolicyError(
        f"training.{declared.kind.given_by}({declared.source!r}){at} {what}; policy {policy!r} declares it "
        f"({declared.origin})",
        policy=policy,
        origin=where or declared.origin,
    )
