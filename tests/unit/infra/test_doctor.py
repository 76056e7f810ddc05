"""The doctor finds what is wrong, says what to do, and tells what a run cannot do without."""

import socket
from pathlib import Path

import pytest

from infra.doctor import DoctorReport, Finding, doctor
from infra.setup.places import find_places
from tests.support.platform import private_settings


def finding(*, ok: bool, is_required: bool) -> Finding:
    return Finding(name="x", ok=ok, found="f", needed="n", is_required=is_required)


@pytest.mark.parametrize(
    ("ok", "is_required", "status"), [(True, True, 0), (False, False, 0), (False, True, 1)]
)
def test_only_something_required_ends_the_doctor_with_one(
    ok: bool, is_required: bool, status: int
) -> None:
    report = DoctorReport(findings=(finding(ok=ok, is_required=is_required),))
    assert report.exit_status == status


@pytest.mark.slow
def test_every_failed_finding_says_what_to_do_and_no_good_one_does(tmp_path: Path) -> None:
    chosen = private_settings(tmp_path / "data")
    with socket.socket() as squatter:
        squatter.bind(("127.0.0.1", chosen.broker_ports[0]))
        squatter.listen()
        report = doctor(chosen, find_places({"SLUICE_HOME": str(tmp_path / "empty")}))
    assert all(bool(one.what_to_do) != one.ok for one in report.findings)
    wrong = {one.name for one in report.findings if not one.ok}
    taken = f"port {chosen.broker_ports[0]}"
    assert {taken, "environment", "model", "kafka jars", "schema registry"} <= wrong
    assert report.exit_status == 1
    names = [one.name for one in report.findings]
    assert len(names) == len(set(names))
