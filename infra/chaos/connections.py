"""Cuts the TCP connections of one process, as a network that fails does.

The kernel closes them on the order of `ss -K` (inet_diag, CONFIG_INET_DIAG_DESTROY, CAP_NET_ADMIN);
where it may not, nothing is cut and 0 is returned.
"""

from __future__ import annotations

import re
import shutil
import subprocess

_LIMIT_S = 5.0
_LOCAL = re.compile(r"\S+:(\d+)$")


def cut_connections(pid: int) -> int:
    """Cut all established connections of a process; return how many were cut."""
    if shutil.which("ss") is None:
        return 0
    listed = _ss("-Htnp", "state", "established")
    ports = [
        found[1]
        for line in listed.splitlines()
        if f"pid={pid}," in line and (found := _LOCAL.match(line.split()[2]))
    ]
    return sum(bool(_ss("-HK", "state", "established", "sport", "=", f":{p}")) for p in ports)


def _ss(*arguments: str) -> str:
    try:
        done = subprocess.run(
            ["ss", *arguments], capture_output=True, text=True, timeout=_LIMIT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip()
