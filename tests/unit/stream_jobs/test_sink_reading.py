"""What may be asked of the tables by others."""

from __future__ import annotations

import pytest

from schemas.errors import RejectedError
from stream_jobs.core.sink_reading import reading


@pytest.mark.parametrize(
    "text",
    [
        "SELECT 1",
        "  -- why\n select 1 ;",
        "(SELECT 1) UNION ALL (SELECT 2)",
        "WITH 1 AS x SELECT x",
        "SHOW TABLES",
        "DESCRIBE TABLE t FORMAT Native",
        "EXPLAIN SELECT 1",
        "SELECT ';', 'drop table t', `into outfile`",
        "SELECT 'it\\'s; file(' AS x, 'a''b;c'",
        "SELECT name, value, readonly FROM system.settings LIMIT 10000 FORMAT Native",
        "SELECT filename(x), profile FROM t /* ; url( */",
    ],
)
def test_statements_that_only_read_are_let_through(text: str) -> None:
    assert reading(text).text


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "no statement"),
        ("-- SELECT 1", "no statement"),
        ("INSERT INTO t SELECT 1", "INSERT"),
        ("INSERT INTO t FORMAT Native\n\x04\u201c$`", "INSERT"),
        ("; SELECT 1", "no statement"),
        ("()", "no statement"),
        ("drop table t", "DROP"),
        ("SET readonly = 0", "SET"),
        ("USE system", "USE"),
        ("KILL QUERY WHERE 1", "KILL"),
        ("SYSTEM FLUSH LOGS", "SYSTEM"),
        ("SELECT 1; SELECT 2", "more than one"),
        ("SELECT 1 -- x\n; DROP TABLE t", "more than one"),
        ("SELECT 1 INTO\n OUTFILE 'x'", "OUTFILE"),
        ("SELECT * FROM file('/etc/passwd')", "file()"),
        ("SELECT * FROM URL ('http://x')", "url()"),
        ("SELECT * FROM remote('h', 't')", "remote()"),
        ("SELECT * FROM s3('x')", "s3()"),
        ("/* SELECT */ ALTER TABLE t DELETE WHERE 1", "ALTER"),
        ("SELECT `file`('/etc/passwd')", "file()"),
        ("SELECT \"File\" ('/etc/passwd')", "file()"),
        ("SELECT file /* why */ -- so\n ('/etc/passwd')", "file()"),
        ("DESCRIBE `url`('http://x', 'CSV')", "url()"),
        ("EXPLAIN SELECT * FROM icebergLocal('/x')", "iceberglocal()"),
        ("SELECT * FROM eval('SELECT 1')", "eval()"),
        ("SELECT * APPLY(file) FROM (SELECT '/etc/passwd')", "file()"),
        ("SELECT arrayMap(file, ['/etc/passwd'])", "file()"),
        ("SELECT arrayMap({f:Identifier}, ['/etc/passwd'])", "comes as a value"),
        ("SELECT arrayMap({f : identifier }, ['/etc/passwd'])", "comes as a value"),
        ("SELECT aiGenerate('model', 'text')", "aigenerate()"),
        ("EXISTS `/etc/passwd`", "with a slash"),
        ('show create table "/etc/passwd"', "with a slash"),
    ],
)
def test_whatever_else_is_refused_with_its_reason(text: str, why: str) -> None:
    with pytest.raises(RejectedError) as refused:
        reading(text)
    assert why in refused.value.message


def test_a_text_at_the_end_of_a_statement_stays_and_a_comment_goes() -> None:
    assert reading("SELECT 1 WHERE x = 'a;b' ; -- done").text == "SELECT 1 WHERE x = 'a;b'"


def test_the_format_that_a_statement_names_is_found_at_its_end_only() -> None:
    assert reading("SELECT 1 format JSON;").format == "JSON"
    assert reading("SELECT format FROM t").format is None
    assert reading("SELECT 'FORMAT CSV'").format is None


@pytest.mark.parametrize(
    "text",
    [
        "SELECT file\u200b('/etc/passwd')",
        "SELECT \u2018'\u2019, file('/etc/passwd') --'",
        "SELECT \u201cfile\u201d('/etc/passwd')",
        "SELECT $$'$$, file('/etc/passwd') --'",
        "SELECT $a$'$a$, file('/etc/passwd') --'",
        "SELECT 1 //'\n, file('/etc/passwd') --'",
        "SELECT 1 #!'\n, file('/etc/passwd') --'",
        "SELECT 1 #\t'\n, file('/etc/passwd') --'",
        "SELECT 1 /* /* */ ' */ , file('/etc/passwd') -- '",
        "SELECT `fi\\x6ce`('/etc/passwd')",
        "SELECT 1 \x00, file('/etc/passwd')",
        "SELECT 'open, file('/etc/passwd')",
    ],
)
def test_no_way_of_writing_hides_a_word_from_the_check(text: str) -> None:
    with pytest.raises(RejectedError, match="refused"):
        reading(text)


@pytest.mark.parametrize(
    "text",
    [
        "SELECT 'file(', '\u2018 $$ \x00', `a``b`, \"c\"\"d\" FROM t -- \u2018\n",
        "SELECT url, input, python FROM t AS remote",
        "SELECT 1 -- one /* and /* so on\n",
        "SELECT format('{}', 1), {run_id:String}, x[1] % 2 || 'a', a -> b, c ? 1 : 0, 1::Int8",
        "SELECT 1 AS `tokens/s`",
        'SELECT count() AS "file of it" FROM numbers(3) /* (file) */',
    ],
)
def test_what_only_looks_alike_is_let_through(text: str) -> None:
    assert reading(text).text
