"""Loopback ports: which are free, who holds one that is not, and which answer."""

import socket
import time

import psutil

from schemas.errors import Boundary, SettingsError

LOOPBACK = "127.0.0.1"
ANSWER_LIMIT_S = 1.0
CLOSING_LOOKS = 30
CLOSING_PAUSE_S = 0.1


def port_is_free(port: int) -> bool:
    """Whether a service could listen on the port now; closing connections do not count."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
    return True


def port_answers(host: str, port: int) -> bool:
    """Whether somebody takes connections on the port."""
    try:
        with socket.create_connection((host, port), timeout=ANSWER_LIMIT_S):
            return True
    except OSError:
        return False


def require_free(port: int, wanted_by: str) -> None:
    """Raise SettingsError that names the port and, where it can be seen, who holds it.

    A port that nobody listens on is given a moment: the kernel may still be closing it.
    """
    holder = ""
    for _ in range(CLOSING_LOOKS):
        if port_is_free(port):
            return
        holder = _holder(port)
        if holder:
            break
        time.sleep(CLOSING_PAUSE_S)
    raise SettingsError(
        f"port {port}, wanted by {wanted_by}, is taken{holder}",
        boundary=Boundary.PLATFORM,
        hint="end that process, or choose other ports with SLUICE_KAFKA_PORT, "
        "SLUICE_CONTROLLER_PORT, SLUICE_REGISTRY_PORT and SLUICE_REGISTRY_MANAGEMENT_PORT",
    )


def free_ports(count: int) -> tuple[int, ...]:
    """Choose ports that are free now; held together while choosing, so that all differ."""
    probes = [socket.socket() for _ in range(count)]
    try:
        for probe in probes:
            probe.bind((LOOPBACK, 0))
        return tuple(int(probe.getsockname()[1]) for probe in probes)
    finally:
        for probe in probes:
            probe.close()


def _holder(port: int) -> str:
    try:
        for connection in psutil.net_connections(kind="tcp"):
            if connection.status == psutil.CONN_LISTEN and connection.laddr.port == port:
                if connection.pid is None:
                    return " by a process that cannot be seen from here"
                return f" by {psutil.Process(connection.pid).name()} (pid {connection.pid})"
    except psutil.Error:
        return " by a process that cannot be seen from here"
    return ""
