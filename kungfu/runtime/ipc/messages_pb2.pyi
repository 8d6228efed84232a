from collections.abc import Iterable as _Iterable
from collections.abc import Mapping as _Mapping
from typing import (
    ClassVar as _ClassVar,
)

from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper

DESCRIPTOR: _descriptor.FileDescriptor

class FailureKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    FAILURE_KIND_UNSPECIFIED: _ClassVar[FailureKind]
    FAILURE_KIND_PEER: _ClassVar[FailureKind]
    FAILURE_KIND_DEADLINE: _ClassVar[FailureKind]
    FAILURE_KIND_USAGE: _ClassVar[FailureKind]
    FAILURE_KIND_POLICY: _ClassVar[FailureKind]
    FAILURE_KIND_INTERNAL: _ClassVar[FailureKind]

class Keep(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    KEEP_UNSPECIFIED: _ClassVar[Keep]
    KEEP_LOCAL_BATCH_SIZE: _ClassVar[Keep]
    KEEP_GLOBAL_BATCH_SIZE: _ClassVar[Keep]

class RampUnit(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    RAMP_UNIT_UNSPECIFIED: _ClassVar[RampUnit]
    RAMP_UNIT_STEPS: _ClassVar[RampUnit]
    RAMP_UNIT_SAMPLES: _ClassVar[RampUnit]

class When(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    WHEN_UNSPECIFIED: _ClassVar[When]
    WHEN_NOW: _ClassVar[When]
    WHEN_NOTICED: _ClassVar[When]
    WHEN_REPLACED: _ClassVar[When]

class ExitKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    EXIT_KIND_UNSPECIFIED: _ClassVar[ExitKind]
    EXIT_KIND_LOOP: _ClassVar[ExitKind]
    EXIT_KIND_EXIT: _ClassVar[ExitKind]
    EXIT_KIND_USAGE: _ClassVar[ExitKind]
    EXIT_KIND_EXCEPTION: _ClassVar[ExitKind]
    EXIT_KIND_LOSS: _ClassVar[ExitKind]
    EXIT_KIND_DEADLINE: _ClassVar[ExitKind]

class HostEventKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    HOST_EVENT_KIND_UNSPECIFIED: _ClassVar[HostEventKind]
    HOST_EVENT_KIND_SPAWNED: _ClassVar[HostEventKind]
    HOST_EVENT_KIND_ENDED: _ClassVar[HostEventKind]
    HOST_EVENT_KIND_SIGNALLED: _ClassVar[HostEventKind]

class RequestState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    REQUEST_STATE_UNSPECIFIED: _ClassVar[RequestState]
    REQUEST_STATE_ACCEPTED: _ClassVar[RequestState]
    REQUEST_STATE_CARRIED_OUT: _ClassVar[RequestState]
    REQUEST_STATE_REFUSED: _ClassVar[RequestState]
    REQUEST_STATE_EXPIRED: _ClassVar[RequestState]

class Scaling(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    SCALING_UNSPECIFIED: _ClassVar[Scaling]
    SCALING_ELASTIC: _ClassVar[Scaling]
    SCALING_INELASTIC: _ClassVar[Scaling]

class PeerState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PEER_STATE_UNSPECIFIED: _ClassVar[PeerState]
    PEER_STATE_STARTING: _ClassVar[PeerState]
    PEER_STATE_READY: _ClassVar[PeerState]
    PEER_STATE_TRAINING: _ClassVar[PeerState]
    PEER_STATE_LEAVING: _ClassVar[PeerState]

FAILURE_KIND_UNSPECIFIED: FailureKind
FAILURE_KIND_PEER: FailureKind
FAILURE_KIND_DEADLINE: FailureKind
FAILURE_KIND_USAGE: FailureKind
FAILURE_KIND_POLICY: FailureKind
FAILURE_KIND_INTERNAL: FailureKind
KEEP_UNSPECIFIED: Keep
KEEP_LOCAL_BATCH_SIZE: Keep
KEEP_GLOBAL_BATCH_SIZE: Keep
RAMP_UNIT_UNSPECIFIED: RampUnit
RAMP_UNIT_STEPS: RampUnit
RAMP_UNIT_SAMPLES: RampUnit
WHEN_UNSPECIFIED: When
WHEN_NOW: When
WHEN_NOTICED: When
WHEN_REPLACED: When
EXIT_KIND_UNSPECIFIED: ExitKind
EXIT_KIND_LOOP: ExitKind
EXIT_KIND_EXIT: ExitKind
EXIT_KIND_USAGE: ExitKind
EXIT_KIND_EXCEPTION: ExitKind
EXIT_KIND_LOSS: ExitKind
EXIT_KIND_DEADLINE: ExitKind
HOST_EVENT_KIND_UNSPECIFIED: HostEventKind
HOST_EVENT_KIND_SPAWNED: HostEventKind
HOST_EVENT_KIND_ENDED: HostEventKind
HOST_EVENT_KIND_SIGNALLED: HostEventKind
REQUEST_STATE_UNSPECIFIED: RequestState
REQUEST_STATE_ACCEPTED: RequestState
REQUEST_STATE_CARRIED_OUT: RequestState
REQUEST_STATE_REFUSED: RequestState
REQUEST_STATE_EXPIRED: RequestState
SCALING_UNSPECIFIED: Scaling
SCALING_ELASTIC: Scaling
SCALING_INELASTIC: Scaling
PEER_STATE_UNSPECIFIED: PeerState
PEER_STATE_STARTING: PeerState
PEER_STATE_READY: PeerState
PEER_STATE_TRAINING: PeerState
PEER_STATE_LEAVING: PeerState

class Ack(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Failure(_message.Message):
    __slots__ = ("kind", "peers", "ranks", "text", "view", "waited_s")
    KIND_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    RANKS_FIELD_NUMBER: _ClassVar[int]
    PEERS_FIELD_NUMBER: _ClassVar[int]
    VIEW_FIELD_NUMBER: _ClassVar[int]
    WAITED_S_FIELD_NUMBER: _ClassVar[int]
    kind: FailureKind
    text: str
    ranks: _containers.RepeatedScalarFieldContainer[int]
    peers: _containers.RepeatedScalarFieldContainer[int]
    view: int
    waited_s: float
    def __init__(
        self,
        kind: FailureKind | str | None = ...,
        text: str | None = ...,
        ranks: _Iterable[int] | None = ...,
        peers: _Iterable[int] | None = ...,
        view: int | None = ...,
        waited_s: float | None = ...,
    ) -> None: ...

class PeerInfo(_message.Message):
    __slots__ = ("address", "id")
    ID_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    id: int
    address: str
    def __init__(self, id: int | None = ..., address: str | None = ...) -> None: ...

class ViewInfo(_message.Message):
    __slots__ = ("begins_phase", "peers", "version")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    PEERS_FIELD_NUMBER: _ClassVar[int]
    BEGINS_PHASE_FIELD_NUMBER: _ClassVar[int]
    version: int
    peers: _containers.RepeatedCompositeFieldContainer[PeerInfo]
    begins_phase: bool
    def __init__(
        self,
        version: int | None = ...,
        peers: _Iterable[PeerInfo | _Mapping] | None = ...,
        begins_phase: bool = ...,
    ) -> None: ...

class Terms(_message.Message):
    __slots__ = (
        "base_batch",
        "base_size",
        "batch_per_peer",
        "by_command",
        "departing",
        "global_batch_size",
        "keep",
        "leaving",
        "max_global_batch",
        "policy_share",
        "ramp",
        "refused_size",
        "replaced_peers",
        "replacement_refused",
        "stopped",
        "target_size",
    )
    GLOBAL_BATCH_SIZE_FIELD_NUMBER: _ClassVar[int]
    BATCH_PER_PEER_FIELD_NUMBER: _ClassVar[int]
    TARGET_SIZE_FIELD_NUMBER: _ClassVar[int]
    REFUSED_SIZE_FIELD_NUMBER: _ClassVar[int]
    KEEP_FIELD_NUMBER: _ClassVar[int]
    RAMP_FIELD_NUMBER: _ClassVar[int]
    STOPPED_FIELD_NUMBER: _ClassVar[int]
    LEAVING_FIELD_NUMBER: _ClassVar[int]
    DEPARTING_FIELD_NUMBER: _ClassVar[int]
    MAX_GLOBAL_BATCH_FIELD_NUMBER: _ClassVar[int]
    REPLACED_PEERS_FIELD_NUMBER: _ClassVar[int]
    REPLACEMENT_REFUSED_FIELD_NUMBER: _ClassVar[int]
    BY_COMMAND_FIELD_NUMBER: _ClassVar[int]
    POLICY_SHARE_FIELD_NUMBER: _ClassVar[int]
    BASE_BATCH_FIELD_NUMBER: _ClassVar[int]
    BASE_SIZE_FIELD_NUMBER: _ClassVar[int]
    global_batch_size: int
    batch_per_peer: float
    target_size: int
    refused_size: int
    keep: Keep
    ramp: Ramp
    stopped: bool
    leaving: _containers.RepeatedScalarFieldContainer[int]
    departing: _containers.RepeatedScalarFieldContainer[int]
    max_global_batch: int
    replaced_peers: int
    replacement_refused: bool
    by_command: bool
    policy_share: float
    base_batch: int
    base_size: int
    def __init__(
        self,
        global_batch_size: int | None = ...,
        batch_per_peer: float | None = ...,
        target_size: int | None = ...,
        refused_size: int | None = ...,
        keep: Keep | str | None = ...,
        ramp: Ramp | _Mapping | None = ...,
        stopped: bool = ...,
        leaving: _Iterable[int] | None = ...,
        departing: _Iterable[int] | None = ...,
        max_global_batch: int | None = ...,
        replaced_peers: int | None = ...,
        replacement_refused: bool = ...,
        by_command: bool = ...,
        policy_share: float | None = ...,
        base_batch: int | None = ...,
        base_size: int | None = ...,
    ) -> None: ...

class Ramp(_message.Message):
    __slots__ = ("over", "since", "start", "target", "unit")
    START_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    SINCE_FIELD_NUMBER: _ClassVar[int]
    OVER_FIELD_NUMBER: _ClassVar[int]
    UNIT_FIELD_NUMBER: _ClassVar[int]
    start: float
    target: float
    since: int
    over: float
    unit: RampUnit
    def __init__(
        self,
        start: float | None = ...,
        target: float | None = ...,
        since: int | None = ...,
        over: float | None = ...,
        unit: RampUnit | str | None = ...,
    ) -> None: ...

class BarrierArrival(_message.Message):
    __slots__ = ("begins_view", "digests", "gaps", "number", "rank", "requested", "round", "shadows", "version")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    REQUESTED_FIELD_NUMBER: _ClassVar[int]
    DIGESTS_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    GAPS_FIELD_NUMBER: _ClassVar[int]
    SHADOWS_FIELD_NUMBER: _ClassVar[int]
    BEGINS_VIEW_FIELD_NUMBER: _ClassVar[int]
    version: int
    number: int
    rank: int
    requested: str
    digests: _containers.RepeatedScalarFieldContainer[int]
    round: int
    gaps: _containers.RepeatedCompositeFieldContainer[VariableGap]
    shadows: _containers.RepeatedCompositeFieldContainer[Shadow]
    begins_view: bool
    def __init__(
        self,
        version: int | None = ...,
        number: int | None = ...,
        rank: int | None = ...,
        requested: str | None = ...,
        digests: _Iterable[int] | None = ...,
        round: int | None = ...,
        gaps: _Iterable[VariableGap | _Mapping] | None = ...,
        shadows: _Iterable[Shadow | _Mapping] | None = ...,
        begins_view: bool = ...,
    ) -> None: ...

class Shadow(_message.Message):
    __slots__ = ("rule", "step", "value")
    RULE_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    rule: str
    step: int
    value: float
    def __init__(
        self, rule: str | None = ..., step: int | None = ..., value: float | None = ...
    ) -> None: ...

class VariableGap(_message.Message):
    __slots__ = ("difference", "index", "is_rounding", "largest")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    DIFFERENCE_FIELD_NUMBER: _ClassVar[int]
    LARGEST_FIELD_NUMBER: _ClassVar[int]
    IS_ROUNDING_FIELD_NUMBER: _ClassVar[int]
    index: int
    difference: float
    largest: float
    is_rounding: bool
    def __init__(
        self,
        index: int | None = ...,
        difference: float | None = ...,
        largest: float | None = ...,
        is_rounding: bool = ...,
    ) -> None: ...

class BarrierReply(_message.Message):
    __slots__ = ("admission", "differing", "failure", "requests")
    ADMISSION_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_FIELD_NUMBER: _ClassVar[int]
    DIFFERING_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    admission: Admission
    requests: _containers.RepeatedCompositeFieldContainer[Asked]
    differing: _containers.RepeatedScalarFieldContainer[int]
    failure: Failure
    def __init__(
        self,
        admission: Admission | _Mapping | None = ...,
        requests: _Iterable[Asked | _Mapping] | None = ...,
        differing: _Iterable[int] | None = ...,
        failure: Failure | _Mapping | None = ...,
    ) -> None: ...

class Admission(_message.Message):
    __slots__ = ("attachment_address", "recovery", "sources", "target", "term", "terms", "view")
    VIEW_FIELD_NUMBER: _ClassVar[int]
    TERMS_FIELD_NUMBER: _ClassVar[int]
    ATTACHMENT_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    SOURCES_FIELD_NUMBER: _ClassVar[int]
    RECOVERY_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    view: ViewInfo
    terms: Terms
    attachment_address: str
    sources: _containers.RepeatedScalarFieldContainer[int]
    recovery: Recovery
    term: int
    target: int
    def __init__(
        self,
        view: ViewInfo | _Mapping | None = ...,
        terms: Terms | _Mapping | None = ...,
        attachment_address: str | None = ...,
        sources: _Iterable[int] | None = ...,
        recovery: Recovery | _Mapping | None = ...,
        term: int | None = ...,
        target: int | None = ...,
    ) -> None: ...

class Recovery(_message.Message):
    __slots__ = ("lost", "target")
    class LostEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: str
        def __init__(self, key: int | None = ..., value: str | None = ...) -> None: ...

    TARGET_FIELD_NUMBER: _ClassVar[int]
    LOST_FIELD_NUMBER: _ClassVar[int]
    target: int
    lost: _containers.ScalarMap[int, str]
    def __init__(self, target: int | None = ..., lost: _Mapping[int, str] | None = ...) -> None: ...

class FetchRequest(_message.Message):
    __slots__ = ("purpose", "rank", "start", "stop", "version")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    STOP_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    PURPOSE_FIELD_NUMBER: _ClassVar[int]
    version: int
    start: int
    stop: int
    rank: int
    purpose: str
    def __init__(
        self,
        version: int | None = ...,
        start: int | None = ...,
        stop: int | None = ...,
        rank: int | None = ...,
        purpose: str | None = ...,
    ) -> None: ...

class StateChunk(_message.Message):
    __slots__ = ("data",)
    DATA_FIELD_NUMBER: _ClassVar[int]
    data: bytes
    def __init__(self, data: bytes | None = ...) -> None: ...

class FailureAnnouncement(_message.Message):
    __slots__ = ("how", "peer", "version")
    PEER_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    HOW_FIELD_NUMBER: _ClassVar[int]
    peer: int
    version: int
    how: str
    def __init__(
        self, peer: int | None = ..., version: int | None = ..., how: str | None = ...
    ) -> None: ...

class JoinerOffer(_message.Message):
    __slots__ = ("missing", "number", "parts", "ready", "reason")
    class PartsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: str | None = ..., value: float | None = ...) -> None: ...

    READY_FIELD_NUMBER: _ClassVar[int]
    MISSING_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    PARTS_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    ready: _containers.RepeatedCompositeFieldContainer[PeerInfo]
    missing: _containers.RepeatedScalarFieldContainer[int]
    reason: str
    parts: _containers.ScalarMap[str, float]
    number: int
    def __init__(
        self,
        ready: _Iterable[PeerInfo | _Mapping] | None = ...,
        missing: _Iterable[int] | None = ...,
        reason: str | None = ...,
        parts: _Mapping[str, float] | None = ...,
        number: int | None = ...,
    ) -> None: ...

class AttachmentAddress(_message.Message):
    __slots__ = ("address",)
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    address: str
    def __init__(self, address: str | None = ...) -> None: ...

class PhaseRequest(_message.Message):
    __slots__ = ("number",)
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    number: int
    def __init__(self, number: int | None = ...) -> None: ...

class DataPosition(_message.Message):
    __slots__ = ("epoch", "offset", "phase")
    PHASE_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    phase: int
    epoch: int
    offset: int
    def __init__(
        self, phase: int | None = ..., epoch: int | None = ..., offset: int | None = ...
    ) -> None: ...

class TraceRequest(_message.Message):
    __slots__ = ("folder", "seconds")
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    FOLDER_FIELD_NUMBER: _ClassVar[int]
    seconds: float
    folder: str
    def __init__(self, seconds: float | None = ..., folder: str | None = ...) -> None: ...

class TraceReply(_message.Message):
    __slots__ = ("error",)
    ERROR_FIELD_NUMBER: _ClassVar[int]
    error: str
    def __init__(self, error: str | None = ...) -> None: ...

class PeerReport(_message.Message):
    __slots__ = ("peer_noticed", "peer_progressed", "peers_lost", "program_exiting", "size_wanted", "view_started")
    PEER_PROGRESSED_FIELD_NUMBER: _ClassVar[int]
    SIZE_WANTED_FIELD_NUMBER: _ClassVar[int]
    VIEW_STARTED_FIELD_NUMBER: _ClassVar[int]
    PEERS_LOST_FIELD_NUMBER: _ClassVar[int]
    PEER_NOTICED_FIELD_NUMBER: _ClassVar[int]
    PROGRAM_EXITING_FIELD_NUMBER: _ClassVar[int]
    peer_progressed: PeerProgressed
    size_wanted: SizeWanted
    view_started: ViewStarted
    peers_lost: PeersLost
    peer_noticed: PeerNoticed
    program_exiting: ProgramExiting
    def __init__(
        self,
        peer_progressed: PeerProgressed | _Mapping | None = ...,
        size_wanted: SizeWanted | _Mapping | None = ...,
        view_started: ViewStarted | _Mapping | None = ...,
        peers_lost: PeersLost | _Mapping | None = ...,
        peer_noticed: PeerNoticed | _Mapping | None = ...,
        program_exiting: ProgramExiting | _Mapping | None = ...,
    ) -> None: ...

class PeerProgressed(_message.Message):
    __slots__ = ("identity", "peer", "phase", "ready")
    PEER_FIELD_NUMBER: _ClassVar[int]
    READY_FIELD_NUMBER: _ClassVar[int]
    IDENTITY_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    peer: PeerInfo
    ready: bool
    identity: Identity
    phase: int
    def __init__(
        self,
        peer: PeerInfo | _Mapping | None = ...,
        ready: bool = ...,
        identity: Identity | _Mapping | None = ...,
        phase: int | None = ...,
    ) -> None: ...

class Identity(_message.Message):
    __slots__ = ("machine", "program")
    PROGRAM_FIELD_NUMBER: _ClassVar[int]
    MACHINE_FIELD_NUMBER: _ClassVar[int]
    program: str
    machine: str
    def __init__(self, program: str | None = ..., machine: str | None = ...) -> None: ...

class ViewStarted(_message.Message):
    __slots__ = ("view",)
    VIEW_FIELD_NUMBER: _ClassVar[int]
    view: ViewInfo
    def __init__(self, view: ViewInfo | _Mapping | None = ...) -> None: ...

class PhaseProgress(_message.Message):
    __slots__ = ("holders", "over")
    OVER_FIELD_NUMBER: _ClassVar[int]
    HOLDERS_FIELD_NUMBER: _ClassVar[int]
    over: int
    holders: _containers.RepeatedCompositeFieldContainer[PeerInfo]
    def __init__(
        self, over: int | None = ..., holders: _Iterable[PeerInfo | _Mapping] | None = ...
    ) -> None: ...

class ProgramDescription(_message.Message):
    __slots__ = ("parts",)
    PARTS_FIELD_NUMBER: _ClassVar[int]
    parts: _containers.RepeatedCompositeFieldContainer[ProgramPart]
    def __init__(self, parts: _Iterable[ProgramPart | _Mapping] | None = ...) -> None: ...

class ProgramPart(_message.Message):
    __slots__ = ("content", "section", "shown")
    SECTION_FIELD_NUMBER: _ClassVar[int]
    SHOWN_FIELD_NUMBER: _ClassVar[int]
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    section: str
    shown: str
    content: str
    def __init__(
        self, section: str | None = ..., shown: str | None = ..., content: str | None = ...
    ) -> None: ...

class SizeWanted(_message.Message):
    __slots__ = ("host", "leaving", "size")
    SIZE_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    LEAVING_FIELD_NUMBER: _ClassVar[int]
    size: int
    host: int
    leaving: _containers.RepeatedScalarFieldContainer[int]
    def __init__(
        self, size: int | None = ..., host: int | None = ..., leaving: _Iterable[int] | None = ...
    ) -> None: ...

class Record(_message.Message):
    __slots__ = ("event", "metrics", "trace")
    EVENT_FIELD_NUMBER: _ClassVar[int]
    METRICS_FIELD_NUMBER: _ClassVar[int]
    TRACE_FIELD_NUMBER: _ClassVar[int]
    event: bytes
    metrics: str
    trace: str
    def __init__(
        self, event: bytes | None = ..., metrics: str | None = ..., trace: str | None = ...
    ) -> None: ...

class Records(_message.Message):
    __slots__ = ("number", "peer", "records")
    PEER_FIELD_NUMBER: _ClassVar[int]
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    peer: int
    records: _containers.RepeatedCompositeFieldContainer[Record]
    number: int
    def __init__(
        self,
        peer: int | None = ...,
        records: _Iterable[Record | _Mapping] | None = ...,
        number: int | None = ...,
    ) -> None: ...

class TrainingFinished(_message.Message):
    __slots__ = ("event",)
    EVENT_FIELD_NUMBER: _ClassVar[int]
    event: bytes
    def __init__(self, event: bytes | None = ...) -> None: ...

class PeersLost(_message.Message):
    __slots__ = ("peer", "report")
    PEER_FIELD_NUMBER: _ClassVar[int]
    REPORT_FIELD_NUMBER: _ClassVar[int]
    peer: int
    report: LossReport
    def __init__(self, peer: int | None = ..., report: LossReport | _Mapping | None = ...) -> None: ...

class LossReport(_message.Message):
    __slots__ = ("digest", "error", "holds", "late", "stage", "step", "suspects", "version")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    HOLDS_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    SUSPECTS_FIELD_NUMBER: _ClassVar[int]
    LATE_FIELD_NUMBER: _ClassVar[int]
    STAGE_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    version: int
    step: int
    holds: bool
    error: str
    suspects: _containers.RepeatedScalarFieldContainer[int]
    late: bool
    stage: int
    digest: int
    def __init__(
        self,
        version: int | None = ...,
        step: int | None = ...,
        holds: bool = ...,
        error: str | None = ...,
        suspects: _Iterable[int] | None = ...,
        late: bool = ...,
        stage: int | None = ...,
        digest: int | None = ...,
    ) -> None: ...

class PeerNoticed(_message.Message):
    __slots__ = ("peer",)
    PEER_FIELD_NUMBER: _ClassVar[int]
    peer: int
    def __init__(self, peer: int | None = ...) -> None: ...

class ProgramExiting(_message.Message):
    __slots__ = ("exit", "peer")
    PEER_FIELD_NUMBER: _ClassVar[int]
    EXIT_FIELD_NUMBER: _ClassVar[int]
    peer: int
    exit: Exit
    def __init__(self, peer: int | None = ..., exit: Exit | _Mapping | None = ...) -> None: ...

class Exit(_message.Message):
    __slots__ = ("error", "kind", "name", "step", "where")
    KIND_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    WHERE_FIELD_NUMBER: _ClassVar[int]
    kind: ExitKind
    step: int
    name: str
    error: str
    where: str
    def __init__(
        self,
        kind: ExitKind | str | None = ...,
        step: int | None = ...,
        name: str | None = ...,
        error: str | None = ...,
        where: str | None = ...,
    ) -> None: ...

class HostAdmissionRequest(_message.Message):
    __slots__ = ("command_line", "host")
    class CommandLineEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: str | None = ..., value: str | None = ...) -> None: ...

    HOST_FIELD_NUMBER: _ClassVar[int]
    COMMAND_LINE_FIELD_NUMBER: _ClassVar[int]
    host: HostInfo
    command_line: _containers.ScalarMap[str, str]
    def __init__(
        self, host: HostInfo | _Mapping | None = ..., command_line: _Mapping[str, str] | None = ...
    ) -> None: ...

class HostInfo(_message.Message):
    __slots__ = ("incarnation", "number", "pid", "threads")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    THREADS_FIELD_NUMBER: _ClassVar[int]
    number: int
    pid: int
    incarnation: str
    threads: int
    def __init__(
        self,
        number: int | None = ...,
        pid: int | None = ...,
        incarnation: str | None = ...,
        threads: int | None = ...,
    ) -> None: ...

class HostAdmissionReply(_message.Message):
    __slots__ = ("refusal", "retry", "settings", "term")
    SETTINGS_FIELD_NUMBER: _ClassVar[int]
    REFUSAL_FIELD_NUMBER: _ClassVar[int]
    RETRY_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    settings: bytes
    refusal: str
    retry: bool
    term: int
    def __init__(
        self,
        settings: bytes | None = ...,
        refusal: str | None = ...,
        retry: bool = ...,
        term: int | None = ...,
    ) -> None: ...

class ReplicateRequest(_message.Message):
    __slots__ = (
        "committed",
        "end",
        "job",
        "kills",
        "leader",
        "leaves",
        "now",
        "number",
        "reports",
        "requests",
        "starts",
        "state",
        "term",
        "version",
    )
    JOB_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    LEADER_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    NOW_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_FIELD_NUMBER: _ClassVar[int]
    STARTS_FIELD_NUMBER: _ClassVar[int]
    KILLS_FIELD_NUMBER: _ClassVar[int]
    REPORTS_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    LEAVES_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_FIELD_NUMBER: _ClassVar[int]
    job: str
    term: int
    leader: int
    number: int
    now: float
    state: bytes
    version: int
    committed: int
    starts: _containers.RepeatedCompositeFieldContainer[Spawn]
    kills: _containers.RepeatedScalarFieldContainer[int]
    reports: _containers.RepeatedCompositeFieldContainer[Records]
    end: JobEnd
    leaves: bool
    requests: bytes
    def __init__(
        self,
        job: str | None = ...,
        term: int | None = ...,
        leader: int | None = ...,
        number: int | None = ...,
        now: float | None = ...,
        state: bytes | None = ...,
        version: int | None = ...,
        committed: int | None = ...,
        starts: _Iterable[Spawn | _Mapping] | None = ...,
        kills: _Iterable[int] | None = ...,
        reports: _Iterable[Records | _Mapping] | None = ...,
        end: JobEnd | _Mapping | None = ...,
        leaves: bool = ...,
        requests: bytes | None = ...,
    ) -> None: ...

class Spawn(_message.Message):
    __slots__ = ("host", "joins", "leaving", "peer", "threads")
    PEER_FIELD_NUMBER: _ClassVar[int]
    JOINS_FIELD_NUMBER: _ClassVar[int]
    LEAVING_FIELD_NUMBER: _ClassVar[int]
    THREADS_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    peer: int
    joins: bool
    leaving: _containers.RepeatedScalarFieldContainer[int]
    threads: int
    host: int
    def __init__(
        self,
        peer: int | None = ...,
        joins: bool = ...,
        leaving: _Iterable[int] | None = ...,
        threads: int | None = ...,
        host: int | None = ...,
    ) -> None: ...

class JobEnd(_message.Message):
    __slots__ = ("chosen", "code", "failed", "output", "peer", "why")
    CODE_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    PEER_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_FIELD_NUMBER: _ClassVar[int]
    CHOSEN_FIELD_NUMBER: _ClassVar[int]
    code: int
    why: str
    peer: int
    failed: bool
    output: _containers.RepeatedScalarFieldContainer[str]
    chosen: bool
    def __init__(
        self,
        code: int | None = ...,
        why: str | None = ...,
        peer: int | None = ...,
        failed: bool = ...,
        output: _Iterable[str] | None = ...,
        chosen: bool = ...,
    ) -> None: ...

class ReplicateReply(_message.Message):
    __slots__ = ("started",)
    STARTED_FIELD_NUMBER: _ClassVar[int]
    started: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, started: _Iterable[int] | None = ...) -> None: ...

class VoteRequest(_message.Message):
    __slots__ = ("binding", "host", "job", "term")
    JOB_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    BINDING_FIELD_NUMBER: _ClassVar[int]
    job: str
    term: int
    host: int
    binding: bool
    def __init__(
        self, job: str | None = ..., term: int | None = ..., host: int | None = ..., binding: bool = ...
    ) -> None: ...

class VoteReply(_message.Message):
    __slots__ = ("fenced", "granted", "hears_leader", "requests", "state", "term", "version", "voted_term")
    GRANTED_FIELD_NUMBER: _ClassVar[int]
    HEARS_LEADER_FIELD_NUMBER: _ClassVar[int]
    FENCED_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    VOTED_TERM_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_FIELD_NUMBER: _ClassVar[int]
    granted: bool
    hears_leader: bool
    fenced: bool
    term: int
    version: int
    state: bytes
    voted_term: int
    requests: bytes
    def __init__(
        self,
        granted: bool = ...,
        hears_leader: bool = ...,
        fenced: bool = ...,
        term: int | None = ...,
        version: int | None = ...,
        state: bytes | None = ...,
        voted_term: int | None = ...,
        requests: bytes | None = ...,
    ) -> None: ...

class HostEvent(_message.Message):
    __slots__ = ("code", "host", "kind", "number", "peer", "pid", "tail")
    HOST_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    PEER_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    TAIL_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    host: int
    kind: HostEventKind
    peer: int
    pid: int
    code: int
    tail: _containers.RepeatedScalarFieldContainer[str]
    number: int
    def __init__(
        self,
        host: int | None = ...,
        kind: HostEventKind | str | None = ...,
        peer: int | None = ...,
        pid: int | None = ...,
        code: int | None = ...,
        tail: _Iterable[str] | None = ...,
        number: int | None = ...,
    ) -> None: ...

class Asked(_message.Message):
    __slots__ = (
        "by",
        "id",
        "if_view",
        "inputs",
        "leave",
        "lost",
        "migrate",
        "number",
        "profile",
        "resize",
        "retry",
        "save_checkpoint",
        "scale_out",
        "set_batch",
        "set_rate",
        "step",
        "stop_training",
        "superseded_by",
        "won",
    )
    class InputsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: str | None = ..., value: float | None = ...) -> None: ...

    RESIZE_FIELD_NUMBER: _ClassVar[int]
    LEAVE_FIELD_NUMBER: _ClassVar[int]
    SCALE_OUT_FIELD_NUMBER: _ClassVar[int]
    MIGRATE_FIELD_NUMBER: _ClassVar[int]
    PROFILE_FIELD_NUMBER: _ClassVar[int]
    SET_BATCH_FIELD_NUMBER: _ClassVar[int]
    SET_RATE_FIELD_NUMBER: _ClassVar[int]
    SAVE_CHECKPOINT_FIELD_NUMBER: _ClassVar[int]
    STOP_TRAINING_FIELD_NUMBER: _ClassVar[int]
    RETRY_FIELD_NUMBER: _ClassVar[int]
    BY_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    INPUTS_FIELD_NUMBER: _ClassVar[int]
    WON_FIELD_NUMBER: _ClassVar[int]
    LOST_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    IF_VIEW_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    SUPERSEDED_BY_FIELD_NUMBER: _ClassVar[int]
    resize: Resize
    leave: Leave
    scale_out: ScaleOut
    migrate: Migrate
    profile: Profile
    set_batch: SetBatch
    set_rate: SetRate
    save_checkpoint: SaveCheckpoint
    stop_training: StopTraining
    retry: Retry
    by: str
    step: int
    inputs: _containers.ScalarMap[str, float]
    won: _containers.RepeatedScalarFieldContainer[str]
    lost: _containers.RepeatedScalarFieldContainer[str]
    id: str
    if_view: int
    number: int
    superseded_by: str
    def __init__(
        self,
        resize: Resize | _Mapping | None = ...,
        leave: Leave | _Mapping | None = ...,
        scale_out: ScaleOut | _Mapping | None = ...,
        migrate: Migrate | _Mapping | None = ...,
        profile: Profile | _Mapping | None = ...,
        set_batch: SetBatch | _Mapping | None = ...,
        set_rate: SetRate | _Mapping | None = ...,
        save_checkpoint: SaveCheckpoint | _Mapping | None = ...,
        stop_training: StopTraining | _Mapping | None = ...,
        retry: Retry | _Mapping | None = ...,
        by: str | None = ...,
        step: int | None = ...,
        inputs: _Mapping[str, float] | None = ...,
        won: _Iterable[str] | None = ...,
        lost: _Iterable[str] | None = ...,
        id: str | None = ...,
        if_view: int | None = ...,
        number: int | None = ...,
        superseded_by: str | None = ...,
    ) -> None: ...

class Resize(_message.Message):
    __slots__ = ("keep", "max_global_batch", "size")
    SIZE_FIELD_NUMBER: _ClassVar[int]
    KEEP_FIELD_NUMBER: _ClassVar[int]
    MAX_GLOBAL_BATCH_FIELD_NUMBER: _ClassVar[int]
    size: int
    keep: Keep
    max_global_batch: int
    def __init__(
        self,
        size: int | None = ...,
        keep: Keep | str | None = ...,
        max_global_batch: int | None = ...,
    ) -> None: ...

class Leave(_message.Message):
    __slots__ = ("host", "keep", "peers", "size", "when")
    PEERS_FIELD_NUMBER: _ClassVar[int]
    WHEN_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    KEEP_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    peers: _containers.RepeatedScalarFieldContainer[int]
    when: When
    size: int
    keep: Keep
    host: int
    def __init__(
        self,
        peers: _Iterable[int] | None = ...,
        when: When | str | None = ...,
        size: int | None = ...,
        keep: Keep | str | None = ...,
        host: int | None = ...,
    ) -> None: ...

class ScaleOut(_message.Message):
    __slots__ = ("count", "keep")
    COUNT_FIELD_NUMBER: _ClassVar[int]
    KEEP_FIELD_NUMBER: _ClassVar[int]
    count: int
    keep: Keep
    def __init__(self, count: int | None = ..., keep: Keep | str | None = ...) -> None: ...

class Migrate(_message.Message):
    __slots__ = ("host", "peer")
    PEER_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    peer: int
    host: str
    def __init__(self, peer: int | None = ..., host: str | None = ...) -> None: ...

class Profile(_message.Message):
    __slots__ = ("keep", "maximum", "minimum", "steps")
    MINIMUM_FIELD_NUMBER: _ClassVar[int]
    MAXIMUM_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    KEEP_FIELD_NUMBER: _ClassVar[int]
    minimum: int
    maximum: int
    steps: int
    keep: Keep
    def __init__(
        self,
        minimum: int | None = ...,
        maximum: int | None = ...,
        steps: int | None = ...,
        keep: Keep | str | None = ...,
    ) -> None: ...

class SetBatch(_message.Message):
    __slots__ = ("samples",)
    SAMPLES_FIELD_NUMBER: _ClassVar[int]
    samples: float
    def __init__(self, samples: float | None = ...) -> None: ...

class SetRate(_message.Message):
    __slots__ = ("over", "rate", "unit")
    RATE_FIELD_NUMBER: _ClassVar[int]
    OVER_FIELD_NUMBER: _ClassVar[int]
    UNIT_FIELD_NUMBER: _ClassVar[int]
    rate: float
    over: float
    unit: RampUnit
    def __init__(
        self, rate: float | None = ..., over: float | None = ..., unit: RampUnit | str | None = ...
    ) -> None: ...

class SaveCheckpoint(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class StopTraining(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Retry(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class RequestProgress(_message.Message):
    __slots__ = ("id", "points", "reason", "seconds", "state", "view", "words")
    ID_FIELD_NUMBER: _ClassVar[int]
    WORDS_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    VIEW_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    POINTS_FIELD_NUMBER: _ClassVar[int]
    id: str
    words: str
    state: RequestState
    reason: str
    view: int
    seconds: float
    points: _containers.RepeatedCompositeFieldContainer[Point]
    def __init__(
        self,
        id: str | None = ...,
        words: str | None = ...,
        state: RequestState | str | None = ...,
        reason: str | None = ...,
        view: int | None = ...,
        seconds: float | None = ...,
        points: _Iterable[Point | _Mapping] | None = ...,
    ) -> None: ...

class Point(_message.Message):
    __slots__ = ("samples", "seconds", "size", "steps")
    SIZE_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    size: int
    steps: int
    samples: int
    seconds: float
    def __init__(
        self,
        size: int | None = ...,
        steps: int | None = ...,
        samples: int | None = ...,
        seconds: float | None = ...,
    ) -> None: ...

class RequestId(_message.Message):
    __slots__ = ("id",)
    ID_FIELD_NUMBER: _ClassVar[int]
    id: str
    def __init__(self, id: str | None = ...) -> None: ...

class Empty(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class JobStatus(_message.Message):
    __slots__ = ("figures", "job", "membership", "peers", "progress", "request", "scaling", "troubles")
    JOB_FIELD_NUMBER: _ClassVar[int]
    SCALING_FIELD_NUMBER: _ClassVar[int]
    MEMBERSHIP_FIELD_NUMBER: _ClassVar[int]
    PEERS_FIELD_NUMBER: _ClassVar[int]
    FIGURES_FIELD_NUMBER: _ClassVar[int]
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    TROUBLES_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    job: str
    scaling: Scaling
    membership: MembershipStatus
    peers: _containers.RepeatedCompositeFieldContainer[PeerStatus]
    figures: JobMetrics
    request: RequestProgress
    troubles: _containers.RepeatedCompositeFieldContainer[Trouble]
    progress: TrainingProgress
    def __init__(
        self,
        job: str | None = ...,
        scaling: Scaling | str | None = ...,
        membership: MembershipStatus | _Mapping | None = ...,
        peers: _Iterable[PeerStatus | _Mapping] | None = ...,
        figures: JobMetrics | _Mapping | None = ...,
        request: RequestProgress | _Mapping | None = ...,
        troubles: _Iterable[Trouble | _Mapping] | None = ...,
        progress: TrainingProgress | _Mapping | None = ...,
    ) -> None: ...

class MembershipStatus(_message.Message):
    __slots__ = ("maximum", "minimum", "size", "target", "version")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    MINIMUM_FIELD_NUMBER: _ClassVar[int]
    MAXIMUM_FIELD_NUMBER: _ClassVar[int]
    version: int
    size: int
    target: int
    minimum: int
    maximum: int
    def __init__(
        self,
        version: int | None = ...,
        size: int | None = ...,
        target: int | None = ...,
        minimum: int | None = ...,
        maximum: int | None = ...,
    ) -> None: ...

class PeerStatus(_message.Message):
    __slots__ = ("address", "for_s", "host", "id", "is_straggler", "pid", "rank", "speed", "state")
    ID_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    FOR_S_FIELD_NUMBER: _ClassVar[int]
    SPEED_FIELD_NUMBER: _ClassVar[int]
    IS_STRAGGLER_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    id: int
    rank: int
    host: str
    pid: int
    state: PeerState
    for_s: float
    speed: float
    is_straggler: bool
    address: str
    def __init__(
        self,
        id: int | None = ...,
        rank: int | None = ...,
        host: str | None = ...,
        pid: int | None = ...,
        state: PeerState | str | None = ...,
        for_s: float | None = ...,
        speed: float | None = ...,
        is_straggler: bool = ...,
        address: str | None = ...,
    ) -> None: ...

class JobMetrics(_message.Message):
    __slots__ = ("epoch", "global_batch_size", "loss", "samples_per_s", "step")
    STEP_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    GLOBAL_BATCH_SIZE_FIELD_NUMBER: _ClassVar[int]
    LOSS_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_PER_S_FIELD_NUMBER: _ClassVar[int]
    step: int
    epoch: int
    global_batch_size: int
    loss: float
    samples_per_s: float
    def __init__(
        self,
        step: int | None = ...,
        epoch: int | None = ...,
        global_batch_size: int | None = ...,
        loss: float | None = ...,
        samples_per_s: float | None = ...,
    ) -> None: ...

class TrainingProgress(_message.Message):
    __slots__ = ("epoch", "epochs", "fit", "samples", "samples_left", "seconds_left", "steps_left")
    SAMPLES_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    EPOCHS_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_LEFT_FIELD_NUMBER: _ClassVar[int]
    STEPS_LEFT_FIELD_NUMBER: _ClassVar[int]
    SECONDS_LEFT_FIELD_NUMBER: _ClassVar[int]
    FIT_FIELD_NUMBER: _ClassVar[int]
    samples: int
    epoch: int
    epochs: int
    samples_left: int
    steps_left: int
    seconds_left: float
    fit: int
    def __init__(
        self,
        samples: int | None = ...,
        epoch: int | None = ...,
        epochs: int | None = ...,
        samples_left: int | None = ...,
        steps_left: int | None = ...,
        seconds_left: float | None = ...,
        fit: int | None = ...,
    ) -> None: ...

class Trouble(_message.Message):
    __slots__ = ("text", "time")
    TIME_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    time: float
    text: str
    def __init__(self, time: float | None = ..., text: str | None = ...) -> None: ...

class RequestPlan(_message.Message):
    __slots__ = (
        "after",
        "batch_after",
        "batch_before",
        "before",
        "joins",
        "leaves",
        "missing",
        "refusal",
        "refused_sizes",
        "view",
        "words",
    )
    WORDS_FIELD_NUMBER: _ClassVar[int]
    REFUSAL_FIELD_NUMBER: _ClassVar[int]
    VIEW_FIELD_NUMBER: _ClassVar[int]
    BEFORE_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    JOINS_FIELD_NUMBER: _ClassVar[int]
    LEAVES_FIELD_NUMBER: _ClassVar[int]
    MISSING_FIELD_NUMBER: _ClassVar[int]
    BATCH_BEFORE_FIELD_NUMBER: _ClassVar[int]
    BATCH_AFTER_FIELD_NUMBER: _ClassVar[int]
    REFUSED_SIZES_FIELD_NUMBER: _ClassVar[int]
    words: str
    refusal: str
    view: int
    before: int
    after: int
    joins: _containers.RepeatedCompositeFieldContainer[PlannedPeer]
    leaves: _containers.RepeatedCompositeFieldContainer[PlannedPeer]
    missing: int
    batch_before: int
    batch_after: int
    refused_sizes: _containers.RepeatedCompositeFieldContainer[RefusedSizes]
    def __init__(
        self,
        words: str | None = ...,
        refusal: str | None = ...,
        view: int | None = ...,
        before: int | None = ...,
        after: int | None = ...,
        joins: _Iterable[PlannedPeer | _Mapping] | None = ...,
        leaves: _Iterable[PlannedPeer | _Mapping] | None = ...,
        missing: int | None = ...,
        batch_before: int | None = ...,
        batch_after: int | None = ...,
        refused_sizes: _Iterable[RefusedSizes | _Mapping] | None = ...,
    ) -> None: ...

class PlannedPeer(_message.Message):
    __slots__ = ("host", "id")
    ID_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    id: int
    host: str
    def __init__(self, id: int | None = ..., host: str | None = ...) -> None: ...

class RefusedSizes(_message.Message):
    __slots__ = ("first", "last", "reason")
    FIRST_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    first: int
    last: int
    reason: str
    def __init__(
        self, first: int | None = ..., last: int | None = ..., reason: str | None = ...
    ) -> None: ...
