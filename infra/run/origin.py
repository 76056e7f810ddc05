"""The section of a run's report on what it began in and from: enough to run it again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from infra.run.findings import Findings
from infra.run.section import Section, Table
from schemas.errors import RejectedError

_HOW = "As it was when the run began."
_POLICY = (
    ("digest", "starting weights"),
    ("tokenizer_digest", "tokenizer"),
    ("template_digest", "prompt template"),
    ("precision", "precision of the weights"),
)


def origin(
    summary: Mapping[str, Any], began_in: Mapping[str, Any], findings: Findings, digest: str
) -> Section:
    """Return versions, commit, seed and digests.

    digest: that of the settings. A digest that the tables did not tell is left out.
    """
    rows = [("seed", str(summary["seed"])), ("settings, sha256", digest)]
    notes = []
    if began_in:
        rows += _kept(began_in)
    else:
        notes.append("Versions and commit were not recorded when this run began.")
    try:
        policies, tasks = findings.of("first_policy", "tasks")
    except RejectedError as error:
        notes.append(f"Digests of the policy and of the tasks are not known: {error.message}.")
        policies, tasks = (), ()
    for policy in policies:
        rows += [(name, str(policy[key])) for key, name in _POLICY if policy[key]]
    for one in tasks:
        name = one["stream"] or one["environment"]
        rows.append((f"environment of {name}, sha256", one["environment_digest"] or "-"))
        rows.append((f"verifier of {name}, sha256", one["verifier_digest"] or "-"))
    table = Table(heads=("what", "value"), rows=rows)
    return Section(title="Environment of the run", how=_HOW, tables=[table], notes=notes)


def _kept(began_in: Mapping[str, Any]) -> list[tuple[str, str]]:
    commit = str(began_in.get("commit", "")) or "not known: the code was no checkout"
    if began_in.get("is_changed"):
        commit += ", with changes that were not committed"
    rows = [
        ("git commit", commit),
        ("Python", str(began_in.get("python", "-"))),
        ("system", f"{began_in.get('system', '-')}, {began_in.get('processors', '-')} processors"),
    ]
    return rows + [(name, str(found)) for name, found in began_in.get("packages", {}).items()]
