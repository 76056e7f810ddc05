"""The answer to clickhouse-go's first question, byte by byte."""

import pytest

from stream_jobs.core.sink_hello import asks_who, who

QUESTION = "SELECT displayName(), version(), revision(), timezone()"


@pytest.mark.parametrize(
    ("text", "protocol", "is_asked"),
    [
        (QUESTION, "54460", True),
        ("select  displayName(), version(),\n revision(), timezone()", "54460", True),
        # A client of an older protocol reads a block without the byte before a column's values.
        (QUESTION, "54405", False),
        (QUESTION, "", False),
        (QUESTION, "-1", False),
        ("SELECT version(), timezone()", "54460", False),
    ],
)
def test_only_the_client_that_reads_it_so_is_answered_so(
    text: str, protocol: str, is_asked: bool
) -> None:
    assert asks_who(text, {"client_protocol_version": protocol}) is is_asked


def test_the_block_has_one_row_of_four_columns_and_names_protocol_zero() -> None:
    expected = (
        b"\x01\x00\x02\xff\xff\xff\xff\x00"  # block info
        b"\x04\x01"  # columns, rows
        b"\x0ddisplayName()\x06String\x00\x01h"
        b"\x09version()\x06String\x00\x0426.9"
        b"\x0arevision()\x06UInt32\x00\x00\x00\x00\x00"
        b"\x0atimezone()\x06String\x00\x03UTC"
    )
    assert who(name="h", version="26.9") == expected


def test_a_name_longer_than_one_byte_can_count_is_whole() -> None:
    block = who(name="h" * 300, version="1")
    assert b"\x00\xac\x02" + b"h" * 300 + b"\x09version()" in block
