"""Runs a program in bubblewrap: own namespaces, no network, read-only system, limits on everything.

No cgroup is needed. Limits on processes do not bind the superuser, so when we are root each run
gets a user id of its own, which nothing else on the machine uses.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import itertools
import os
import shutil
import sys
import time
from dataclasses import dataclass

from environments.sandbox.limits import Limits, classify, shortened
from schemas.enums import ToolExit
from schemas.errors import Boundary, SettingsError, TransientError

_FIRST_UID = 2_000_000
_UIDS = 50_000
_SLOTS = itertools.count(os.getpid() * 64)
_READ_BYTES = 65_536
_TAIL_BYTES = 4096
_KILL_GRACE_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxRun:
    """How a run ended."""

    exit_class: ToolExit
    status_raw: str
    stdout: str
    stderr: str
    truncation: str
    """Rule by which an output was shortened; empty when both are whole."""
    digest: str
    """sha256 of raw stdout and stderr as far as they were read."""
    duration_us: int
    """Wall clock. Unit: us."""


class Sandbox:
    """Starts programs in bubblewrap."""

    def __init__(self, limits: Limits, *, python: str = "/usr/bin/python3") -> None:
        """Take the limits of every run; raise SettingsError when bubblewrap is not installed."""
        program = shutil.which("bwrap")
        if program is None or shutil.which("prlimit") is None:
            raise SettingsError(
                "bubblewrap (bwrap) and prlimit are needed to run code",
                boundary=Boundary.SANDBOX,
                hint="apt-get install bubblewrap util-linux",
            )
        self._bwrap = program
        self._limits = limits
        self._python = python if os.access(python, os.X_OK) else sys.executable

    def _command(self) -> list[str]:
        disk = str(self._limits.disk_mib << 20)
        return [
            self._bwrap, "--unshare-all", "--die-with-parent", "--new-session", "--clearenv",
            "--uid", "1000", "--gid", "1000", "--hostname", "sandbox",
            "--setenv", "PATH", "/usr/bin", "--setenv", "HOME", "/tmp",
            "--setenv", "PYTHONDONTWRITEBYTECODE", "1", "--setenv", "PYTHONHASHSEED", "0",
            "--setenv", "LC_ALL", "C.UTF-8", "--setenv", "TZ", "UTC",
            "--ro-bind", "/usr", "/usr", "--symlink", "usr/bin", "/bin",
            "--symlink", "usr/lib", "/lib", "--symlink", "usr/lib64", "/lib64",
            "--proc", "/proc", "--dev", "/dev", "--size", disk, "--tmpfs", "/tmp",
            # What bubblewrap leaves writable has no size; only /tmp has one.
            "--remount-ro", "/dev", "--remount-ro", "/", "--chdir", "/tmp",
            "/usr/bin/prlimit", *self._limits.prlimit(),
        ]  # fmt: skip

    async def run_python(self, code: str) -> SandboxRun:
        """Run Python code given on stdin, isolated from site packages of the host's user."""
        return await self.run([self._python, "-I", "-S", "-"], stdin=code.encode())

    async def run(self, arguments: list[str], *, stdin: bytes = b"") -> SandboxRun:
        """Run a program to its end or to the wall limit.

        Raises TransientError when the sandbox itself could not be started.
        """
        began = time.monotonic()
        identity = _identity()
        try:
            process = await asyncio.create_subprocess_exec(
                *self._command(), *arguments,
                stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE, cwd="/", env={}, user=identity, group=identity,
                extra_groups=None if identity is None else [],
            )  # fmt: skip
        except OSError as error:
            raise TransientError(
                f"the sandbox could not be started: {error}",
                boundary=Boundary.SANDBOX,
                hint="run `sluice doctor`; it checks bubblewrap and user namespaces",
            ) from error
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        feeding = asyncio.create_task(_feed(process.stdin, stdin))
        reading = asyncio.gather(
            _drain(process.stdout, self._limits.output_bytes_max),
            _drain(process.stderr, self._limits.output_bytes_max),
        )
        timed_out = False
        try:
            async with asyncio.timeout(self._limits.wall_s):
                out, err = await asyncio.shield(reading)
                status = await process.wait()
        except TimeoutError:
            timed_out = True
            _kill(process)
            async with asyncio.timeout(_KILL_GRACE_S):
                out, err = await reading
                status = await process.wait()
        finally:
            # A cancelled run leaves nothing behind: the namespace dies with bubblewrap.
            _kill(process)
            feeding.cancel()
        return self._ended(out, err, status, timed_out, time.monotonic() - began)

    def _ended(
        self, out: _Output, err: _Output, status: int, timed_out: bool, seconds: float
    ) -> SandboxRun:
        limit = self._limits.output_bytes_max
        stdout, rule = shortened(out.kept, out.seen, limit)
        stderr, error_rule = shortened(err.kept, err.seen, limit)
        if stderr.startswith("bwrap:") and status == 1 and not out.seen:
            raise TransientError(
                f"the sandbox could not be set up: {stderr.strip()[:300]}",
                boundary=Boundary.SANDBOX,
                hint="run `sluice doctor`; it checks bubblewrap and user namespaces",
            )
        exit_class, status_raw = classify(
            status=128 - status if status < 0 else status,
            stderr=err.tail.decode("utf-8", errors="replace"),
        )
        if timed_out:
            exit_class, status_raw = ToolExit.TIMEOUT, f"wall clock of {self._limits.wall_s} s"
        return SandboxRun(
            exit_class=exit_class,
            status_raw=status_raw,
            stdout=stdout,
            stderr=stderr,
            truncation=rule or error_rule,
            digest=hashlib.sha256(out.digest + err.digest).hexdigest(),
            duration_us=int(seconds * 1e6),
        )


@dataclass(frozen=True, slots=True)
class _Output:
    kept: bytes
    tail: bytes
    seen: int
    digest: bytes


def _identity() -> int | None:
    if os.geteuid() != 0:
        return None
    return _FIRST_UID + next(_SLOTS) % _UIDS


def _kill(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            process.kill()


async def _feed(stream: asyncio.StreamWriter, data: bytes) -> None:
    with contextlib.suppress(ConnectionError):
        stream.write(data)
        await stream.drain()
    stream.close()


async def _drain(stream: asyncio.StreamReader, limit: int) -> _Output:
    # Everything is read, or the program would block on a full pipe; only the head is kept. The tail
    # tells which limit was broken.
    kept, tail, seen, digest = bytearray(), b"", 0, hashlib.sha256()
    while data := await stream.read(_READ_BYTES):
        digest.update(data)
        seen += len(data)
        tail = (tail + data)[-_TAIL_BYTES:]
        if len(kept) < limit:
            kept += data[: limit - len(kept)]
    return _Output(bytes(kept), tail, seen, digest.digest())
