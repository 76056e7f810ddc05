"""Connections of one process are cut, and those of others are not."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest

from infra.chaos.connections import cut_connections

_CLIENT = """
import socket, sys
with socket.create_connection(("127.0.0.1", int(sys.argv[1]))) as peer:
    peer.sendall(b"here")
    try:
        print("got", peer.recv(10), flush=True)
    except OSError as error:
        print("cut", error.errno, flush=True)
"""


@pytest.fixture
def server() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(10)
        yield listening


def client(server: socket.socket) -> tuple[subprocess.Popen[str], socket.socket]:
    """A process with one connection, and our end of it."""
    port = server.getsockname()[1]
    process = subprocess.Popen(
        [sys.executable, "-c", _CLIENT, str(port)], stdout=subprocess.PIPE, text=True
    )
    ours, _ = server.accept()
    ours.settimeout(10)
    assert ours.recv(4) == b"here"
    return process, ours


def test_the_connections_of_one_process_end_and_those_of_another_go_on(
    server: socket.socket,
) -> None:
    hit, its_end = client(server)
    spared, other_end = client(server)
    cut = cut_connections(hit.pid)
    other_end.sendall(b"hello")
    if not cut:
        # Nothing was cut, so the client still listens: let it end.
        its_end.sendall(b"bye")
    told = [process.communicate(timeout=10)[0].split(maxsplit=1)[0] for process in (hit, spared)]
    for end in (its_end, other_end):
        end.close()
    if not cut:
        assert told == ["got", "got"]
        pytest.skip("this kernel or user may not cut connections (ss -K)")
    assert cut == 1
    assert told == ["cut", "got"]


def test_a_process_without_a_connection_has_none_to_cut() -> None:
    quiet = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        assert cut_connections(quiet.pid) == 0
    finally:
        quiet.communicate(b"\n", timeout=10)
