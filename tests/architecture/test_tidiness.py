"""Sizes, names and words that the house style sets, where a machine can see them."""

import re
from collections.abc import Iterator
from pathlib import Path

from schemas import topics
from tests.architecture.tree import GENERATED, PACKAGES, ROOT, facts, modules, shown

MODULE_LINES_MAX = 400
FUNCTION_LINES_MAX = 70
BANNED_NAMES = {"utils", "util", "common", "misc", "manager", "base", "helpers", "helper"}
WITH_TESTS = (*PACKAGES, "tests", "benchmarks", "examples")


def hand_written(*folders: str) -> Iterator[Path]:
    return (path for path in modules(*folders) if GENERATED not in path.parents)


def test_no_module_is_longer_than_400_lines() -> None:
    too_long = {
        shown(path): count
        for path in hand_written(*WITH_TESTS)
        if (count := len(path.read_text().splitlines())) > MODULE_LINES_MAX
    }
    assert too_long == {}


def test_no_function_is_longer_than_70_lines() -> None:
    too_long = {
        f"{shown(path)}:{name}": lines
        for path in hand_written(*WITH_TESTS)
        for name, lines in facts(path).functions
        if lines > FUNCTION_LINES_MAX
    }
    assert too_long == {}


def test_no_module_or_folder_has_a_name_that_says_its_room_was_not_found() -> None:
    found = [
        shown(path)
        for path in modules(*WITH_TESTS)
        if BANNED_NAMES & {path.stem, *path.relative_to(ROOT).parts}
    ]
    assert found == []


def test_a_package_opens_with_one_docstring_and_re_exports_nothing() -> None:
    found = [
        shown(path)
        for path in modules(*PACKAGES)
        if path.name == "__init__.py"
        and (facts(path).statements != 1 or not facts(path).has_docstring)
    ]
    assert found == []


def test_every_module_opens_with_a_docstring() -> None:
    bare = [shown(path) for path in modules(*WITH_TESTS) if not facts(path).has_docstring]
    assert bare == []


def test_topic_names_stand_in_schemas_topics_only() -> None:
    names = {value.name for value in vars(topics).values() if isinstance(value, topics.Topic)}
    assert names, "schemas.topics declares its topics as module values"
    found = [
        f"{shown(path)}:{line}: {text!r}"
        for path in modules(*PACKAGES)
        if path != ROOT / "schemas" / "topics.py"
        for line, text in facts(path).texts
        if text in names
    ]
    assert found == []


def test_every_ignore_names_its_code() -> None:
    bare = [
        f"{shown(path)}:{number}"
        for path in modules(*PACKAGES)
        for number, line in enumerate(path.read_text().splitlines(), start=1)
        if re.search(r"#\s*(noqa|type: ignore)\s*$", line)
    ]
    assert bare == []


def test_the_documents_name_no_paths_of_one_machine() -> None:
    documents = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    found = [
        f"{shown(path)}: {match[0]}"
        for path in documents
        for match in re.finditer(r"(?<![\w.])/(root|home/\w+|work|Users/\w+)\b", path.read_text())
    ]
    assert found == []
