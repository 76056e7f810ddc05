"""Every topic as a typed value: the table of contents of the bus.

Creation, the AsyncAPI document, ACLs, the picture in ARCHITECTURE.md and the ClickHouse tables come
from this list (design section 4). Topic names stand nowhere else. Full names carry a prefix from
the settings: `Topic.full(prefix)`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, ClassVar, Generic, Protocol, Self, TypeVar

from schemas.enums import Role
from schemas.ids import Version
from schemas.records.control_event import ControlEvent
from schemas.records.dead_letter import DeadLetter
from schemas.records.episode_event import EpisodeEvent
from schemas.records.gate_decision import GateDecision
from schemas.records.gated_trajectory import GatedTrajectory
from schemas.records.learner_event import LearnerEvent
from schemas.records.metric_point import MetricPoint
from schemas.records.payload_chunk import PayloadChunk
from schemas.records.policy_version import PolicyVersion
from schemas.records.refresh_event import RefreshEvent
from schemas.records.task import Task
from schemas.records.token_commit import TokenCommit
from schemas.records.tool_event import ToolEvent
from schemas.records.trajectory import Trajectory
from schemas.records.verifier_result import VerifierResult
from schemas.records.verify_request import VerifyRequest
from schemas.records.worker_state import WorkerState


class Record(Protocol):
    """What every generated record type offers."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    def to_avro(self) -> dict[str, Any]: ...

    @classmethod
    def from_avro(cls, raw: dict[str, Any]) -> Self: ...


R = TypeVar("R", bound=Record)


class Cleanup(StrEnum):
    """Kafka's cleanup policy of a topic."""

    DELETE = "delete"
    COMPACT = "compact"


class Compression(StrEnum):
    """Compression by the producer."""

    LZ4 = "lz4"
    ZSTD = "zstd"


PARTITIONS_DEFAULT = 12
SEGMENT_BYTES = 268_435_456
MESSAGE_BYTES_MAX = 1_048_588
COMMIT_BYTES_MAX = 262_144
CHUNK_BYTES_MAX = 524_288
DEAD_LETTER_PART_BYTES = 900_000
_THIRTY_DAYS_MS = 2_592_000_000
_SEVEN_DAYS_MS = 604_800_000


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Topic(Generic[R]):
    """One topic: its record, key, partitioning, retention, writers and readers."""

    name: str
    """Logical name with its version, without the prefix."""
    record: type[R]
    schema: str
    """File stem under `schemas/avro/`."""
    key: Callable[[R], str]
    meaning: str
    writers: tuple[Role, ...]
    readers: tuple[Role, ...]
    by_group: Callable[[R], str] | None = None
    """Set on the topics marked with a diamond: what is hashed for the partition, always the group
    id.
    """
    cleanup: Cleanup = Cleanup.DELETE
    retention_ms: int = -1
    compression: Compression = Compression.ZSTD
    linger_ms: int = 1
    extra: Mapping[str, str] = field(default_factory=dict)

    def full(self, prefix: str) -> str:
        """Return the name on the broker."""
        return f"{prefix}.{self.name}"

    def subject(self, prefix: str) -> str:
        """Return the registry subject of its values."""
        return f"{self.full(prefix)}-value"

    @property
    def is_grouped(self) -> bool:
        """Whether its records go to the partition of their group."""
        return self.by_group is not None

    def config(self, *, replicas: int) -> dict[str, str]:
        """Return the broker settings of the topic for a replication factor."""
        settings = {
            "cleanup.policy": self.cleanup.value,
            "min.insync.replicas": str(2 if replicas >= 3 else 1),
            "unclean.leader.election.enable": "false",
            "max.message.bytes": str(MESSAGE_BYTES_MAX),
            "message.timestamp.type": "LogAppendTime",
            "segment.bytes": str(SEGMENT_BYTES),
        }
        if self.cleanup is Cleanup.COMPACT:
            settings |= {
                "min.compaction.lag.ms": "60000",
                "delete.retention.ms": str(_SEVEN_DAYS_MS),
            }
        else:
            settings["retention.ms"] = str(self.retention_ms)
        return settings | dict(self.extra)


