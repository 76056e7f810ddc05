"""Code of a model is contained and coded: fork bomb, memory hog, disk fill, endless loop."""

from __future__ import annotations

import pytest

from environments.sandbox.bubblewrap import Sandbox, SandboxRun
from environments.sandbox.limits import Limits, classify, shortened
from schemas.enums import ToolExit

LIMITS = Limits(wall_s=1.0, cpu_s=1, memory_mib=128, disk_mib=4, processes_max=8)


async def run(code: str, limits: Limits = LIMITS) -> SandboxRun:
    return await Sandbox(limits).run_python(code)


@pytest.mark.parametrize(
    ("code", "exit_class", "status"),
    [
        ("print(6 * 7)", ToolExit.OK, "exit 0"),
        ("1 / 0", ToolExit.TOOL_ERROR, "exit 1"),
        ("import os\nwhile True: os.fork()", ToolExit.SANDBOX_LIMIT, "exit 1 (processes)"),
        ("x = bytearray(10**9)", ToolExit.SANDBOX_LIMIT, "exit 1 (memory)"),
        (
            "for i in range(9): open(f'/tmp/{i}', 'wb').write(bytes(10**6))",
            ToolExit.SANDBOX_LIMIT,
            "exit 1 (disk)",
        ),
        ("open('/tmp/x', 'wb').write(bytes(10**7))", ToolExit.SANDBOX_LIMIT, "exit 1 (disk)"),
        ("import time; time.sleep(60)", ToolExit.TIMEOUT, "wall clock of 1.0 s"),
    ],
)
async def test_a_broken_limit_is_contained_and_coded(
    code: str, exit_class: ToolExit, status: str
) -> None:
    done = await run(code)
    assert (done.exit_class, done.status_raw) == (exit_class, status)
    assert done.duration_us < 5_000_000


async def test_an_endless_loop_ends_by_its_processor_time() -> None:
    done = await run("while True: pass", Limits(wall_s=20.0, cpu_s=1))
    assert done.exit_class is ToolExit.SANDBOX_LIMIT
    assert "cpu" in done.status_raw


async def test_there_is_no_network_no_secret_and_no_place_to_write_but_tmp() -> None:
    done = await run(
        "import os, socket\n"
        "for path in ('/x', '/dev/shm/x', '/usr/x', '/proc/sys/kernel/x'):\n"
        "    try: open(path, 'w'); print('wrote', path)\n"
        "    except OSError: pass\n"
        "try: socket.create_connection(('192.0.2.1', 9), 0.2); print('network')\n"
        "except OSError: pass\n"
        "print(sorted(os.listdir('/')), sorted(os.environ))"
    )
    assert done.stdout == (
        "['bin', 'dev', 'lib', 'lib64', 'proc', 'tmp', 'usr'] "
        "['HOME', 'LC_ALL', 'PATH', 'PWD', 'PYTHONDONTWRITEBYTECODE', 'PYTHONHASHSEED', 'TZ']\n"
    )


async def test_output_is_cut_by_a_named_rule_and_its_digest_covers_it_all() -> None:
    limits = Limits(output_bytes_max=256)
    long, longer = await run("print('x' * 999)", limits), await run("print('x' * 9999)", limits)
    assert long.truncation == "head_256_bytes"
    assert long.stdout.startswith("x" * 256)
    assert long.stdout.endswith("[... 744 bytes more ...]")
    assert long.digest != longer.digest


def test_a_signal_names_its_limit() -> None:
    assert classify(status=128 + 24, stderr="") == (ToolExit.SANDBOX_LIMIT, "signal 24 (cpu)")
    assert classify(status=128 + 11, stderr="") == (ToolExit.TOOL_ERROR, "signal 11")


def test_a_whole_output_carries_no_rule() -> None:
    assert shortened(b"abc", 3, 3) == ("abc", "")
