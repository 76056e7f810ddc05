"""Text of sampled tokens has one way out, and it asks for proof."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import inference
from inference.release import DurableTokens, Release
from inference.tokenizer import ByteTokenizer
from schemas.errors import InvariantError
from schemas.packing import pack_ids
from schemas.ports import Acked, Delivered
from schemas.records.token_commit import TokenCommit
from tests.support.records import commit

PACKAGE = Path(inference.__path__[0])
# The tokenizer itself, the comparison of a request with the history, and the release.
MAY_DECODE = {"tokenizer.py", "rendering.py", "core/history.py", "release.py"}


def holding(text: str) -> TokenCommit:
    ids = list(text.encode())
    record = commit(tokens=pack_ids(ids))
    return TokenCommit(**{**{f: getattr(record, f) for f in record.__slots__}, "count": len(ids)})


@pytest.mark.parametrize(
    "proof",
    [
        Acked(0, -1),
        Delivered(
            topic="tokens.v1", partition=0, offset=3, timestamp_ms=0, key=b"", record=commit(9)
        ),
    ],
)
def test_tokens_without_proof_cannot_be_made_durable(proof: Acked) -> None:
    with pytest.raises(InvariantError, match="no proof"):
        DurableTokens(holding("ab"), proof, 2)


def test_a_character_cut_in_two_waits_for_its_other_half() -> None:
    text = "a\u20acb"
    raw = text.encode()
    release = Release(ByteTokenizer())
    shown = ""
    for offset, byte in enumerate(raw):
        record = holding("x")
        ids = pack_ids([byte])
        record = TokenCommit(
            **{**{f: getattr(record, f) for f in record.__slots__}, "token_ids": ids}
        )
        shown += release.show(DurableTokens(record, Acked(0, offset), 1))
        assert text.startswith(shown)
    assert shown + release.rest() == text


def test_no_other_module_of_the_gateway_decodes_ids() -> None:
    found: dict[str, set[str]] = {}
    for file in PACKAGE.rglob("*.py"):
        name = file.relative_to(PACKAGE).as_posix()
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Attribute) and node.attr == "decode":
                found.setdefault(name, set()).add(ast.unparse(node))
    others = {name: calls for name, calls in found.items() if name not in MAY_DECODE}
    # Input text is the client's own, and a prompt of /v1/completions is compared with the history.
    assert others == {
        "sessions.py": {"tokenizer.decode"},
        "turns.py": {"self._renderer.decode"},
    }
