"""A broker whose disk is full, and has room again: nothing is lost in silence, and all is said."""

from __future__ import annotations

import asyncio
import json
import os
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from consumers.kafka import KafkaConsumers
from consumers.settings import ConsumerSettings
from infra.platform.commands import down, status
from infra.platform.settings import PlatformSettings
from infra.platform.status import ServiceState
from infra.topic_admin import create_topics
from producers.kafka import KafkaProducer
from producers.settings import ProducerSettings
from schemas.codec import Codec
from schemas.ports import Acked, Acknowledgement, Delivered, Unknown
from schemas.topics import TOKENS
from tests.conftest import require_platform_parts
from tests.support.clocks import RealClock
from tests.support.platform import private_settings
from tests.support.records import commit, within

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(240)]
ROOT = Path(__file__).resolve().parents[2]
DISK_MIB = 160
ROOM_BYTES = 2 * 1024 * 1024
RECORD_BYTES = 64 * 1024
_UP = """
import json, os, sys
from infra.platform.commands import up
from infra.platform.settings import PlatformSettings
from infra.setup.places import find_places
from schemas.errors import SluiceError
try:
    report = up(PlatformSettings.model_validate_json(sys.argv[1]), find_places(os.environ))
    print(json.dumps({"bootstrap": report.status.bootstrap}))
except SluiceError as error:
    print(json.dumps({"error": str(error)}))
"""


class SmallDisk:
    """A disk of a few MiB at a folder: a tmpfs in a mount namespace of its own, kept open by a
    process that holds it. Needs no rights but those of a sandbox.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True)
        mounted = f"mount -t tmpfs -o size={DISK_MIB}m tmpfs {folder} && echo ready && exec cat"
        self._holder = subprocess.Popen(
            ["unshare", "-rm", "sh", "-c", mounted],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._holder.stdout is not None
        assert self._holder.stdout.readline() == "ready\n"
        self._inside = Path(f"/proc/{self._holder.pid}/root{folder}")
        self._fillers: list[Path] = []

    def run(self, *command: str) -> str:
        """Run a command that sees the disk; return what it prints."""
        enter = ["nsenter", "--preserve-credentials", "-U", "-m", "-t", str(self._holder.pid)]
        done = subprocess.run(
            [*enter, *command],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=150,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def fill(self, *, room: int) -> None:
        """Leave at most so many bytes."""
        found = os.statvfs(self._inside)
        too_much = found.f_bavail * found.f_frsize - room
        if too_much > 0:
            filler = self._inside / f"filler-{len(self._fillers)}"
            self._fillers.append(filler)
            with filler.open("wb") as file:
                os.posix_fallocate(file.fileno(), 0, too_much)

    def free(self) -> None:
        """Give back what `fill` took."""
        for filler in self._fillers:
            filler.unlink()
        self._fillers.clear()

    def close(self) -> None:
        self._holder.kill()
        self._holder.wait(10)


@pytest.fixture
def small(tmp_path: Path) -> Iterator[tuple[PlatformSettings, SmallDisk]]:
    """A platform that is not up yet, and the disk that its broker will write to."""
    require_platform_parts()
    settings = private_settings(tmp_path)
    disk = SmallDisk(tmp_path / "kafka")
    yield settings, disk
    down(settings)
    disk.close()


def up_on(disk: SmallDisk, settings: PlatformSettings) -> dict[str, str]:
    """Bring the platform up on the disk; return its address, or the error."""
    said = disk.run(sys.executable, "-c", _UP, settings.model_dump_json())
    found: dict[str, str] = json.loads(said.splitlines()[-1])
    return found


def until_dead(settings: PlatformSettings) -> None:
    until = time.monotonic() + 40
    while status(settings).services[0].state is not ServiceState.DEAD:
        assert time.monotonic() < until, "a broker that cannot write goes on"
        time.sleep(0.1)


async def test_a_full_disk_costs_no_acknowledged_record_and_is_named_until_there_is_room(
    small: tuple[PlatformSettings, SmallDisk],
) -> None:
    settings, disk = small
    bootstrap = (await asyncio.to_thread(up_on, disk, settings))["bootstrap"]
    create_topics(bootstrap, prefix="full", partitions=1)
    write = ProducerSettings(bootstrap=bootstrap, prefix="full", delivery_timeout_ms=6_000)
    producer = KafkaProducer(write, Codec.local(), RealClock())
    consumers = KafkaConsumers(ConsumerSettings(bootstrap=bootstrap, prefix="full"), Codec.local())
    dice = random.Random(1)
    outcomes: dict[int, Acknowledgement] = {}

    async def offer(seq: int) -> Acknowledgement:
        record = commit(seq, tokens=dice.randbytes(RECORD_BYTES))
        outcomes[seq] = await producer.offer(TOKENS, record)
        return outcomes[seq]

    assert isinstance(await offer(0), Acked)
    disk.fill(room=ROOM_BYTES)
    await asyncio.gather(*(offer(seq) for seq in range(1, 120)))
    assert any(isinstance(one, Unknown) for one in outcomes.values())
    assert producer.trouble
    await asyncio.to_thread(until_dead, settings)

    disk.fill(room=0)
    refused = await asyncio.to_thread(up_on, disk, settings)
    assert f"the disk of {settings.data}/kafka/broker-1 is full" in refused["error"]
    assert "make room there, then `sluice up` again" in refused["error"]

    disk.free()
    assert (await asyncio.to_thread(up_on, disk, settings))["bootstrap"] == bootstrap
    await producer.renew()
    await producer.send(TOKENS, commit(1_000), deadline=within(20_000))
    reader = consumers.reader({TOKENS: {0: 0}})
    stands: Counter[int] = Counter()
    until = time.monotonic() + 20
    while 1_000 not in stands and time.monotonic() < until:
        found = await reader.poll(records_max=500, timeout_s=1)
        stands.update(one.record.seq for one in found if isinstance(one, Delivered))
    for seq, outcome in outcomes.items():
        if isinstance(outcome, Acked):
            assert stands[seq] == 1, f"{seq} was acknowledged and stands {stands[seq]} times"
        else:
            assert stands[seq] <= (1 if isinstance(outcome, Unknown) else 0)
    assert stands[1_000] == 1
    await reader.close()
    await consumers.close()
    await producer.close(deadline=within(5_000))
