"""Format strings and the JSON form of records."""

import json
from dataclasses import replace

import pytest

from fencelog.cli.output import UsageError
from fencelog.cli.record_format import formatter, to_json, unescape
from fencelog.client.model import Record

RECORD = Record(
    topic="flights",
    partition=2,
    offset=41,
    timestamp_ms=1357034400000,
    timestamp_type=0,
    key=b"UA",
    value=b"EWR",
    headers=(("a", b"1"), ("b", None)),
)


def test_every_directive_shows_its_field() -> None:
    show = formatter(r"%t %p %o %T %k %K %v %V %s %S %h %H %%\n")
    assert show(RECORD) == b"flights 2 41 1357034400000 UA 2 EWR 3 EWR 3 a=1,b=NULL 2 %\n"


def test_a_null_key_is_empty_and_of_length_minus_one() -> None:
    assert formatter("[%k] %K")(replace(RECORD, key=None)) == b"[] -1"


def test_escapes_and_bytes_beyond_ascii_pass_through() -> None:
    assert formatter(r"\t\x00é\\")(RECORD) == b"\t\x00" + "é".encode() + b"\\"


@pytest.mark.parametrize("text", ["%q", "%", r"\q", r"\xZZ", "\\"])
def test_an_unknown_directive_is_named_with_its_place(text: str) -> None:
    with pytest.raises(UsageError, match=r"at character 4 is unknown; known:"):
        formatter("abc" + text)


def test_unescape_names_the_flag_that_was_wrong() -> None:
    assert unescape(r"\x1f;", "-D") == b"\x1f;"
    with pytest.raises(UsageError, match=r"^-D: "):
        unescape(r"\q", "-D")


def test_json_keeps_text_as_text_and_other_bytes_as_base64() -> None:
    shown = json.loads(to_json(replace(RECORD, value=b"\xff\x00")))
    assert shown == {
        "topic": "flights",
        "partition": 2,
        "offset": 41,
        "timestamp": 1357034400000,
        "key": "UA",
        "value_base64": "/wA=",
        "headers": [{"key": "a", "value": "1"}, {"key": "b", "value": None}],
    }


def test_one_record_is_one_line_whatever_it_holds() -> None:
    line = to_json(replace(RECORD, value=b"two\nlines"))
    assert line.count(b"\n") == 1
    assert line.endswith(b"\n")
