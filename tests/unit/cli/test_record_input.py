"""Records from bytes: delimited text and JSON lines."""

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fencelog.cli.output import UsageError
from fencelog.cli.record_format import to_json
from fencelog.cli.record_input import InputForm, InputRecord, read_input, split
from fencelog.client.model import Record


def records(data: bytes, form: InputForm) -> list[InputRecord]:
    return list(read_input(io.BytesIO(data), form))


def test_each_line_is_a_value_and_a_last_one_without_newline_counts() -> None:
    assert [r.value for r in records(b"one\n\nthree", InputForm())] == [b"one", b"", b"three"]


def test_the_key_ends_at_the_first_key_delimiter() -> None:
    form = InputForm(key_delimiter=b":")
    found = records(b"k:v:w\nno key\n:empty\n", form)
    assert [(r.key, r.value) for r in found] == [(b"k", b"v:w"), (None, b"no key"), (b"", b"empty")]


def test_a_fixed_key_partition_and_headers_reach_every_record() -> None:
    form = InputForm(key=b"k", partition=3, headers=(("h", b"1"),))
    assert records(b"a\n", form) == [
        InputRecord(key=b"k", value=b"a", partition=3, headers=(("h", b"1"),))
    ]


def test_json_lines_may_hold_structures_nulls_and_base64() -> None:
    lines = b"""{"value": {"a": [1, 2]}, "partition": 1, "timestamp": 5}

{"key": "k", "value": null}
{"key_base64": "/w==", "value": "x", "headers": [{"key": "h", "value": "1"}]}
"""
    assert records(lines, InputForm(as_json=True)) == [
        InputRecord(key=None, value=b'{"a":[1,2]}', partition=1, timestamp_ms=5),
        InputRecord(key=b"k", value=None),
        InputRecord(key=b"\xff", value=b"x", headers=(("h", b"1"),)),
    ]


@pytest.mark.parametrize(
    "line",
    [b"nonsense", b"[1]", b'{"partition": "0"}', b'{"value_base64": "%"}', b'{"headers": [1]}'],
)
def test_a_line_of_another_form_is_named_by_its_number(line: bytes) -> None:
    with pytest.raises(UsageError, match=r"^--json: record 2 is not valid: "):
        records(b'{"value": "ok"}\n' + line + b"\n", InputForm(as_json=True))


def test_a_record_that_outgrows_the_limit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fencelog.cli.record_input.RECORD_BYTES_MAX", 1 << 20)
    with pytest.raises(UsageError, match="check the delimiter"):
        list(split(io.BytesIO(b"x" * (2 << 20)), b"\n"))


@given(st.lists(st.binary(max_size=8).filter(lambda b: b"||" not in b and not b.endswith(b"|"))))
def test_joined_pieces_split_into_the_same_pieces(pieces: list[bytes]) -> None:
    whole = [piece for piece in pieces if not piece.startswith(b"|")]
    joined = b"".join(piece + b"||" for piece in whole)
    assert list(split(io.BytesIO(joined), b"||")) == whole


@given(
    key=st.none() | st.binary(),
    value=st.none() | st.binary(),
    headers=st.lists(st.tuples(st.text(), st.none() | st.binary())),
)
def test_what_consume_writes_as_json_produce_reads_back(
    key: bytes | None, value: bytes | None, headers: list[tuple[str, bytes | None]]
) -> None:
    record = Record(
        topic="t",
        partition=1,
        offset=2,
        timestamp_ms=3,
        timestamp_type=0,
        key=key,
        value=value,
        headers=tuple(headers),
    )
    assert records(to_json(record), InputForm(as_json=True)) == [
        InputRecord(key=key, value=value, partition=1, timestamp_ms=3, headers=tuple(headers))
    ]
