"""One judging process as its parent sees it: started, warmed, asked, and killed when it is late.

The wall clock of a try begins when the process is warm, so that starting and importing count for
nobody.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import sys
from pathlib import Path
from typing import Any

from schemas.enums import ClockOwner, VerdictCode
from schemas.records.task import Task
from schemas.records.verify_request import VerifyRequest
from verifier.core.verdicts import Died, Judged, Outcome, Raised, Refused, TimedOut
from verifier.settings import VerifierSettings

_log = logging.getLogger(__name__)
_ROOT = Path(__file__).resolve().parent.parent
PROGRAM = "verifier.judge_process"
_LINE_BYTES_MAX = 8 * 1024 * 1024
_END_S = 5.0


class Judge:
    """A process that runs one rubric at a time; it is started anew after it was killed or died."""

    def __init__(self, settings: VerifierSettings, *, program: str = PROGRAM) -> None:
        """program: the module that the process runs."""
        self._settings = settings
        self._program = program
        self._process: asyncio.subprocess.Process | None = None
        self._digests: dict[str, str] = {}
        """Verifier digest of each package that the process has warmed."""

    async def judge(self, request: VerifyRequest, task: Task) -> Outcome:
        """Judge once; every failure is an outcome."""
        refusal = await self._warm(request.environment, request.verifier_digest)
        if refusal is not None:
            return refusal
        question = {
            "kind": "judge",
            "package": request.environment,
            "task": task.to_avro(),
            "transcript": request.transcript,
            "artifact": request.artifact,
            "stop_cause": request.stop_cause.value,
        }
        return _outcome(await self._exchange(question, self._settings.judge_s))

    async def _warm(self, package: str, digest: str) -> Outcome | None:
        """Have the package imported; return why it cannot judge, or None."""
        if self._process is None or self._process.returncode is not None:
            died = await self._start()
            if died is not None:
                return died
        if package not in self._digests:
            answer = await self._exchange(
                {"kind": "warm", "package": package}, self._settings.warm_s
            )
            if not isinstance(answer, dict) or answer.get("kind") != "warm":
                if isinstance(answer, TimedOut):
                    return Died(detail=f"rubric {package!r} was not warm in {answer.limit_s:g} s")
                return _outcome(answer)
            self._digests[package] = str(answer["verifier_digest"])
        if digest and self._digests[package] != digest:
            return Refused(
                detail=f"the request asks for verifier digest {digest[:16]} of {package!r}, and "
                f"{self._digests[package][:16]} is here; run the versions that belong together"
            )
        return None

    async def _start(self) -> Died | None:
        self._digests.clear()
        try:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", self._program, str(self._settings.memory_mib),
                stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
                limit=_LINE_BYTES_MAX, cwd="/", env=_clean_environment(),
            )  # fmt: skip
        except OSError as error:
            return Died(detail=f"the judging process could not be started: {error}")
        return None

    async def _exchange(self, question: dict[str, Any], limit_s: float) -> dict[str, Any] | Outcome:
        process = self._process
        assert process is not None
        assert process.stdin is not None
        assert process.stdout is not None
        answered = False
        try:
            async with asyncio.timeout(limit_s):
                process.stdin.write(json.dumps(question).encode() + b"\n")
                await process.stdin.drain()
                line = await process.stdout.readline()
            answered = line.endswith(b"\n")
            answer = json.loads(line) if answered else None
        except TimeoutError:
            return TimedOut(limit_s=limit_s)
        except (OSError, ValueError) as error:
            return Died(detail=f"the judging process broke off: {type(error).__name__}: {error}")
        finally:
            # Without an answer nobody knows what the process is at; cancelled counts as well.
            if not answered:
                await self.close()
        if not isinstance(answer, dict):
            return Died(detail=f"the judging process ended with status {process.returncode}")
        return answer

    async def close(self) -> None:
        """Kill the process."""
        process, self._process = self._process, None
        if process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_END_S):
                await process.wait()


def _clean_environment() -> dict[str, str]:
    """Return the environment of a judge: nothing of ours that a rubric could leak or depend on."""
    return {
        "PATH": os.environ.get("PATH", "/usr/bin"),
        "HOME": "/nonexistent",
        "PYTHONPATH": str(_ROOT),
        "PYTHONHASHSEED": "0",
        "PYTHONDONTWRITEBYTECODE": "1",
        "LC_ALL": "C.UTF-8",
        "TZ": "UTC",
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
    }


def _outcome(answer: dict[str, Any] | Outcome) -> Outcome:
    if not isinstance(answer, dict):
        return answer
    try:
        match answer["kind"]:
            case "judged":
                return Judged(
                    code=VerdictCode(answer["code"]),
                    components=answer["components"],
                    weights=answer["weights"],
                    evidence=answer["evidence"],
                    clock_owner=ClockOwner(answer["clock_owner"]),
                )
            case "raised":
                return Raised(detail=answer["detail"], is_transient=answer["transient"])
            case "refused":
                return Refused(detail=answer["detail"])
    except (KeyError, ValueError) as error:
        return Died(detail=f"the judging process answered nonsense: {error}")
    return Died(detail=f"the judging process answered {answer.get('kind')!r}")
