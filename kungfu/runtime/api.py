"""The interface of the runtime for training: every name of the runtime that ``kungfu.training`` uses.

Importing this module loads TensorFlow, so code that must not load TensorFlow imports the runtime's packages directly.
"""

# Every import is part of the interface.
# ruff: noqa: F401
# mypy: implicit-reexport

from kungfu.runtime.attachment.choose import make_attachment
from kungfu.runtime.attachment.norms import NormsWanted, norm_placeholder, norm_squared, where_wanted
from kungfu.runtime.attachment.protocol import Attachment, LateRanks
from kungfu.runtime.checkpoints.folder import CheckpointFolder, FolderInUse, find, find_named, has_step
from kungfu.runtime.checkpoints.manifest import (
    Manifest,
    VariableEntry,
    mismatches,
    read_manifest,
    stable_names,
    write_manifest,
)
from kungfu.runtime.core.adaptive_deadline import KNOWN_STEPS, WINDOW_STEPS, plausible_wait_s
from kungfu.runtime.core.barrier import BarrierResult, Decision, with_settings
from kungfu.runtime.core.program_identity import Description, ProgramPart
from kungfu.runtime.core.request import (
    Asked,
    Leave,
    Resize,
    RestoreCheckpoint,
    SaveCheckpoint,
    SetAverageInterval,
    SetBatch,
    SetNumber,
    SetRate,
    SetValue,
    StopTraining,
    merge,
    settings_with_size,
)
from kungfu.runtime.core.sample_slices import Position, Stamp, advanced, shuffled, slice_indices
from kungfu.runtime.core.shadow import REMEMBERED, ShadowAsk
from kungfu.runtime.core.terms import Ramp, RunPosition, Terms, meant_size, missed_settings
from kungfu.runtime.core.view import View, spread
from kungfu.runtime.peer.agent_client import DeferredEntry, RecordEntry
from kungfu.runtime.peer.exit_report import ExitReport
from kungfu.runtime.peer.failed_peers import NoticedLoss
from kungfu.runtime.peer.job_progress import PastPhases, PhaseIsOver
from kungfu.runtime.peer.membership import JobMembership
from kungfu.runtime.peer.membership_protocol import Membership, StandaloneMembership
from kungfu.runtime.settings import CheckpointSettings, Deadlines, Limits, Settings, read_settings
from kungfu.runtime.state.buffers import Buffers, digests
from kungfu.runtime.state.compare import VariableGap, gap_of, sampled
from kungfu.runtime.state.variables import memory_of, writable_memory_of
