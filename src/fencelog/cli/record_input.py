"""Records from files and stdin: delimited text as in kcat, or one JSON object per line."""

import base64
import binascii
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO

from fencelog.cli.options import INDEXES
from fencelog.cli.output import UsageError
from fencelog.settings.kinds import INT64_MAX, Whole

CHUNK_BYTES = 1 << 16
RECORD_BYTES_MAX = 64 << 20
TIMESTAMPS = Whole(-INT64_MAX - 1, INT64_MAX, "ms")


@dataclass(frozen=True, kw_only=True)
class InputRecord:
    """A record to send. With ``partition`` None the key chooses the partition."""

    key: bytes | None
    value: bytes | None
    partition: int | None = None
    timestamp_ms: int | None = None
    headers: tuple[tuple[str, bytes | None], ...] = ()


@dataclass(frozen=True, kw_only=True)
class InputForm:
    """How to parse the input, from the command line's options."""

    as_json: bool = False
    delimiter: bytes = b"\n"
    key_delimiter: bytes | None = None
    key: bytes | None = None
    partition: int | None = None
    headers: tuple[tuple[str, bytes | None], ...] = ()


def read_input(source: BinaryIO, form: InputForm) -> Iterator[InputRecord]:
    """The records of one file; the last one needs no delimiter.

    Raises UsageError for a record that is not a JSON object of the expected form, with its number.
    """
    delimiter = b"\n" if form.as_json else form.delimiter
    for number, chunk in enumerate(split(source, delimiter), start=1):
        if form.as_json:
            if chunk.strip():
                yield _from_json(chunk, number, form)
        else:
            yield _from_text(chunk, form)


def split(source: BinaryIO, delimiter: bytes) -> Iterator[bytes]:
    """The pieces between delimiters. Raises UsageError if a piece exceeds RECORD_BYTES_MAX."""
    pending = b""
    # read1 returns what a pipe has already, so lines of a slow writer are sent at once.
    read = getattr(source, "read1", source.read)
    while data := read(CHUNK_BYTES):
        *whole, pending = (pending + data).split(delimiter)
        yield from whole
        if len(pending) > RECORD_BYTES_MAX:
            raise UsageError(
                f"a record is larger than {RECORD_BYTES_MAX >> 20} MiB; check the delimiter (-D)"
            )
    if pending:
        yield pending


def _from_text(chunk: bytes, form: InputForm) -> InputRecord:
    key, value = form.key, chunk
    if form.key_delimiter is not None:
        head, found, tail = chunk.partition(form.key_delimiter)
        if found:
            key, value = head, tail
    return InputRecord(key=key, value=value, partition=form.partition, headers=form.headers)


def _from_json(line: bytes, number: int, form: InputForm) -> InputRecord:
    try:
        fields = json.loads(line)
        if not isinstance(fields, dict):
            raise UsageError("expected a JSON object")  # noqa: TRY301 - reported with the line's number
        headers = tuple(
            (str(header["key"]), _bytes_of(header, "value")) for header in fields.get("headers", ())
        )
        return InputRecord(
            key=_bytes_of(fields, "key", form.key),
            value=_bytes_of(fields, "value"),
            partition=_int_of(fields, "partition", INDEXES, form.partition),
            timestamp_ms=_int_of(fields, "timestamp", TIMESTAMPS, None),
            headers=headers or form.headers,
        )
    except RecursionError:
        raise UsageError(f"--json: record {number} is not valid: it is nested too deeply") from None
    except (UsageError, KeyError, TypeError, ValueError, binascii.Error) as error:
        raise UsageError(f"--json: record {number} is not valid: {error}") from None


def _bytes_of(fields: dict[str, object], name: str, default: bytes | None = None) -> bytes | None:
    if f"{name}_base64" in fields:
        return base64.b64decode(str(fields[f"{name}_base64"]), validate=True)
    value = fields.get(name)
    if value is None:
        return default
    if not isinstance(value, str):
        # Any other JSON value is sent as JSON.
        return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
    return value.encode()


def _int_of(
    fields: dict[str, object], name: str, numbers: Whole, default: int | None
) -> int | None:
    value = fields.get(name, default)
    if value is None:
        return None
    if (
        not isinstance(value, int)
        or isinstance(value, bool)
        or not numbers.low <= value <= numbers.high
    ):
        raise UsageError(f"{name} must be {numbers.expected()}, not {value!r}")
    return value
