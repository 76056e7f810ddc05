"""What a migration file says, and what an error of the engine means.

Invariants: a migration that was applied never changes; an insert is tried again only when its error
may pass.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass

from schemas.errors import SettingsError
from stream_jobs.core.sink_rollups import TASKS, Rollup

_HEAD = re.compile(r"-- (?:migration (\d+): ([^\n]+)|repeatable (\w+): [^\n]+|rollups: [^\n]+)\n")
_CODE = re.compile(r"\bCode: (\d+)\.")

_LATER = frozenset(
    {
        74, 75, 76, 77, 88, 95, 96, 159, 160, 172, 173, 198, 202, 203, 209, 210, 225, 236, 241, 242,
        243, 252, 254, 265, 279, 285, 286, 289, 319, 341, 364, 373, 394, 425, 439, 473, 517, 571,
        696, 700, 722, 733, 745, 999, 1000, 1001,
    }
)  # fmt: skip
"""Errors of the engine that pass by themselves: files and disk, sockets and names of hosts,
timeouts, memory, threads, replicas, quorum and keeper, locks, what was cancelled, too many parts,
queries or sessions. Source: ClickHouse, src/Common/ErrorCodes.cpp.
"""

_OF_DAMAGE = frozenset({33, 40, 226, 228, 246})
"""Errors of files that are short, missing or otherwise than their checksums."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Migration:
    """One file of table definitions."""

    version: int
    """0 for a repeatable one."""
    name: str
    checksum: str
    statements: tuple[str, ...]
    formerly: frozenset[str] = frozenset()
    """Checksums of earlier texts that left tables as good."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Definitions:
    """What the files under `infra/clickhouse` say."""

    migrations: tuple[Migration, ...]
    """Applied once, in order; never changed afterwards."""
    repeatable: tuple[Migration, ...]
    """Views, which follow from the rows: applied again whenever their text changes."""
    rollups: tuple[Rollup, ...] = ()
    """What the sink runs for the minutes that got rows."""


def engine_code(message: str) -> int | None:
    """Return ClickHouse's number of an error message, None when it has none."""
    found = _CODE.search(message)
    return int(found[1]) if found else None


def passes(message: str) -> bool:
    """Whether an insert that failed with this message may succeed later, as it is."""
    code = engine_code(message)
    return code is None or code in _LATER


def is_damage(message: str) -> bool:
    """Whether an error of the engine says that files of the tables are not as it wrote them."""
    return engine_code(message) in _OF_DAMAGE


def parse_migrations(texts: Sequence[str]) -> Definitions:
    """Return what the files say; raise SettingsError for a file without header or a gap.

    A file opens with `-- migration N: name`, `-- repeatable NAME: what` or `-- rollups: what`;
    `-- formerly CHECKSUM` names an earlier text of it; a statement ends with a semicolon at a
    line's end.
    """
    found: list[Migration] = []
    repeatable: list[Migration] = []
    rollups: list[Rollup] = []
    for text in texts:
        head = _HEAD.match(text)
        if head is None:
            raise SettingsError(
                "a table definition opens with none of `-- migration N: name`, "
                "`-- repeatable NAME: what` and `-- rollups: what`",
                hint="see infra/clickhouse",
            )
        one = Migration(
            version=int(head[1] or 0),
            name=(head[2] or head[3] or "rollups").strip(),
            checksum=hashlib.sha256(text.encode()).hexdigest(),
            statements=_statements(text),
            formerly=frozenset(re.findall(r"^-- formerly ([0-9a-f]{64})$", text, re.MULTILINE)),
        )
        if one.version:
            found.append(one)
        elif head[3]:
            repeatable.append(one)
        else:
            rollups += [_rollup(statement, one.checksum) for statement in one.statements]
    found.sort(key=lambda one: one.version)
    if [one.version for one in found] != list(range(1, len(found) + 1)):
        raise SettingsError(
            f"migrations {[one.version for one in found]} do not count from 1 without a gap",
            hint="see infra/clickhouse",
        )
    return Definitions(
        migrations=tuple(found), repeatable=tuple(repeatable), rollups=tuple(rollups)
    )


def _statements(text: str) -> tuple[str, ...]:
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("--")]
    parts = (part.strip() for part in re.split(r";[ \t]*(?:\n|$)", "\n".join(lines)))
    return tuple(part for part in parts if part)


_ENGINE = re.compile(r"\bENGINE = (\w*MergeTree)\b")
_NAMED = re.compile(
    r"^(?:CREATE TABLE IF NOT EXISTS|CREATE OR REPLACE VIEW|ALTER TABLE|DROP TABLE IF EXISTS"
    r"|DROP VIEW IF EXISTS|CREATE MATERIALIZED VIEW IF NOT EXISTS) \w+"
)


def on_cluster(statement: str, cluster: str) -> str:
    """Return a definition for a cluster of replicas; as it is when `cluster` is empty.

    Tables become replicated ones under the server's own default path, and remember the tokens of
    inserts in common. The name of the cluster is a word.
    """
    if not cluster:
        return statement
    if re.fullmatch(r"\w[\w.-]*", cluster) is None:
        raise SettingsError(
            f"{cluster!r} is no name of a cluster", hint="letters, digits, dots and dashes"
        )
    statement = _NAMED.sub(lambda found: f"{found[0]} ON CLUSTER '{cluster}'", statement)
    statement = _ENGINE.sub(r"ENGINE = Replicated\1", statement)
    return statement.replace("non_replicated_deduplication", "replicated_deduplication")


def _rollup(statement: str, checksum: str) -> Rollup:
    table = re.search(r"\bFROM (\w+)\s+WHERE ts >=", statement)
    if table is None:
        raise SettingsError(
            "a rollup does not read one table by its minutes", hint="see infra/clickhouse"
        )
    into = re.match(r"INSERT INTO (\w+)", statement)
    name = f"{into[1] if into else '?'} from {table[1]}"
    return Rollup(
        name=name, table=table[1], statement=statement, definition=checksum[:16],
        waits_for_tasks=f"FROM {TASKS}\n      WHERE (run_id, group_id) IN" in statement,
    )  # fmt: skip


def outstanding(migrations: Sequence[Migration], applied: dict[int, str]) -> tuple[Migration, ...]:
    """Return what is to be applied; raise SettingsError when an applied one has changed since.

    applied: version to checksum.
    """
    known = {one.version: {one.checksum, *one.formerly} for one in migrations}
    for version, checksum in sorted(applied.items()):
        if checksum not in known.get(version, ()):
            what = "is newer than this program" if version not in known else "was changed since"
            raise SettingsError(
                f"migration {version} of the tables {what}",
                hint="use the version that made the tables, or start a new run",
            )
    return tuple(one for one in migrations if one.version not in applied)


def changed(
    definitions: Definitions, now: Sequence[Migration], applied: dict[str, str]
) -> tuple[Migration, ...]:
    """Return the repeatable files to apply: all of them when migrations were applied now, else from
    the first that differs on, since later ones stand on earlier ones.

    applied: name to checksum.
    """
    if now:
        return definitions.repeatable
    for index, one in enumerate(definitions.repeatable):
        if applied.get(one.name) != one.checksum:
            return definitions.repeatable[index:]
    return ()
