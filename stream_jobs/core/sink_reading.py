"""What may be asked of the tables by others.

Invariants: one statement that only reads; anything that writes, reads files or the network, or
changes the session is refused before the engine sees it. The engine's own `readonly` refuses the
rest; this check covers what it lets through: the scalar function `file`, `DESCRIBE` of a table
function, which goes and looks, `INTO OUTFILE`, `KILL`, `USE`, several statements.

Words are cut as ClickHouse cuts them (src/Parsers/Lexer.cpp), and what it reads in ways of its own
(letters beyond ASCII, here-documents, comments within comments, escapes in names) is refused
outside of texts, so that no text can hide a word from this check and show it to the engine.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from schemas.errors import Boundary, RejectedError

_READS = frozenset({"select", "with", "show", "describe", "desc", "explain", "exists"})
_LOOKS = frozenset({"exists", "show", "describe", "desc"})
"""Statements about a table, for which the embedded engine takes the path of a file too."""
INSIDE = frozenset(
    {
        "dictionary", "format", "fuzzjson", "fuzzquery", "generate_series", "generaterandom",
        "generateseries", "loop", "merge", "mergetreeanalyzeindexes", "mergetreeanalyzeindexesuuid",
        "mergetreecodecblockcounts", "mergetreeindex", "mergetreeprojection", "mergetreetextindex",
        "null", "numbers", "numbers_mt", "primes", "prometheusquery", "prometheusqueryrange",
        "sqlstandardvalues", "timeseriesdata", "timeseriesmetricfamilies", "timeseriesmetrics",
        "timeseriessamples", "timeseriesselector", "timeseriestags", "values", "view",
        "viewexplain", "viewifpermitted", "zeros", "zeros_mt",
    }
)  # fmt: skip
"""Table functions that take their rows from the statement or from the tables."""
OUTSIDE = frozenset(
    {
        "arrowstream", "azureblobstorage", "azureblobstoragecluster", "bigquery", "cluster",
        "clusterallreplicas", "cosn", "deltalake", "deltalakeazure", "deltalakeazurecluster",
        "deltalakecluster", "deltalakelocal", "deltalakes3", "deltalakes3cluster", "eval",
        "executable", "file", "filecluster", "filesystem", "gcs", "hdfs", "hdfscluster", "hive",
        "hudi", "hudicluster", "iceberg", "icebergazure", "icebergazurecluster", "icebergcluster",
        "iceberghdfs", "iceberghdfscluster", "iceberglocal", "iceberglocalcluster", "icebergs3",
        "icebergs3cluster", "input", "jdbc", "mongodb", "mysql", "odbc", "oss", "paimon",
        "paimonazure", "paimonazurecluster", "paimoncluster", "paimonhdfs", "paimonhdfscluster",
        "paimonlocal", "paimons3", "paimons3cluster", "postgresql", "python", "redis", "remote",
        "remotesecure", "s3", "s3cluster", "sqlite", "url", "urlcluster", "ytsaurus",
    }
)  # fmt: skip
"""Table functions that leave the tables, refused where they are called. A test holds that the
engine knows no other than these and `INSIDE`.
"""
OUTSIDE_ANYWHERE = frozenset(
    {
        "addresstoline", "addresstolinewithinlines", "addresstosymbol", "aiclassify", "aiembed",
        "aiextract", "aifilter", "aigenerate", "airedact", "aisimilarity", "aitranslate",
        "catboostevaluate", "file",
    }
)  # fmt: skip
"""Functions of one value that read files, ask a model over the network, or look into the process.
Refused wherever they are named: `APPLY` and `arrayMap` take a function without calling it.
"""
_TOKEN = re.compile(
    r"""(?P<space>[ \t\n\r\f\v]+)
    |(?P<comment>(?:--|//|\#[ !])[^\n]*|/\*.*?\*/)
    |(?P<text>'(?:[^'\\]|\\.|'')*')
    |(?P<name>`(?:[^`\\]|``)*`|"(?:[^"\\]|"")*")
    |(?P<word>[0-9A-Za-z_]+)
    |(?P<sign>[!%&()*+,\-./:;<=>?@\[\]^{|}~])""",
    re.DOTALL | re.VERBOSE,
)
_FORMAT = re.compile(r"\bformat\s+(\w+)\s*$", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    """One statement that only reads."""

    text: str
    """As asked, without a closing semicolon."""
    format: str | None
    """The format that it names itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Token:
    kind: str
    text: str

    @property
    def named(self) -> str:
        """The name that it is, as it is compared; empty when it is none."""
        if self.kind == "name":
            return self.text[1:-1].lower()
        return self.text.lower() if self.kind == "word" else ""


def reading(text: str) -> Statement:
    """Return a statement that only reads; raise RejectedError that says why it is none."""
    tokens: list[_Token] = []
    said: list[_Token] = []
    has_begun = False
    for one in _tokens(text):
        tokens.append(one)
        if one.kind in ("space", "comment"):
            continue
        said.append(one)
        if not has_begun and one.text != "(":
            has_begun = True
            _begins_to_read(one)
    if not has_begun:
        raise _refused("there is no statement")
    words = "".join(_bare(one) for one in tokens)
    end = len(words.rstrip().rstrip(";").rstrip())
    text, words = text[:end], words[:end]
    if ";" in words:
        raise _refused("there is more than one statement")
    if re.search(r"\binto\s+outfile\b", words, re.IGNORECASE):
        raise _refused("INTO OUTFILE writes a file")
    if re.search(r":\s*identifier\s*\}", words, re.IGNORECASE):
        raise _refused("a name that comes as a value cannot be looked at: write it out")
    _stays(said)
    named = _FORMAT.search(words)
    return Statement(text=text, format=named[1] if named else None)


def _tokens(text: str) -> Iterator[_Token]:
    """Cut a statement; raise RejectedError at what might be cut in another way by the engine."""
    place = 0
    while place < len(text):
        found = _TOKEN.match(text, place)
        if found is None:
            raise _refused(f"{text[place : place + 12]!r} cannot be read outside of a text")
        if found[0].startswith("/*") and "/*" in found[0][2:]:
            raise _refused("there is a comment within a comment")
        yield _Token(kind=found.lastgroup or "", text=found[0])
        place = found.end()


def _bare(token: _Token) -> str:
    """Return a token for looking at words: comments are blank, texts and quoted names underscores.
    Every character keeps its place.
    """
    match token.kind:
        case "comment":
            return " " * len(token.text)
        case "text" | "name":
            return "_" * len(token.text)
        case _:
            return token.text


def _begins_to_read(first: _Token) -> None:
    """Raise RejectedError when a statement that begins so does not only read. Asked before the rest
    is cut, which may be the rows of an insert.
    """
    if first.kind != "word":
        raise _refused("there is no statement")
    if first.text.lower() not in _READS:
        raise _refused(f"{first.text.upper()} does not only read")


def _stays(tokens: list[_Token]) -> None:
    """Raise RejectedError when a statement leaves the tables."""
    for at, one in enumerate(tokens):
        name = one.named
        is_called = at + 1 < len(tokens) and tokens[at + 1].text == "("
        if name in OUTSIDE_ANYWHERE or (is_called and name in OUTSIDE):
            raise _refused(f"{name}() reads from outside the tables")
    first = next(one.named for one in tokens if one.text != "(")
    if first in _LOOKS and any("/" in one.named for one in tokens):
        raise _refused("a name with a slash may be that of a file")


def _refused(why: str) -> RejectedError:
    return RejectedError(
        f"refused: {why}", boundary=Boundary.STORE, hint="only reading statements, one at a time"
    )
