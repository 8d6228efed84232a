from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

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
    HOST_EVENT_KIND_LOADED: _ClassVar[HostEventKind]

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
    PEER_STATE_STARTING_SPARE: _ClassVar[PeerState]
    PEER_STATE_SPARE: _ClassVar[PeerState]
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
HOST_EVENT_KIND_LOADED: HostEventKind
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
PEER_STATE_STARTING_SPARE: PeerState
PEER_STATE_SPARE: PeerState

class Ack(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Failure(_message.Message):
    __slots__ = ("kind", "text", "ranks", "peers", "view", "waited_s")
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
    def __init__(self, kind: _Optional[_Union[FailureKind, str]] = ..., text: _Optional[str] = ..., ranks: _Optional[_Iterable[int]] = ..., peers: _Optional[_Iterable[int]] = ..., view: _Optional[int] = ..., waited_s: _Optional[float] = ...) -> None: ...

class PeerInfo(_message.Message):
    __slots__ = ("id", "address")
    ID_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    id: int
    address: str
    def __init__(self, id: _Optional[int] = ..., address: _Optional[str] = ...) -> None: ...

class ViewInfo(_message.Message):
    __slots__ = ("version", "peers", "begins_phase")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    PEERS_FIELD_NUMBER: _ClassVar[int]
    BEGINS_PHASE_FIELD_NUMBER: _ClassVar[int]
    version: int
    peers: _containers.RepeatedCompositeFieldContainer[PeerInfo]
    begins_phase: bool
    def __init__(self, version: _Optional[int] = ..., peers: _Optional[_Iterable[_Union[PeerInfo, _Mapping]]] = ..., begins_phase: bool = ...) -> None: ...

class Terms(_message.Message):
    __slots__ = ("global_batch_size", "batch_per_peer", "target_size", "refused_size", "keep", "ramp", "stopped", "leaving", "departing", "max_global_batch", "replaced_peers", "replacement_refused", "by_command", "policy_share", "base_batch", "base_size", "sizes", "held_rules", "awaiting_size", "variables", "average_every")
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
    SIZES_FIELD_NUMBER: _ClassVar[int]
    HELD_RULES_FIELD_NUMBER: _ClassVar[int]
    AWAITING_SIZE_FIELD_NUMBER: _ClassVar[int]
    VARIABLES_FIELD_NUMBER: _ClassVar[int]
    AVERAGE_EVERY_FIELD_NUMBER: _ClassVar[int]
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
    sizes: SizeLimits
    held_rules: _containers.RepeatedScalarFieldContainer[str]
    awaiting_size: Asked
    variables: _containers.RepeatedCompositeFieldContainer[SetNumber]
    average_every: int
    def __init__(self, global_batch_size: _Optional[int] = ..., batch_per_peer: _Optional[float] = ..., target_size: _Optional[int] = ..., refused_size: _Optional[int] = ..., keep: _Optional[_Union[Keep, str]] = ..., ramp: _Optional[_Union[Ramp, _Mapping]] = ..., stopped: bool = ..., leaving: _Optional[_Iterable[int]] = ..., departing: _Optional[_Iterable[int]] = ..., max_global_batch: _Optional[int] = ..., replaced_peers: _Optional[int] = ..., replacement_refused: bool = ..., by_command: bool = ..., policy_share: _Optional[float] = ..., base_batch: _Optional[int] = ..., base_size: _Optional[int] = ..., sizes: _Optional[_Union[SizeLimits, _Mapping]] = ..., held_rules: _Optional[_Iterable[str]] = ..., awaiting_size: _Optional[_Union[Asked, _Mapping]] = ..., variables: _Optional[_Iterable[_Union[SetNumber, _Mapping]]] = ..., average_every: _Optional[int] = ...) -> None: ...

class SizeLimits(_message.Message):
    __slots__ = ("minimum", "maximum", "hold", "revision")
    MINIMUM_FIELD_NUMBER: _ClassVar[int]
    MAXIMUM_FIELD_NUMBER: _ClassVar[int]
    HOLD_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    minimum: int
    maximum: int
    hold: Hold
    revision: int
    def __init__(self, minimum: _Optional[int] = ..., maximum: _Optional[int] = ..., hold: _Optional[_Union[Hold, _Mapping]] = ..., revision: _Optional[int] = ...) -> None: ...

class Hold(_message.Message):
    __slots__ = ("size", "until")
    SIZE_FIELD_NUMBER: _ClassVar[int]
    UNTIL_FIELD_NUMBER: _ClassVar[int]
    size: int
    until: float
    def __init__(self, size: _Optional[int] = ..., until: _Optional[float] = ...) -> None: ...

class Ramp(_message.Message):
    __slots__ = ("start", "target", "since", "over", "unit", "asked")
    START_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    SINCE_FIELD_NUMBER: _ClassVar[int]
    OVER_FIELD_NUMBER: _ClassVar[int]
    UNIT_FIELD_NUMBER: _ClassVar[int]
    ASKED_FIELD_NUMBER: _ClassVar[int]
    start: float
    target: float
    since: int
    over: float
    unit: RampUnit
    asked: float
    def __init__(self, start: _Optional[float] = ..., target: _Optional[float] = ..., since: _Optional[int] = ..., over: _Optional[float] = ..., unit: _Optional[_Union[RampUnit, str]] = ..., asked: _Optional[float] = ...) -> None: ...

class BarrierArrival(_message.Message):
    __slots__ = ("version", "number", "rank", "requested", "digests", "round", "gaps", "shadows", "begins_view")
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
    def __init__(self, version: _Optional[int] = ..., number: _Optional[int] = ..., rank: _Optional[int] = ..., requested: _Optional[str] = ..., digests: _Optional[_Iterable[int]] = ..., round: _Optional[int] = ..., gaps: _Optional[_Iterable[_Union[VariableGap, _Mapping]]] = ..., shadows: _Optional[_Iterable[_Union[Shadow, _Mapping]]] = ..., begins_view: bool = ...) -> None: ...

class Shadow(_message.Message):
    __slots__ = ("rule", "step", "value")
    RULE_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    rule: str
    step: int
    value: float
    def __init__(self, rule: _Optional[str] = ..., step: _Optional[int] = ..., value: _Optional[float] = ...) -> None: ...

class VariableGap(_message.Message):
    __slots__ = ("index", "difference", "largest", "is_rounding")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    DIFFERENCE_FIELD_NUMBER: _ClassVar[int]
    LARGEST_FIELD_NUMBER: _ClassVar[int]
    IS_ROUNDING_FIELD_NUMBER: _ClassVar[int]
    index: int
    difference: float
    largest: float
    is_rounding: bool
    def __init__(self, index: _Optional[int] = ..., difference: _Optional[float] = ..., largest: _Optional[float] = ..., is_rounding: bool = ...) -> None: ...

class Decision(_message.Message):
    __slots__ = ("view", "terms", "prepare", "host", "requests")
    VIEW_FIELD_NUMBER: _ClassVar[int]
    TERMS_FIELD_NUMBER: _ClassVar[int]
    PREPARE_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_FIELD_NUMBER: _ClassVar[int]
    view: ViewInfo
    terms: Terms
    prepare: int
    host: int
    requests: _containers.RepeatedCompositeFieldContainer[Asked]
    def __init__(self, view: _Optional[_Union[ViewInfo, _Mapping]] = ..., terms: _Optional[_Union[Terms, _Mapping]] = ..., prepare: _Optional[int] = ..., host: _Optional[int] = ..., requests: _Optional[_Iterable[_Union[Asked, _Mapping]]] = ...) -> None: ...

class Admission(_message.Message):
    __slots__ = ("decision", "differing", "attachment_address", "sources", "recovery", "term", "target", "failure")
    DECISION_FIELD_NUMBER: _ClassVar[int]
    DIFFERING_FIELD_NUMBER: _ClassVar[int]
    ATTACHMENT_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    SOURCES_FIELD_NUMBER: _ClassVar[int]
    RECOVERY_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    decision: Decision
    differing: _containers.RepeatedScalarFieldContainer[int]
    attachment_address: str
    sources: _containers.RepeatedScalarFieldContainer[int]
    recovery: Recovery
    term: int
    target: int
    failure: Failure
    def __init__(self, decision: _Optional[_Union[Decision, _Mapping]] = ..., differing: _Optional[_Iterable[int]] = ..., attachment_address: _Optional[str] = ..., sources: _Optional[_Iterable[int]] = ..., recovery: _Optional[_Union[Recovery, _Mapping]] = ..., term: _Optional[int] = ..., target: _Optional[int] = ..., failure: _Optional[_Union[Failure, _Mapping]] = ...) -> None: ...

class Recovery(_message.Message):
    __slots__ = ("target", "lost")
    class LostEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: str
        def __init__(self, key: _Optional[int] = ..., value: _Optional[str] = ...) -> None: ...
    TARGET_FIELD_NUMBER: _ClassVar[int]
    LOST_FIELD_NUMBER: _ClassVar[int]
    target: int
    lost: _containers.ScalarMap[int, str]
    def __init__(self, target: _Optional[int] = ..., lost: _Optional[_Mapping[int, str]] = ...) -> None: ...

class FetchRequest(_message.Message):
    __slots__ = ("version", "start", "stop", "rank", "purpose")
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
    def __init__(self, version: _Optional[int] = ..., start: _Optional[int] = ..., stop: _Optional[int] = ..., rank: _Optional[int] = ..., purpose: _Optional[str] = ...) -> None: ...

class StateChunk(_message.Message):
    __slots__ = ("data",)
    DATA_FIELD_NUMBER: _ClassVar[int]
    data: bytes
    def __init__(self, data: _Optional[bytes] = ...) -> None: ...

class FailureAnnouncement(_message.Message):
    __slots__ = ("peer", "version", "how")
    PEER_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    HOW_FIELD_NUMBER: _ClassVar[int]
    peer: int
    version: int
    how: str
    def __init__(self, peer: _Optional[int] = ..., version: _Optional[int] = ..., how: _Optional[str] = ...) -> None: ...

class JoinerOffer(_message.Message):
    __slots__ = ("ready", "missing", "reason", "parts", "number")
    class PartsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
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
    def __init__(self, ready: _Optional[_Iterable[_Union[PeerInfo, _Mapping]]] = ..., missing: _Optional[_Iterable[int]] = ..., reason: _Optional[str] = ..., parts: _Optional[_Mapping[str, float]] = ..., number: _Optional[int] = ...) -> None: ...

class AttachmentAddress(_message.Message):
    __slots__ = ("address",)
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    address: str
    def __init__(self, address: _Optional[str] = ...) -> None: ...

class PhaseRequest(_message.Message):
    __slots__ = ("number",)
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    number: int
    def __init__(self, number: _Optional[int] = ...) -> None: ...

class DataPosition(_message.Message):
    __slots__ = ("phase", "epoch", "offset")
    PHASE_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    phase: int
    epoch: int
    offset: int
    def __init__(self, phase: _Optional[int] = ..., epoch: _Optional[int] = ..., offset: _Optional[int] = ...) -> None: ...

class TraceRequest(_message.Message):
    __slots__ = ("seconds", "folder")
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    FOLDER_FIELD_NUMBER: _ClassVar[int]
    seconds: float
    folder: str
    def __init__(self, seconds: _Optional[float] = ..., folder: _Optional[str] = ...) -> None: ...

class TraceReply(_message.Message):
    __slots__ = ("error",)
    ERROR_FIELD_NUMBER: _ClassVar[int]
    error: str
    def __init__(self, error: _Optional[str] = ...) -> None: ...

class PeerReport(_message.Message):
    __slots__ = ("peer_progressed", "decision", "view_started", "peers_lost", "peer_noticed", "program_exiting")
    PEER_PROGRESSED_FIELD_NUMBER: _ClassVar[int]
    DECISION_FIELD_NUMBER: _ClassVar[int]
    VIEW_STARTED_FIELD_NUMBER: _ClassVar[int]
    PEERS_LOST_FIELD_NUMBER: _ClassVar[int]
    PEER_NOTICED_FIELD_NUMBER: _ClassVar[int]
    PROGRAM_EXITING_FIELD_NUMBER: _ClassVar[int]
    peer_progressed: PeerProgressed
    decision: Decision
    view_started: ViewStarted
    peers_lost: PeersLost
    peer_noticed: PeerNoticed
    program_exiting: ProgramExiting
    def __init__(self, peer_progressed: _Optional[_Union[PeerProgressed, _Mapping]] = ..., decision: _Optional[_Union[Decision, _Mapping]] = ..., view_started: _Optional[_Union[ViewStarted, _Mapping]] = ..., peers_lost: _Optional[_Union[PeersLost, _Mapping]] = ..., peer_noticed: _Optional[_Union[PeerNoticed, _Mapping]] = ..., program_exiting: _Optional[_Union[ProgramExiting, _Mapping]] = ...) -> None: ...

class PeerProgressed(_message.Message):
    __slots__ = ("peer", "ready", "identity", "phase", "memory_bytes")
    PEER_FIELD_NUMBER: _ClassVar[int]
    READY_FIELD_NUMBER: _ClassVar[int]
    IDENTITY_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    peer: PeerInfo
    ready: bool
    identity: Identity
    phase: int
    memory_bytes: int
    def __init__(self, peer: _Optional[_Union[PeerInfo, _Mapping]] = ..., ready: bool = ..., identity: _Optional[_Union[Identity, _Mapping]] = ..., phase: _Optional[int] = ..., memory_bytes: _Optional[int] = ...) -> None: ...

class Identity(_message.Message):
    __slots__ = ("program", "machine")
    PROGRAM_FIELD_NUMBER: _ClassVar[int]
    MACHINE_FIELD_NUMBER: _ClassVar[int]
    program: str
    machine: str
    def __init__(self, program: _Optional[str] = ..., machine: _Optional[str] = ...) -> None: ...

class ViewStarted(_message.Message):
    __slots__ = ("view", "terms")
    VIEW_FIELD_NUMBER: _ClassVar[int]
    TERMS_FIELD_NUMBER: _ClassVar[int]
    view: ViewInfo
    terms: Terms
    def __init__(self, view: _Optional[_Union[ViewInfo, _Mapping]] = ..., terms: _Optional[_Union[Terms, _Mapping]] = ...) -> None: ...

class PhaseProgress(_message.Message):
    __slots__ = ("over", "holders")
    OVER_FIELD_NUMBER: _ClassVar[int]
    HOLDERS_FIELD_NUMBER: _ClassVar[int]
    over: int
    holders: _containers.RepeatedCompositeFieldContainer[PeerInfo]
    def __init__(self, over: _Optional[int] = ..., holders: _Optional[_Iterable[_Union[PeerInfo, _Mapping]]] = ...) -> None: ...

class ProgramDescription(_message.Message):
    __slots__ = ("parts",)
    PARTS_FIELD_NUMBER: _ClassVar[int]
    parts: _containers.RepeatedCompositeFieldContainer[ProgramPart]
    def __init__(self, parts: _Optional[_Iterable[_Union[ProgramPart, _Mapping]]] = ...) -> None: ...

class ProgramPart(_message.Message):
    __slots__ = ("section", "shown", "content")
    SECTION_FIELD_NUMBER: _ClassVar[int]
    SHOWN_FIELD_NUMBER: _ClassVar[int]
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    section: str
    shown: str
    content: str
    def __init__(self, section: _Optional[str] = ..., shown: _Optional[str] = ..., content: _Optional[str] = ...) -> None: ...

class Record(_message.Message):
    __slots__ = ("event", "metrics", "trace")
    EVENT_FIELD_NUMBER: _ClassVar[int]
    METRICS_FIELD_NUMBER: _ClassVar[int]
    TRACE_FIELD_NUMBER: _ClassVar[int]
    event: bytes
    metrics: str
    trace: str
    def __init__(self, event: _Optional[bytes] = ..., metrics: _Optional[str] = ..., trace: _Optional[str] = ...) -> None: ...

class Records(_message.Message):
    __slots__ = ("peer", "records", "number")
    PEER_FIELD_NUMBER: _ClassVar[int]
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    peer: int
    records: _containers.RepeatedCompositeFieldContainer[Record]
    number: int
    def __init__(self, peer: _Optional[int] = ..., records: _Optional[_Iterable[_Union[Record, _Mapping]]] = ..., number: _Optional[int] = ...) -> None: ...

class TrainingFinished(_message.Message):
    __slots__ = ("event",)
    EVENT_FIELD_NUMBER: _ClassVar[int]
    event: bytes
    def __init__(self, event: _Optional[bytes] = ...) -> None: ...

class PeersLost(_message.Message):
    __slots__ = ("peer", "report")
    PEER_FIELD_NUMBER: _ClassVar[int]
    REPORT_FIELD_NUMBER: _ClassVar[int]
    peer: int
    report: LossReport
    def __init__(self, peer: _Optional[int] = ..., report: _Optional[_Union[LossReport, _Mapping]] = ...) -> None: ...

class LossReport(_message.Message):
    __slots__ = ("version", "step", "holds", "error", "suspects", "late", "stage", "digest")
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
    def __init__(self, version: _Optional[int] = ..., step: _Optional[int] = ..., holds: bool = ..., error: _Optional[str] = ..., suspects: _Optional[_Iterable[int]] = ..., late: bool = ..., stage: _Optional[int] = ..., digest: _Optional[int] = ...) -> None: ...

class PeerNoticed(_message.Message):
    __slots__ = ("peer",)
    PEER_FIELD_NUMBER: _ClassVar[int]
    peer: int
    def __init__(self, peer: _Optional[int] = ...) -> None: ...

class ProgramExiting(_message.Message):
    __slots__ = ("peer", "exit")
    PEER_FIELD_NUMBER: _ClassVar[int]
    EXIT_FIELD_NUMBER: _ClassVar[int]
    peer: int
    exit: Exit
    def __init__(self, peer: _Optional[int] = ..., exit: _Optional[_Union[Exit, _Mapping]] = ...) -> None: ...

class Exit(_message.Message):
    __slots__ = ("kind", "step", "name", "error", "where")
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
    def __init__(self, kind: _Optional[_Union[ExitKind, str]] = ..., step: _Optional[int] = ..., name: _Optional[str] = ..., error: _Optional[str] = ..., where: _Optional[str] = ...) -> None: ...

class HostAdmissionRequest(_message.Message):
    __slots__ = ("host", "command_line", "time")
    class CommandLineEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    HOST_FIELD_NUMBER: _ClassVar[int]
    COMMAND_LINE_FIELD_NUMBER: _ClassVar[int]
    TIME_FIELD_NUMBER: _ClassVar[int]
    host: HostInfo
    command_line: _containers.ScalarMap[str, str]
    time: float
    def __init__(self, host: _Optional[_Union[HostInfo, _Mapping]] = ..., command_line: _Optional[_Mapping[str, str]] = ..., time: _Optional[float] = ...) -> None: ...

class HostInfo(_message.Message):
    __slots__ = ("number", "pid", "incarnation", "threads", "devices", "name", "slots", "port")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    THREADS_FIELD_NUMBER: _ClassVar[int]
    DEVICES_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    PORT_FIELD_NUMBER: _ClassVar[int]
    number: int
    pid: int
    incarnation: str
    threads: int
    devices: int
    name: str
    slots: int
    port: int
    def __init__(self, number: _Optional[int] = ..., pid: _Optional[int] = ..., incarnation: _Optional[str] = ..., threads: _Optional[int] = ..., devices: _Optional[int] = ..., name: _Optional[str] = ..., slots: _Optional[int] = ..., port: _Optional[int] = ...) -> None: ...

class HostAdmissionReply(_message.Message):
    __slots__ = ("settings", "refusal", "retry", "term", "number", "leader", "hosts", "job")
    SETTINGS_FIELD_NUMBER: _ClassVar[int]
    REFUSAL_FIELD_NUMBER: _ClassVar[int]
    RETRY_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    LEADER_FIELD_NUMBER: _ClassVar[int]
    HOSTS_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    settings: bytes
    refusal: str
    retry: bool
    term: int
    number: int
    leader: int
    hosts: bytes
    job: str
    def __init__(self, settings: _Optional[bytes] = ..., refusal: _Optional[str] = ..., retry: bool = ..., term: _Optional[int] = ..., number: _Optional[int] = ..., leader: _Optional[int] = ..., hosts: _Optional[bytes] = ..., job: _Optional[str] = ...) -> None: ...

class ReplicateRequest(_message.Message):
    __slots__ = ("job", "term", "leader", "number", "now", "state", "version", "committed", "starts", "kills", "reports", "end", "leaves", "requests", "incarnation", "host")
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
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
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
    incarnation: str
    host: int
    def __init__(self, job: _Optional[str] = ..., term: _Optional[int] = ..., leader: _Optional[int] = ..., number: _Optional[int] = ..., now: _Optional[float] = ..., state: _Optional[bytes] = ..., version: _Optional[int] = ..., committed: _Optional[int] = ..., starts: _Optional[_Iterable[_Union[Spawn, _Mapping]]] = ..., kills: _Optional[_Iterable[int]] = ..., reports: _Optional[_Iterable[_Union[Records, _Mapping]]] = ..., end: _Optional[_Union[JobEnd, _Mapping]] = ..., leaves: bool = ..., requests: _Optional[bytes] = ..., incarnation: _Optional[str] = ..., host: _Optional[int] = ...) -> None: ...

class Spawn(_message.Message):
    __slots__ = ("peer", "joins", "leaving", "threads", "host", "loads_only")
    PEER_FIELD_NUMBER: _ClassVar[int]
    JOINS_FIELD_NUMBER: _ClassVar[int]
    LEAVING_FIELD_NUMBER: _ClassVar[int]
    THREADS_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    LOADS_ONLY_FIELD_NUMBER: _ClassVar[int]
    peer: int
    joins: bool
    leaving: _containers.RepeatedScalarFieldContainer[int]
    threads: int
    host: int
    loads_only: bool
    def __init__(self, peer: _Optional[int] = ..., joins: bool = ..., leaving: _Optional[_Iterable[int]] = ..., threads: _Optional[int] = ..., host: _Optional[int] = ..., loads_only: bool = ...) -> None: ...

class JobEnd(_message.Message):
    __slots__ = ("code", "why", "peer", "failed", "output", "chosen", "restarts")
    CODE_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    PEER_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_FIELD_NUMBER: _ClassVar[int]
    CHOSEN_FIELD_NUMBER: _ClassVar[int]
    RESTARTS_FIELD_NUMBER: _ClassVar[int]
    code: int
    why: str
    peer: int
    failed: bool
    output: _containers.RepeatedScalarFieldContainer[str]
    chosen: bool
    restarts: int
    def __init__(self, code: _Optional[int] = ..., why: _Optional[str] = ..., peer: _Optional[int] = ..., failed: bool = ..., output: _Optional[_Iterable[str]] = ..., chosen: bool = ..., restarts: _Optional[int] = ...) -> None: ...

class ReplicateReply(_message.Message):
    __slots__ = ("started", "pid")
    STARTED_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    started: _containers.RepeatedScalarFieldContainer[int]
    pid: int
    def __init__(self, started: _Optional[_Iterable[int]] = ..., pid: _Optional[int] = ...) -> None: ...

class VoteRequest(_message.Message):
    __slots__ = ("job", "term", "host", "binding", "log_term", "log_version")
    JOB_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    BINDING_FIELD_NUMBER: _ClassVar[int]
    LOG_TERM_FIELD_NUMBER: _ClassVar[int]
    LOG_VERSION_FIELD_NUMBER: _ClassVar[int]
    job: str
    term: int
    host: int
    binding: bool
    log_term: int
    log_version: int
    def __init__(self, job: _Optional[str] = ..., term: _Optional[int] = ..., host: _Optional[int] = ..., binding: bool = ..., log_term: _Optional[int] = ..., log_version: _Optional[int] = ...) -> None: ...

class VoteReply(_message.Message):
    __slots__ = ("granted", "hears_leader", "fenced", "term", "version", "state", "voted_term", "requests", "has_quorum")
    GRANTED_FIELD_NUMBER: _ClassVar[int]
    HEARS_LEADER_FIELD_NUMBER: _ClassVar[int]
    FENCED_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    VOTED_TERM_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_FIELD_NUMBER: _ClassVar[int]
    HAS_QUORUM_FIELD_NUMBER: _ClassVar[int]
    granted: bool
    hears_leader: bool
    fenced: bool
    term: int
    version: int
    state: bytes
    voted_term: int
    requests: bytes
    has_quorum: bool
    def __init__(self, granted: bool = ..., hears_leader: bool = ..., fenced: bool = ..., term: _Optional[int] = ..., version: _Optional[int] = ..., state: _Optional[bytes] = ..., voted_term: _Optional[int] = ..., requests: _Optional[bytes] = ..., has_quorum: bool = ...) -> None: ...

class HostEvent(_message.Message):
    __slots__ = ("host", "kind", "peer", "pid", "code", "tail", "number", "memory_bytes")
    HOST_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    PEER_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    TAIL_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    host: int
    kind: HostEventKind
    peer: int
    pid: int
    code: int
    tail: _containers.RepeatedScalarFieldContainer[str]
    number: int
    memory_bytes: int
    def __init__(self, host: _Optional[int] = ..., kind: _Optional[_Union[HostEventKind, str]] = ..., peer: _Optional[int] = ..., pid: _Optional[int] = ..., code: _Optional[int] = ..., tail: _Optional[_Iterable[str]] = ..., number: _Optional[int] = ..., memory_bytes: _Optional[int] = ...) -> None: ...

class Asked(_message.Message):
    __slots__ = ("resize", "leave", "scale_out", "migrate", "profile", "set_batch", "set_rate", "save_checkpoint", "stop_training", "retry", "set_limits", "release", "set_number", "set_average_interval", "by", "step", "inputs", "won", "lost", "id", "if_view", "number", "superseded_by", "sizes")
    class InputsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
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
    SET_LIMITS_FIELD_NUMBER: _ClassVar[int]
    RELEASE_FIELD_NUMBER: _ClassVar[int]
    SET_NUMBER_FIELD_NUMBER: _ClassVar[int]
    SET_AVERAGE_INTERVAL_FIELD_NUMBER: _ClassVar[int]
    BY_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    INPUTS_FIELD_NUMBER: _ClassVar[int]
    WON_FIELD_NUMBER: _ClassVar[int]
    LOST_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    IF_VIEW_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    SUPERSEDED_BY_FIELD_NUMBER: _ClassVar[int]
    SIZES_FIELD_NUMBER: _ClassVar[int]
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
    set_limits: SetLimits
    release: Release
    set_number: SetNumber
    set_average_interval: SetAverageInterval
    by: str
    step: int
    inputs: _containers.ScalarMap[str, float]
    won: _containers.RepeatedScalarFieldContainer[str]
    lost: _containers.RepeatedScalarFieldContainer[str]
    id: str
    if_view: int
    number: int
    superseded_by: str
    sizes: SizeLimits
    def __init__(self, resize: _Optional[_Union[Resize, _Mapping]] = ..., leave: _Optional[_Union[Leave, _Mapping]] = ..., scale_out: _Optional[_Union[ScaleOut, _Mapping]] = ..., migrate: _Optional[_Union[Migrate, _Mapping]] = ..., profile: _Optional[_Union[Profile, _Mapping]] = ..., set_batch: _Optional[_Union[SetBatch, _Mapping]] = ..., set_rate: _Optional[_Union[SetRate, _Mapping]] = ..., save_checkpoint: _Optional[_Union[SaveCheckpoint, _Mapping]] = ..., stop_training: _Optional[_Union[StopTraining, _Mapping]] = ..., retry: _Optional[_Union[Retry, _Mapping]] = ..., set_limits: _Optional[_Union[SetLimits, _Mapping]] = ..., release: _Optional[_Union[Release, _Mapping]] = ..., set_number: _Optional[_Union[SetNumber, _Mapping]] = ..., set_average_interval: _Optional[_Union[SetAverageInterval, _Mapping]] = ..., by: _Optional[str] = ..., step: _Optional[int] = ..., inputs: _Optional[_Mapping[str, float]] = ..., won: _Optional[_Iterable[str]] = ..., lost: _Optional[_Iterable[str]] = ..., id: _Optional[str] = ..., if_view: _Optional[int] = ..., number: _Optional[int] = ..., superseded_by: _Optional[str] = ..., sizes: _Optional[_Union[SizeLimits, _Mapping]] = ...) -> None: ...

class Resize(_message.Message):
    __slots__ = ("size", "keep", "max_global_batch", "hold_s", "batch", "rate", "host")
    SIZE_FIELD_NUMBER: _ClassVar[int]
    KEEP_FIELD_NUMBER: _ClassVar[int]
    MAX_GLOBAL_BATCH_FIELD_NUMBER: _ClassVar[int]
    HOLD_S_FIELD_NUMBER: _ClassVar[int]
    BATCH_FIELD_NUMBER: _ClassVar[int]
    RATE_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    size: int
    keep: Keep
    max_global_batch: int
    hold_s: float
    batch: SetBatch
    rate: SetRate
    host: int
    def __init__(self, size: _Optional[int] = ..., keep: _Optional[_Union[Keep, str]] = ..., max_global_batch: _Optional[int] = ..., hold_s: _Optional[float] = ..., batch: _Optional[_Union[SetBatch, _Mapping]] = ..., rate: _Optional[_Union[SetRate, _Mapping]] = ..., host: _Optional[int] = ...) -> None: ...

class Leave(_message.Message):
    __slots__ = ("peers", "when", "size", "keep", "host")
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
    def __init__(self, peers: _Optional[_Iterable[int]] = ..., when: _Optional[_Union[When, str]] = ..., size: _Optional[int] = ..., keep: _Optional[_Union[Keep, str]] = ..., host: _Optional[int] = ...) -> None: ...

class ScaleOut(_message.Message):
    __slots__ = ("count", "keep", "host")
    COUNT_FIELD_NUMBER: _ClassVar[int]
    KEEP_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    count: int
    keep: Keep
    host: str
    def __init__(self, count: _Optional[int] = ..., keep: _Optional[_Union[Keep, str]] = ..., host: _Optional[str] = ...) -> None: ...

class Migrate(_message.Message):
    __slots__ = ("peer", "host")
    PEER_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    peer: int
    host: str
    def __init__(self, peer: _Optional[int] = ..., host: _Optional[str] = ...) -> None: ...

class Profile(_message.Message):
    __slots__ = ("minimum", "maximum", "steps", "keep", "batches")
    MINIMUM_FIELD_NUMBER: _ClassVar[int]
    MAXIMUM_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    KEEP_FIELD_NUMBER: _ClassVar[int]
    BATCHES_FIELD_NUMBER: _ClassVar[int]
    minimum: int
    maximum: int
    steps: int
    keep: Keep
    batches: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, minimum: _Optional[int] = ..., maximum: _Optional[int] = ..., steps: _Optional[int] = ..., keep: _Optional[_Union[Keep, str]] = ..., batches: _Optional[_Iterable[int]] = ...) -> None: ...

