"""What a task package offers and what the worker hands to it, as Protocols and plain values.

A task is one folder under `environments/`: data, environment and rubric together. It imports
`schemas`, this module, `environments.sandbox` and its own files, and knows no bus. Invariants:

- `act` and `observe` are functions of the task and of what they are given: after a crash the worker
  calls them again with the same replies and the same tool outputs, and that rebuilds the
  environment. Effects belong in `call`.
- A tool runs only through `call`, which the worker invokes after its Intent is durable.
- A rubric gives a reward only under a code that carries one; *no verdict* is never a reward of
  zero.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias, runtime_checkable

from schemas.enums import ClockOwner, FinishReason, StopCause, ToolExit, VerdictCode
from schemas.records.task import Task

Json: TypeAlias = Mapping[str, Any]
"""A JSON object as it stands in a payload, an artifact or tool arguments."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """A tool call that the policy asked for."""

    id: str
    """Tells the calls of one reply apart."""
    name: str
    arguments: str
    """JSON text as the model wrote it; it may be no JSON at all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One chat message."""

    role: str
    """system, user, assistant or tool."""
    content: str
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str = ""

    def to_openai(self) -> dict[str, Any]:
        """Return the message in the shape of the OpenAI chat API."""
        out: dict[str, Any] = {"role": self.role, "content": self.content}
        if self.tool_calls:
            out["tool_calls"] = [
                {
                    "id": call.id,
                    "type": "function",
                    "function": {"name": call.name, "arguments": call.arguments},
                }
                for call in self.tool_calls
            ]
        if self.tool_call_id:
            out["tool_call_id"] = self.tool_call_id
        return out

    @classmethod
    def from_openai(cls, raw: Json) -> Message:
        """Read a message of the OpenAI chat API; raise KeyError or TypeError when it is none."""
        calls = tuple(
            ToolCall(
                id=str(call.get("id", "")),
                name=str(call["function"]["name"]),
                arguments=str(call["function"]["arguments"]),
            )
            for call in raw.get("tool_calls") or ()
        )
        return cls(
            role=str(raw["role"]),
            content=str(raw.get("content") or ""),
            tool_calls=calls,
            tool_call_id=str(raw.get("tool_call_id") or ""),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """What a tool declares; the worker's treatment of a crash follows from it (design section
    6).
    """

    name: str
    description: str
    parameters: Json
    """JSON schema of the arguments."""
    idempotent: bool
    """Running the same call twice does no harm."""
    external: bool
    """It has effects outside its sandbox, so that it runs only after its Intent was read back."""
    timeout_s: float
    """Longest time a call may take. Unit: s."""
    announced: bool = True
    """The request lists it, so that the gateway tells the model of it and reads its calls."""
    asks_by_key: bool = False
    """It keeps a log by key and can say what became of a call."""

    def to_openai(self) -> dict[str, Any]:
        """Return the declaration in the shape of the OpenAI chat API."""
        function = {
            "name": self.name,
            "description": self.description,
            "parameters": dict(self.parameters),
        }
        return {"type": "function", "function": function}


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolOutput:
    """What a tool call came to."""

    output: str
    """As the model sees it. At most 64 KiB."""
    exit_class: ToolExit = ToolExit.OK
    status_raw: str = ""
    """Raw status, such as `exit 1` or `signal 9`."""
    output_digest: str = ""
    """sha256 of the raw output; empty when `output` is the raw output."""
    truncation: str = ""
    """Rule by which the output was shortened; empty when whole."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Opening:
    """How an episode begins: the first messages and the tools the policy may call."""

    messages: tuple[Message, ...]
    tools: tuple[Tool, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """One finished turn of the policy."""

    text: str
    """Content, without the calls."""
    tool_calls: tuple[ToolCall, ...] = ()
    """Calls of announced tools that the gateway read out of the turn."""
    finish_reason: FinishReason = FinishReason.STOP
    tokens: int = 0
    """Action tokens of the turn. Unit: tokens."""

    @property
    def message(self) -> Message:
        """The reply as an assistant message."""
        return Message(role="assistant", content=self.text, tool_calls=self.tool_calls)

    @property
    def ended_by_itself(self) -> bool:
        """Whether the policy ended the turn, rather than a budget."""
        return self.finish_reason in (FinishReason.STOP, FinishReason.TOOL_CALLS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Continue:
    """The episode goes on with these messages after the reply."""

    messages: tuple[Message, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CallTools:
    """The reply asks for these tool calls, to be run in this order."""

    calls: tuple[ToolCall, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """The episode is over."""

    cause: StopCause
    artifact: Json = field(default_factory=dict)
    """What the rubric needs beside the transcript."""
    detail: str = ""
    """Human sentence; needed where the cause is not policy_stop."""


Step: TypeAlias = Continue | CallTools | Done


class Environment(Protocol):
    """One running episode. The worker calls it from one coroutine and bounds every call."""

    async def reset(self) -> Opening:
        """Build the start of the episode."""
        ...

    async def act(self, reply: Reply) -> Step:
        """Take the policy's reply."""
        ...

    async def call(self, call: ToolCall, *, key: str, attempt: int) -> ToolOutput:
        """Run a tool. A non-idempotent external tool refuses an attempt lower than one it has seen
        for the key.

        It refuses with FencedError. A call that the policy got wrong is a ToolOutput with exit
        class tool_error, never an exception.
        """
        ...

    async def ask(self, call: ToolCall, *, key: str, attempt: int) -> ToolOutput | None:
        """Ask a tool that keeps a log by key what became of a call; None when it knows of none.

        Asking raises the lowest attempt that the tool still serves for the key, so that after a
        None no earlier attempt can run the call any more.
        """
        ...

    async def observe(self, outputs: Sequence[ToolOutput]) -> Step:
        """Take the outputs of the calls just asked for, in their order."""
        ...

    async def close(self) -> None:
        """Release what the episode holds."""
        ...


class SingleTurn:
    """The tool half of an Environment for tasks without tools, to inherit from."""

    async def call(self, call: ToolCall, *, key: str, attempt: int) -> ToolOutput:
        """Refuse: the task declares no tool."""
        raise LookupError(f"no tool named {call.name!r} (call {key}, attempt {attempt})")

    async def ask(self, call: ToolCall, *, key: str, attempt: int) -> ToolOutput | None:
        """Know of no call."""
        raise LookupError(f"no tool named {call.name!r} (call {key}, attempt {attempt})")

    async def observe(self, outputs: Sequence[ToolOutput]) -> Step:
        """Refuse: no call was asked for."""
        raise LookupError(f"{len(outputs)} outputs for a task without tools")

    async def close(self) -> None:
        """Hold nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """What a rubric judges."""

    transcript: tuple[Message, ...]
    artifact: Json = field(default_factory=dict)
    stop_cause: StopCause = StopCause.POLICY_STOP


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """What a rubric found. The reward is the weighted sum of the components."""

    code: VerdictCode
    components: Mapping[str, float] = field(default_factory=dict)
    """Raw components, unweighted."""
    weights: Mapping[str, float] = field(default_factory=dict)
    """Weight of each component; 1.0 where none is given."""
    evidence: str = ""
    """What was compared with what. At most 16 KiB."""
    clock_owner: ClockOwner = ClockOwner.NONE
    """Whose clock ran out when the code is timeout."""

    @property
    def reward(self) -> float | None:
        """The reward, or None under a code that carries none."""
        if not self.code.carries_reward:
            return None
        return sum(value * self.weights.get(name, 1.0) for name, value in self.components.items())


@runtime_checkable
class Rubric(Protocol):
    """Judges a submission; runs in a verifier process, never in an environment."""

    def judge(self, task: Task, submission: Submission) -> Judgement:
        """Return the judgement. The same arguments give the same judgement, whatever the clock or
        locale.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Defaults:
    """Budgets and sampling of a task unless the run's settings say otherwise."""

    tokens_max: int
    """Action tokens over the episode. Unit: tokens."""
    turn_tokens_max: int
    """Action tokens in one turn. Unit: tokens."""
    turns_max: int = 1
    seconds_max: float = 120.0
    """Wall clock of the episode. Unit: s."""
    temperature: float = 0.7
    top_p: float = 1.0
    top_k: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Gold:
    """A payload with a submission that must score 1.0 and one that must score 0.0."""

    payload: str
    right: Submission
    wrong: Submission


@runtime_checkable
class TaskPackage(Protocol):
    """One task, as `environments.registry.load` returns it."""

    @property
    def name(self) -> str:
        """Name of its folder."""
        ...

    @property
    def defaults(self) -> Defaults:
        """Budgets and sampling."""
        ...

    @property
    def rubric(self) -> Rubric:
        """Its judge."""
        ...

    def digest(self, config: Json | None = None) -> str:
        """Return the sha256 over the package's files and the configuration of its tasks."""
        ...

    def verifier_digest(self) -> str:
        """Return the sha256 over what decides a verdict: the rubric and what it reads."""
        ...

    def payload(self, config: Json | None, seed: int, index: int) -> str:
        """Return the JSON of task `index` of the stream `seed`; the same arguments give the same
        text.

        It holds no answer that a guest may not see. Raises SettingsError for a configuration it
        does not know.
        """
        ...

    def environment(self, task: Task) -> Environment:
        """Return a new environment for one episode of the task; raise ValueError when the payload
        is not its own.
        """
        ...

    def gold(self) -> Sequence[Gold]:
        """Return payloads with a right and a wrong submission, for the self-check."""
        ...

    def warm(self) -> None:
        """Import and build whatever judging or making payloads needs, so that no clock counts
        it.
        """
        ...


def canonical(value: Json) -> str:
    """Return the one JSON text of a value: sorted keys, no spaces; raise TypeError when it is no
    JSON.
    """
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