def _episode(record: Any) -> str:
    return str(record.episode_id)


def _group(record: Any) -> str:
    return str(record.group_id)


def _run(record: Any) -> str:
    return str(record.run_id)


TASKS: Topic[Task] = Topic(
    name="tasks.v1",
    record=Task,
    schema="task",
    key=lambda r: r.task_id,
    meaning="work offered, with its stream ordinal",
    writers=(Role.TASK_SOURCE,),
    readers=(Role.SCHEDULER, Role.TASK_SOURCE, Role.SINK),
)
EPISODES: Topic[EpisodeEvent] = Topic(
    name="episodes.v1",
    record=EpisodeEvent,
    schema="episode_event",
    key=_episode,
    by_group=_group,
    meaning="fences of schedulers, issue, leases, progress and end of episodes",
    writers=(Role.SCHEDULER, Role.ENVIRONMENT),
    readers=(
        Role.SCHEDULER,
        Role.ENVIRONMENT,
        Role.ASSEMBLER,
        Role.GATE,
        Role.LEARNER,
        Role.SINK,
    ),
)
TOKENS: Topic[TokenCommit] = Topic(
    name="tokens.v1",
    record=TokenCommit,
    schema="token_commit",
    key=_episode,
    by_group=_group,
    meaning="the token write-ahead log",
    writers=(Role.INFERENCE,),
    readers=(Role.INFERENCE, Role.ENVIRONMENT, Role.ASSEMBLER, Role.SINK),
    compression=Compression.LZ4,
)
TOOL_EVENTS: Topic[ToolEvent] = Topic(
    name="tool-events.v1",
    record=ToolEvent,
    schema="tool_event",
    key=_episode,
    by_group=_group,
    meaning="tool calls, logged before they run",
    writers=(Role.ENVIRONMENT,),
    readers=(Role.ENVIRONMENT, Role.ASSEMBLER, Role.SINK),
    compression=Compression.LZ4,
)
VERIFY_REQUESTS: Topic[VerifyRequest] = Topic(
    name="verify-requests.v1",
    record=VerifyRequest,
    schema="verify_request",
    key=_episode,
    by_group=_group,
    meaning="ended episodes to judge",
    writers=(Role.ENVIRONMENT,),
    readers=(Role.VERIFIER, Role.SINK),
)
VERDICTS: Topic[VerifierResult] = Topic(
    name="verdicts.v1",
    record=VerifierResult,
    schema="verifier_result",
    key=_episode,
    by_group=_group,
    meaning="code, reward components, evidence, cost",
    writers=(Role.VERIFIER,),
    readers=(Role.ASSEMBLER, Role.SINK),
)
PAYLOADS: Topic[PayloadChunk] = Topic(
    name="payloads.v1",
    record=PayloadChunk,
    schema="payload_chunk",
    key=_episode,
    by_group=_group,
    meaning="heavy per-token fields, checksummed, at most 512 KiB each",
    writers=(Role.ASSEMBLER, Role.LEARNER),
    readers=(Role.LEARNER,),
)
TRAJECTORIES: Topic[Trajectory] = Topic(
    name="trajectories.v1",
    record=Trajectory,
    schema="trajectory",
    key=_episode,
    by_group=_group,
    meaning="light metadata that lists its chunks' positions",
    writers=(Role.ASSEMBLER,),
    readers=(
        Role.ASSEMBLER,
        Role.GATE,
        Role.SCHEDULER,
        Role.LEARNER,
        Role.LAG_AGE,
        Role.SINK,
    ),
)
GATE_DECISIONS: Topic[GateDecision] = Topic(
    name="gate-decisions.v1",
    record=GateDecision,
    schema="gate_decision",
    key=_group,
    by_group=_group,
    meaning="admit or drop for each member, with lag and age at that moment",
    writers=(Role.GATE,),
    readers=(Role.GATE, Role.SCHEDULER, Role.LEARNER, Role.SINK),
)
GATED: Topic[GatedTrajectory] = Topic(
    name="gated.v1",
    record=GatedTrajectory,
    schema="gated_trajectory",
    key=_group,
    by_group=_group,
    meaning="what the learner consumes",
    writers=(Role.GATE,),
    readers=(Role.LEARNER, Role.SINK),
)
LEARNER_STEPS: Topic[LearnerEvent] = Topic(
    name="learner-steps.v1",
    record=LearnerEvent,
    schema="learner_event",
    key=_run,
    meaning="epochs, steps, skips and checkpoints; one partition per run orders them",
    writers=(Role.LEARNER,),
    readers=(
        Role.LEARNER,
        Role.SCHEDULER,
        Role.GATE,
        Role.REFRESH,
        Role.INFERENCE,
        Role.LAG_AGE,
        Role.SINK,
    ),
)
POLICIES: Topic[PolicyVersion] = Topic(
    name="policies.v1",
    record=PolicyVersion,
    schema="policy_version",
    key=lambda r: f"{r.run_id}/{Version(r.epoch, r.number)}",
    meaning="immutable versions: digest, parent, ordinal, location",
    writers=(Role.LEARNER,),
    readers=(Role.REFRESH, Role.INFERENCE, Role.GATE, Role.ASSEMBLER, Role.LAG_AGE, Role.SINK),
    cleanup=Cleanup.COMPACT,
)
REFRESHES: Topic[RefreshEvent] = Topic(
    name="refreshes.v1",
    record=RefreshEvent,
    schema="refresh_event",
    key=lambda r: r.worker_id,
    meaning="Prepare, Loaded, Failed, Serving(version)",
    writers=(Role.REFRESH, Role.INFERENCE),
    readers=(Role.REFRESH, Role.INFERENCE, Role.LEARNER, Role.SINK),
)
WORKERS: Topic[WorkerState] = Topic(
    name="workers.v1",
    record=WorkerState,
    schema="worker_state",
    key=lambda r: r.worker_id,
    meaning="role, address, capacity, incarnation, state",
    writers=tuple(role for role in Role if role not in ("unknown", "cli")),
    readers=(Role.SCHEDULER, Role.ENVIRONMENT, Role.REFRESH, Role.LEARNER, Role.SINK),
    cleanup=Cleanup.COMPACT,
)
METRICS: Topic[MetricPoint] = Topic(
    name="metrics.v1",
    record=MetricPoint,
    schema="metric_point",
    key=_run,
    meaning="gauges and samples that no other record carries",
    writers=tuple(role for role in Role if role != "unknown"),
    readers=(Role.SINK,),
    retention_ms=_THIRTY_DAYS_MS,
    linger_ms=50,
)
DEAD_LETTERS: Topic[DeadLetter] = Topic(
    name="dead-letters.v1",
    record=DeadLetter,
    schema="dead_letter",
    key=lambda r: f"{r.origin_topic}:{r.origin_partition}",
    meaning="raw bytes, schema id, error, position of what no consumer could take",
    writers=tuple(role for role in Role if role != "unknown"),
    readers=(Role.CLI, Role.SINK),
    retention_ms=_THIRTY_DAYS_MS,
)
CONTROL: Topic[ControlEvent] = Topic(
    name="control.v1",
    record=ControlEvent,
    schema="control_event",
    key=_run,
    meaning="start with every partition's end offset, stop, pause, resume, draining, end, audits",
    writers=(Role.CLI, Role.SCHEDULER),
    readers=tuple(role for role in Role if role != "unknown"),
)

ALL: tuple[Topic[Any], ...] = (
    TASKS,
    EPISODES,
    TOKENS,
    TOOL_EVENTS,
    VERIFY_REQUESTS,
    VERDICTS,
    PAYLOADS,
    TRAJECTORIES,
    GATE_DECISIONS,
    GATED,
    LEARNER_STEPS,
    POLICIES,
    REFRESHES,
    WORKERS,
    METRICS,
    DEAD_LETTERS,
    CONTROL,
)
BY_NAME: Mapping[str, Topic[Any]] = {topic.name: topic for topic in ALL}
