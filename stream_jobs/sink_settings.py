"""Settings of the metrics sink and of the lag and age job. Frozen, imports nothing heavy."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

_FROZEN = ConfigDict(frozen=True, extra="forbid")


class LagAgeSettings(BaseModel):
    """How buffer age and policy lag are computed while the run goes on."""

    model_config = _FROZEN
    emit_interval_s: float = Field(
        5.0, ge=0.2, le=600, description="Time between two samples of the buffer. Unit: s."
    )
    session_timeout_s: float = Field(
        20.0, ge=6, le=300, description="Silence after which the broker drops the worker. Unit: s."
    )
    stuck_s: float = Field(
        60.0, ge=5, le=3600,
        description="The job ends, to be started again, when records wait so long unread. Unit: s.",
    )  # fmt: skip
    start_deadline_s: float = Field(
        60.0, ge=5, le=600, description="Longest wait for the first assignment. Unit: s."
    )


class SinkSettings(BaseModel):
    """How records become rows, and where they can be asked for."""

    model_config = _FROZEN
    tables_dir: str = Field(
        "", description="Folder of the embedded ClickHouse; set by the run. Empty: not embedded."
    )
    address_file: str = Field(
        "", description="File that names the SQL endpoint while it listens; set by the run."
    )
    server_url: str = Field(
        "", description="URL of a ClickHouse server; empty: the embedded engine."
    )
    server_cluster: str = Field(
        "", description="Cluster of that server on which tables are replicated; empty: on it alone."
    )
    listen_host: str = Field("127.0.0.1", description="Address of the read-only SQL endpoint.")
    listen_port: int = Field(0, ge=0, le=65535, description="Its port; 0 takes a free one.")
    token_contents: bool = Field(
        False,
        description="Also keep ids and log-probs of the tokens, in `token_contents`, from then on; "
        "the token log is then read one record at a time, at a third of the speed.",
    )
    batch_offsets: int = Field(
        50_000, ge=1, le=1_000_000, description="Offsets in one insert, at most. Unit: offsets."
    )
    batch_interval_s: float = Field(
        1.0, ge=0.05, le=60, description="A batch is cut at least this often. Unit: s."
    )
    buffered_records_max: int = Field(
        50_000, ge=1_000, le=10_000_000,
        description="Records held in memory, and eight times as many of which only the row is "
        "held. Unit: records.",
    )  # fmt: skip
    busy_share_max: float = Field(
        0.1, ge=0.01, le=1,
        description="Share of the time that writing small batches may take; they wait for it, full "
        "ones never do. Unit: ratio.",
    )  # fmt: skip
    rollup_interval_s: float = Field(
        10.0, ge=1, le=600,
        description="The percentiles per minute and the marks of episodes hold written rows after "
        "so long, or later where making them would take more than `busy_share_max` of the time. "
        "Unit: s.",
    )  # fmt: skip
    drain_s: float = Field(
        10.0, ge=0, le=600,
        description="Longest wait for the last records once asked to stop. Unit: s.",
    )  # fmt: skip
    insert_retry_s: float = Field(
        1800.0, ge=1, le=7200,
        description="Longest wait for a database that is down: one batch is tried so long, and "
        "no more is read than `buffered_records_max` allows. Unit: s.",
    )  # fmt: skip
    query_seconds_max: float = Field(
        10.0, gt=0, le=600, description="Limit of one query over HTTP. Unit: s."
    )
    query_threads_max: int = Field(
        0, ge=0, le=256,
        description="Threads of one query in the embedded engine; 0: half of the processors. "
        "Unit: threads.",
    )  # fmt: skip
    query_rows_max: int = Field(
        100_000, ge=1, le=10_000_000, description="Rows of one answer over HTTP. Unit: rows."
    )
    memory_bytes_max: int = Field(
        1_000_000_000, ge=100_000_000, description="Memory of one query. Unit: bytes."
    )
