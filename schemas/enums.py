"""Closed sets of the contract, as enums whose predicates list the members once.

Every enum mirrors an Avro enum of `schemas/avro/`; `tests/schemas` compares them symbol by symbol.
`UNKNOWN` is the Avro default that an older reader sees for a newer symbol; the codec turns it into
a PoisonRecordError, so it never reaches a core.
"""

from __future__ import annotations

from enum import StrEnum


class Purpose(StrEnum):
    """What a task is for; only train episodes reach the learner."""

    UNKNOWN = "unknown"
    TRAIN = "train"
    EVALUATE = "evaluate"
    CANARY = "canary"


class EpisodeEventKind(StrEnum):
    """Which event of an episode's life this is."""

    UNKNOWN = "unknown"
    SCHEDULER_FENCE = "scheduler_fence"
    ISSUED = "issued"
    LEASED = "leased"
    PAUSE_REQUESTED = "pause_requested"
    RESUMED = "resumed"
    ABANDONED = "abandoned"
    PROGRESS = "progress"
    PAUSED = "paused"
    ENDED = "ended"


class StopCause(StrEnum):
    """Why an attempt ended (design section 7)."""

    UNKNOWN = "unknown"
    NONE = "none"
    POLICY_STOP = "policy_stop"
    INVALID_ACTION = "invalid_action"
    BUDGET_TRUNCATION = "budget_truncation"
    AGENT_CAUSED_FAULT = "agent_caused_fault"
    ENVIRONMENT_ERROR = "environment_error"
    INFRASTRUCTURE_ERROR = "infrastructure_error"
    USER_CANCEL = "user_cancel"

    @property
    def is_retried(self) -> bool:
        """Whether an attempt that ended so is leased again (design section 7)."""
        return self in (StopCause.ENVIRONMENT_ERROR, StopCause.INFRASTRUCTURE_ERROR)

    @property
    def is_final(self) -> bool:
        """Whether an Ended with this cause, by the current lease, is final."""
        return self not in (
            StopCause.ENVIRONMENT_ERROR,
            StopCause.INFRASTRUCTURE_ERROR,
            StopCause.NONE,
            StopCause.UNKNOWN,
        )


class AbandonReason(StrEnum):
    """Why the scheduler gave an episode up."""

    UNKNOWN = "unknown"
    NONE = "none"
    RETRIES_EXHAUSTED = "retries_exhausted"
    POISONED_TASK = "poisoned_task"
    UNKNOWN_TOOL = "unknown_tool"
    PAUSE_EXPIRED = "pause_expired"
    GROUP_DEADLINE = "group_deadline"
    USER_CANCEL = "user_cancel"
    RUN_ENDED = "run_ended"


class TokenKind(StrEnum):
    """What a record of the token WAL is."""

    UNKNOWN = "unknown"
    FENCE = "fence"
    CUT = "cut"
    PROMPT = "prompt"
    OBSERVATION = "observation"
    ACTION = "action"

    @property
    def carries_tokens(self) -> bool:
        """Whether records of this kind extend the sequence."""
        return self in (TokenKind.PROMPT, TokenKind.OBSERVATION, TokenKind.ACTION)


class CutReason(StrEnum):
    """Why a Cut took the sequence back."""

    UNKNOWN = "unknown"
    NONE = "none"
    FORK = "fork"
    RESTORE = "restore"
    RESTART = "restart"


class FinishReason(StrEnum):
    """Why the engine ended a turn; none while the turn goes on."""

    UNKNOWN = "unknown"
    NONE = "none"
    STOP = "stop"
    LENGTH = "length"
    TOOL_CALLS = "tool_calls"
    ABORT = "abort"


class Drift(StrEnum):
    """How a request's messages compare with the session's own tokens."""

    UNKNOWN = "unknown"
    NONE = "none"
    CLEAN = "clean"
    REALIGN = "realign"
    FORK = "fork"


class ToolEventKind(StrEnum):
    """What a tool record is."""

    UNKNOWN = "unknown"
    FENCE = "fence"
    INTENT = "intent"
    RESULT = "result"
    UNKNOWN_OUTCOME = "unknown_outcome"


class ToolExit(StrEnum):
    """How a tool call ended."""

    UNKNOWN = "unknown"
    NONE = "none"
    OK = "ok"
    TOOL_ERROR = "tool_error"
    TIMEOUT = "timeout"
    SANDBOX_LIMIT = "sandbox_limit"
    INFRA_ERROR = "infra_error"


class VerdictCode(StrEnum):
    """The seven verdict codes (requirements 3.4)."""

    UNKNOWN = "unknown"
    NONE = "none"
    CORRECT = "correct"
    WRONG_ANSWER = "wrong_answer"
    INVALID_FORMAT = "invalid_format"
    TIMEOUT = "timeout"
    INFRA_ERROR = "infra_error"
    VERIFIER_ERROR = "verifier_error"
    TAMPER_DETECTED = "tamper_detected"

    @property
    def carries_reward(self) -> bool:
        """Whether a verifier reward exists under this code (requirements 3.4)."""
        return self in (VerdictCode.CORRECT, VerdictCode.WRONG_ANSWER, VerdictCode.INVALID_FORMAT)

    @property
    def is_ours(self) -> bool:
        """Whether the verifier or the infrastructure is to blame, never the policy."""
        return self in (VerdictCode.INFRA_ERROR, VerdictCode.VERIFIER_ERROR)