class SetLimits(_message.Message):
    __slots__ = ("minimum", "maximum", "keep")
    MINIMUM_FIELD_NUMBER: _ClassVar[int]
    MAXIMUM_FIELD_NUMBER: _ClassVar[int]
    KEEP_FIELD_NUMBER: _ClassVar[int]
    minimum: int
    maximum: int
    keep: Keep
    def __init__(self, minimum: _Optional[int] = ..., maximum: _Optional[int] = ..., keep: _Optional[_Union[Keep, str]] = ...) -> None: ...

class Release(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class SetBatch(_message.Message):
    __slots__ = ("samples",)
    SAMPLES_FIELD_NUMBER: _ClassVar[int]
    samples: float
    def __init__(self, samples: _Optional[float] = ...) -> None: ...

class SetRate(_message.Message):
    __slots__ = ("rate", "over", "unit")
    RATE_FIELD_NUMBER: _ClassVar[int]
    OVER_FIELD_NUMBER: _ClassVar[int]
    UNIT_FIELD_NUMBER: _ClassVar[int]
    rate: float
    over: float
    unit: RampUnit
    def __init__(self, rate: _Optional[float] = ..., over: _Optional[float] = ..., unit: _Optional[_Union[RampUnit, str]] = ...) -> None: ...

class SetAverageInterval(_message.Message):
    __slots__ = ("every",)
    EVERY_FIELD_NUMBER: _ClassVar[int]
    every: float
    def __init__(self, every: _Optional[float] = ...) -> None: ...

class SetNumber(_message.Message):
    __slots__ = ("name", "value")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    name: str
    value: float
    def __init__(self, name: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...

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
    __slots__ = ("id", "words", "state", "reason", "view", "seconds", "points")
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
    def __init__(self, id: _Optional[str] = ..., words: _Optional[str] = ..., state: _Optional[_Union[RequestState, str]] = ..., reason: _Optional[str] = ..., view: _Optional[int] = ..., seconds: _Optional[float] = ..., points: _Optional[_Iterable[_Union[Point, _Mapping]]] = ...) -> None: ...

class Point(_message.Message):
    __slots__ = ("size", "steps", "samples", "seconds")
    SIZE_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    size: int
    steps: int
    samples: int
    seconds: float
    def __init__(self, size: _Optional[int] = ..., steps: _Optional[int] = ..., samples: _Optional[int] = ..., seconds: _Optional[float] = ...) -> None: ...

class RequestId(_message.Message):
    __slots__ = ("id",)
    ID_FIELD_NUMBER: _ClassVar[int]
    id: str
    def __init__(self, id: _Optional[str] = ...) -> None: ...

class Empty(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class JobStatus(_message.Message):
    __slots__ = ("job", "scaling", "membership", "peers", "figures", "request", "troubles", "progress")
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
    def __init__(self, job: _Optional[str] = ..., scaling: _Optional[_Union[Scaling, str]] = ..., membership: _Optional[_Union[MembershipStatus, _Mapping]] = ..., peers: _Optional[_Iterable[_Union[PeerStatus, _Mapping]]] = ..., figures: _Optional[_Union[JobMetrics, _Mapping]] = ..., request: _Optional[_Union[RequestProgress, _Mapping]] = ..., troubles: _Optional[_Iterable[_Union[Trouble, _Mapping]]] = ..., progress: _Optional[_Union[TrainingProgress, _Mapping]] = ...) -> None: ...

class MembershipStatus(_message.Message):
    __slots__ = ("version", "size", "target", "minimum", "maximum", "held_at", "held_for_s")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    MINIMUM_FIELD_NUMBER: _ClassVar[int]
    MAXIMUM_FIELD_NUMBER: _ClassVar[int]
    HELD_AT_FIELD_NUMBER: _ClassVar[int]
    HELD_FOR_S_FIELD_NUMBER: _ClassVar[int]
    version: int
    size: int
    target: int
    minimum: int
    maximum: int
    held_at: int
    held_for_s: float
    def __init__(self, version: _Optional[int] = ..., size: _Optional[int] = ..., target: _Optional[int] = ..., minimum: _Optional[int] = ..., maximum: _Optional[int] = ..., held_at: _Optional[int] = ..., held_for_s: _Optional[float] = ...) -> None: ...

class PeerStatus(_message.Message):
    __slots__ = ("id", "rank", "host", "pid", "state", "for_s", "speed", "is_straggler", "address")
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
    def __init__(self, id: _Optional[int] = ..., rank: _Optional[int] = ..., host: _Optional[str] = ..., pid: _Optional[int] = ..., state: _Optional[_Union[PeerState, str]] = ..., for_s: _Optional[float] = ..., speed: _Optional[float] = ..., is_straggler: bool = ..., address: _Optional[str] = ...) -> None: ...

class JobMetrics(_message.Message):
    __slots__ = ("step", "epoch", "global_batch_size", "loss", "samples_per_s")
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
    def __init__(self, step: _Optional[int] = ..., epoch: _Optional[int] = ..., global_batch_size: _Optional[int] = ..., loss: _Optional[float] = ..., samples_per_s: _Optional[float] = ...) -> None: ...

class TrainingProgress(_message.Message):
    __slots__ = ("samples", "epoch", "epochs", "samples_left", "steps_left", "seconds_left", "fit")
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
    def __init__(self, samples: _Optional[int] = ..., epoch: _Optional[int] = ..., epochs: _Optional[int] = ..., samples_left: _Optional[int] = ..., steps_left: _Optional[int] = ..., seconds_left: _Optional[float] = ..., fit: _Optional[int] = ...) -> None: ...

class Trouble(_message.Message):
    __slots__ = ("time", "text")
    TIME_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    time: float
    text: str
    def __init__(self, time: _Optional[float] = ..., text: _Optional[str] = ...) -> None: ...

class RequestPlan(_message.Message):
    __slots__ = ("words", "refusal", "view", "before", "after", "joins", "leaves", "missing", "batch_before", "batch_after", "refused_sizes", "held_at", "held_for_s")
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
    HELD_AT_FIELD_NUMBER: _ClassVar[int]
    HELD_FOR_S_FIELD_NUMBER: _ClassVar[int]
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
    held_at: int
    held_for_s: float
    def __init__(self, words: _Optional[str] = ..., refusal: _Optional[str] = ..., view: _Optional[int] = ..., before: _Optional[int] = ..., after: _Optional[int] = ..., joins: _Optional[_Iterable[_Union[PlannedPeer, _Mapping]]] = ..., leaves: _Optional[_Iterable[_Union[PlannedPeer, _Mapping]]] = ..., missing: _Optional[int] = ..., batch_before: _Optional[int] = ..., batch_after: _Optional[int] = ..., refused_sizes: _Optional[_Iterable[_Union[RefusedSizes, _Mapping]]] = ..., held_at: _Optional[int] = ..., held_for_s: _Optional[float] = ...) -> None: ...

class PlannedPeer(_message.Message):
    __slots__ = ("id", "host")
    ID_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    id: int
    host: str
    def __init__(self, id: _Optional[int] = ..., host: _Optional[str] = ...) -> None: ...

class RefusedSizes(_message.Message):
    __slots__ = ("first", "last", "reason")
    FIRST_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    first: int
    last: int
    reason: str
    def __init__(self, first: _Optional[int] = ..., last: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...
