"""The replicated state: compared between peers, and transferred to those that lack it."""

from kungfu.runtime.state.buffers import Buffers, digests
from kungfu.runtime.state.compare import (
    ROUNDING,
    Compared,
    VariableGap,
    differing_variables,
    first_difference,
    gap_of,
    sampled,
)
from kungfu.runtime.state.replicated_state import ReplicatedState
from kungfu.runtime.state.serve import StateServer
from kungfu.runtime.state.state_sync import reconcile_variables, sync_state
from kungfu.runtime.state.transfer_context import TransferContext

__all__ = [
    "ROUNDING",
    "Buffers",
    "Compared",
    "ReplicatedState",
    "StateServer",
    "TransferContext",
    "VariableGap",
    "differing_variables",
    "digests",
    "first_difference",
    "gap_of",
    "reconcile_variables",
    "sampled",
    "sync_state",
]