class ClockOwner(StrEnum):
    """Whose clock ran out when the code is timeout."""

    UNKNOWN = "unknown"
    NONE = "none"
    AGENT = "agent"
    VERIFIER = "verifier"


class Termination(StrEnum):
    """Stop cause and verdict together (requirements 3.4)."""

    UNKNOWN = "unknown"
    SUCCESS = "success"
    TASK_FAILURE = "task_failure"
    POLICY_STOP = "policy_stop"
    INVALID_ACTION = "invalid_action"
    BUDGET_TRUNCATION = "budget_truncation"
    AGENT_CAUSED_FAULT = "agent_caused_fault"
    ENVIRONMENT_ERROR = "environment_error"
    INFRASTRUCTURE_ERROR = "infrastructure_error"
    VERIFIER_ERROR = "verifier_error"
    USER_CANCEL = "user_cancel"

    @property
    def is_policy_outcome(self) -> bool:
        """Whether the policy caused it, so that it may be trained (requirements 3.4)."""
        return self in (
            Termination.SUCCESS,
            Termination.TASK_FAILURE,
            Termination.POLICY_STOP,
            Termination.INVALID_ACTION,
            Termination.BUDGET_TRUNCATION,
            Termination.AGENT_CAUSED_FAULT,
        )

    @property
    def is_truncated(self) -> bool:
        """Whether a budget cut it short; terminated and truncated exclude each other (rule V2)."""
        return self is Termination.BUDGET_TRUNCATION


class RewardSource(StrEnum):
    """Where the reward comes from."""

    UNKNOWN = "unknown"
    NONE = "none"
    VERDICT = "verdict"
    ATTRIBUTION = "attribution"


class VersionSwitch(StrEnum):
    """Whether one episode may span policy versions."""

    UNKNOWN = "unknown"
    PINNED = "pinned"
    SPANNING = "spanning"


class GateOutcome(StrEnum):
    """What the gate decided for one member."""

    UNKNOWN = "unknown"
    ADMIT = "admit"
    DROP = "drop"


class DropReason(StrEnum):
    """Why a trajectory is not trained."""

    UNKNOWN = "unknown"
    NONE = "none"
    LAG = "lag"
    AGE = "age"
    ORPHANED_VERSION = "orphaned_version"
    NO_REWARD = "no_reward"
    VERDICT_TIMEOUT = "verdict_timeout"
    INVALID_RECORD = "invalid_record"
    INVALID_LOGPROB = "invalid_logprob"
    VERSION_MISMATCH = "version_mismatch"
    GROUP_INCOMPLETE = "group_incomplete"
    PAYLOAD_LOST = "payload_lost"
    RUN_ENDED = "run_ended"


class LearnerEventKind(StrEnum):
    """Which event of the learner's life this is."""

    UNKNOWN = "unknown"
    EPOCH_STARTED = "epoch_started"
    RESTORED = "restored"
    STEP = "step"
    SKIPPED = "skipped"
    CHECKPOINTED = "checkpointed"
    CLOSED = "closed"


class RefreshEventKind(StrEnum):
    """Which phase of a weight refresh this is."""

    UNKNOWN = "unknown"
    PREPARE = "prepare"
    LOADED = "loaded"
    FAILED = "failed"
    SERVING = "serving"


class Role(StrEnum):
    """The role of a process."""

    UNKNOWN = "unknown"
    TASK_SOURCE = "task_source"
    SCHEDULER = "scheduler"
    ENVIRONMENT = "environment"
    INFERENCE = "inference"
    VERIFIER = "verifier"
    ASSEMBLER = "assembler"
    GATE = "gate"
    LAG_AGE = "lag_age"
    LEARNER = "learner"
    REFRESH = "refresh"
    SINK = "sink"
    CLI = "cli"


class WorkerStatus(StrEnum):
    """State of a worker process."""

    UNKNOWN = "unknown"
    STARTING = "starting"
    READY = "ready"
    DRAINING = "draining"
    STOPPED = "stopped"
    FAILED = "failed"


class ControlKind(StrEnum):
    """What a control record says."""

    UNKNOWN = "unknown"
    START = "start"
    STOP = "stop"
    PAUSE = "pause"
    RESUME = "resume"
    DRAINING = "draining"
    END_OF_STREAM = "end_of_stream"
    AUDITED = "audited"
    SCHEDULER_FENCE = "scheduler_fence"
    SNAPSHOT = "snapshot"


class LetterKind(StrEnum):
    """What a record of dead-letters says."""

    UNKNOWN = "unknown"
    LETTER = "letter"
    RETRY_BEGUN = "retry_begun"
    RETRIED = "retried"


class PayloadContent(StrEnum):
    """What a payload chunk holds."""

    UNKNOWN = "unknown"
    TRAJECTORY_TOKENS = "trajectory_tokens"
    REJECTED_TOKENS = "rejected_tokens"
    ID_LIST = "id_list"
