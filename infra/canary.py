"""What surrounds a run's learner, as the learner is told it: facts that no checkpoint may outlive,
and the canary's fixed tasks (requirements R71 to R76, R79).

The tasks are those that follow the held-out range, which neither training nor evaluation reaches.
Each fixes what the gateway would make of its first request, how its tools look and its calls are
read, and what its rubric says of a right and of a wrong answer.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any

from environments import ports, registry
from environments.core.tool_text import read_reply as read_by_environment
from inference.core.messages import read_reply as read_by_gateway
from inference.rendering import Renderer
from inference.service import make_tokenizer
from inference.tokenizer import Tokenizer, tools_digest
from infra.held_out import held_out_digest
from infra.settings import RunSettings
from learner.core.canary import TRIALS_MIN, Surroundings, Trial
from schemas.enums import Purpose
from schemas.ids import RunId, WorkerId, group_id, task_id
from schemas.records.task import Task
from schemas.tool_calls import TOOL_CLOSE, TOOL_OPEN
from stream_jobs.settings import StreamSettings, TaskSourceSettings

_EXAMPLES = {"integer": 3, "number": 0.5, "boolean": True, "array": [], "object": {}}


def surroundings(settings: RunSettings, run_id: RunId) -> Surroundings:
    """Return facts and trials of a run as this process sees them; takes seconds."""
    return observe(settings.task_source, make_tokenizer(settings.inference), run_id)


def observe(source: TaskSourceSettings, tokenizer: Tokenizer, run_id: RunId) -> Surroundings:
    """Return facts and trials of a task source and a tokenizer."""
    facts = {"mixture": _mixture(source)}
    trials: list[Trial] = []
    each = -(-TRIALS_MIN // len(source.streams))
    for stream in source.streams:
        package = registry.load(stream.environment)
        made = [
            _trial(source, stream, package, Renderer(tokenizer), tokenizer, run_id, number)
            for number in range(each)
        ]
        trials += made
        facts |= {
            f"environment of {stream.label}": package.digest(stream.config),
            f"verifier of {stream.label}": package.verifier_digest(),
            f"tool schema of {stream.label}": made[0].digests["tool schema"],
            f"held-out set of {stream.label}": held_out_digest(source, stream, package),
        }
    return Surroundings(facts=facts, trials=tuple(trials))


def _mixture(source: TaskSourceSettings) -> str:
    """Return all that decides which task stands at an ordinal, as one JSON text."""
    told = source.model_dump(mode="json")
    keys = ("seed", "group_size", "streams", "evaluate_every", "evaluate_group_size")
    ranges = ("held_out_first", "held_out_count")
    return ports.canonical({key: told[key] for key in (*keys, *ranges)})


def _trial(
    source: TaskSourceSettings,
    stream: StreamSettings,
    package: ports.TaskPackage,
    renderer: Renderer,
    tokenizer: Tokenizer,
    run_id: RunId,
    number: int,
) -> Trial:
    index = source.held_out_first + source.held_out_count + number
    task = _task(stream, package, run_id, package.payload(stream.config, source.seed, index))
    opening = asyncio.run(_open(package, task))
    tools = [tool.to_openai() for tool in opening.tools if tool.announced]
    prompt = renderer.first([message.to_openai() for message in opening.messages], tools or None)
    gold = package.gold()[number % len(package.gold())]
    judged = _task(stream, package, run_id, gold.payload)
    return Trial(
        name=f"{stream.label}/{index}",
        digests={
            "tokenizer": tokenizer.digest,
            "template": tokenizer.template_digest,
            "tool schema": tools_digest(tools),
            "environment": task.environment_digest,
            "verifier": task.verifier_digest,
        },
        prompt=tuple(prompt),
        protocol=_protocol(opening.tools),
        rewards=tuple(
            package.rubric.judge(judged, submission).reward
            for submission in (gold.right, gold.wrong)
        ),
    )


def _task(stream: StreamSettings, package: ports.TaskPackage, run_id: RunId, payload: str) -> Task:
    return Task(
        run_id=run_id,
        task_id=task_id(run_id, 0),
        group_id=group_id(run_id, 0),
        ordinal=0,
        purpose=Purpose.CANARY,
        stream=stream.label,
        environment=package.name,
        environment_digest=package.digest(stream.config),
        verifier_digest=package.verifier_digest(),
        payload=payload,
        at_us=0,
        writer_id=WorkerId("canary"),
    )


async def _open(package: ports.TaskPackage, task: Task) -> ports.Opening:
    environment = package.environment(task)
    try:
        return await environment.reset()
    finally:
        await environment.close()


def _protocol(tools: Sequence[ports.Tool]) -> str:
    """Return what the policy sees of the tools, and how a call of each is read on both sides."""
    replies = [_call_text(tool) for tool in tools] or [f"{TOOL_OPEN}no JSON{TOOL_CLOSE}"]
    told: list[dict[str, Any]] = []
    for reply in replies:
        gateway = read_by_gateway(reply, with_tools=True)
        content, calls = read_by_environment(reply)
        told.append(
            {
                "reply": reply,
                "gateway": [gateway.content, [[c.name, c.arguments] for c in gateway.calls]],
                "environment": [content, [[c.name, c.arguments] for c in calls]],
            }
        )
    return ports.canonical({"tools": [tool.to_openai() for tool in tools], "calls": told})


def _call_text(tool: ports.Tool) -> str:
    properties = tool.parameters.get("properties", {})
    arguments = {
        name: _EXAMPLES.get(str(schema.get("type", "")), "text")
        for name, schema in sorted(properties.items())
    }
    body = json.dumps({"name": tool.name, "arguments": arguments}, sort_keys=True)
    return f"{TOOL_OPEN}{body}{TOOL_CLOSE}"
