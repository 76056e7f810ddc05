"""The judging process: reads requests as JSON lines, runs rubrics, answers in JSON lines.

It holds no bus, no secret and no clock of its own; its parent bounds its wall clock and kills it.
Whatever a rubric prints goes to stderr, so that it cannot forge an answer.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import json
import os
import random
import resource
import signal
import sys
import traceback
from typing import Any, TextIO

from environments import registry
from environments.ports import Submission
from environments.transcripts import from_text
from schemas.enums import StopCause
from schemas.errors import SettingsError, TransientError
from schemas.records.task import Task

_PR_SET_PDEATHSIG = 1


def main() -> None:
    """Answer requests until stdin ends."""
    memory_mib = int(sys.argv[1])
    # A rubric that hangs would not notice that its parent is gone.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    limit = memory_mib << 20
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    for line in sys.stdin:
        _answer(answers, _obey(json.loads(line)))


def _answer(answers: TextIO, body: dict[str, Any]) -> None:
    answers.write(json.dumps(body) + "\n")
    answers.flush()


def _obey(request: dict[str, Any]) -> dict[str, Any]:
    try:
        package = registry.load(request["package"])
        if request["kind"] == "warm":
            package.warm()
            return {"kind": "warm", "verifier_digest": package.verifier_digest()}
        return _judge(request)
    except SettingsError as error:
        return {"kind": "refused", "detail": str(error)}
    except MemoryError:
        return {"kind": "raised", "detail": "the rubric ran out of memory", "transient": True}
    except Exception as error:  # noqa: BLE001  a rubric may raise anything; it is data to us
        trace = "".join(traceback.format_exception(error))
        sys.stderr.write(trace)
        digest = hashlib.sha256(trace.encode()).hexdigest()[:16]
        detail = f"{type(error).__name__}: {error} (traceback {digest})"
        is_transient = isinstance(error, TransientError | ConnectionError | TimeoutError)
        return {"kind": "raised", "detail": detail[:2000], "transient": is_transient}


def _judge(request: dict[str, Any]) -> dict[str, Any]:
    # The same request gives the same verdict, whatever was judged before it.
    random.seed(0)
    task = Task.from_avro(request["task"])
    submission = Submission(
        transcript=from_text(request["transcript"] or "[]"),
        artifact=json.loads(request["artifact"] or "{}"),
        stop_cause=StopCause(request["stop_cause"]),
    )
    judgement = registry.load(request["package"]).rubric.judge(task, submission)
    return {
        "kind": "judged",
        "code": judgement.code.value,
        "components": {name: float(value) for name, value in judgement.components.items()},
        "weights": {name: float(value) for name, value in judgement.weights.items()},
        "evidence": judgement.evidence,
        "clock_owner": judgement.clock_owner.value,
    }


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt, BrokenPipeError):
        main()
