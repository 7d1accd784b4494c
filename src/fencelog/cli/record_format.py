"""Records as text: format strings of kcat and rpk, or one JSON object per line.

The JSON form is the one that ``topic produce --json`` reads back, byte for byte.
"""

import base64
import json
from collections.abc import Callable

from fencelog.cli.output import UsageError
from fencelog.client.model import Record

Part = Callable[[Record], bytes]


def _length(data: bytes | None) -> bytes:
    return b"-1" if data is None else str(len(data)).encode()


def _headers(record: Record) -> bytes:
    shown = (
        name.encode() + b"=" + (b"NULL" if value is None else value)
        for name, value in record.headers
    )
    return b",".join(shown)


DIRECTIVES: dict[str, Part] = {
    "t": lambda record: record.topic.encode(),
    "p": lambda record: str(record.partition).encode(),
    "o": lambda record: str(record.offset).encode(),
    "T": lambda record: str(record.timestamp_ms).encode(),
    "k": lambda record: record.key or b"",
    "K": lambda record: _length(record.key),
    "v": lambda record: record.value or b"",
    "V": lambda record: _length(record.value),
    "s": lambda record: record.value or b"",
    "S": lambda record: _length(record.value),
    "h": _headers,
    "H": lambda record: str(len(record.headers)).encode(),
    "%": lambda _record: b"%",
}
ESCAPES = {"n": b"\n", "r": b"\r", "t": b"\t", "0": b"\0", "\\": b"\\"}


def formatter(text: str) -> Callable[[Record], bytes]:
    """Compile a format string such as ``%k %v %o %p %t %T %h\\n``.

    Raises UsageError for an unknown directive or escape, with its position.
    """
    parts: list[Part] = []
    position = 0
    while position < len(text):
        character = text[position]
        if character == "%":
            parts.append(_directive(text, position))
            width = 2
        elif character == "\\":
            data, width = _escape(text, position, "-f")
            parts.append(_literal(data))
        else:
            parts.append(_literal(character.encode()))
            width = 1
        position += width
    return lambda record: b"".join(part(record) for part in parts)


def unescape(text: str, flag: str) -> bytes:
    """Text with escapes as bytes. Raises UsageError for an unknown escape."""
    data, position = b"", 0
    while position < len(text):
        if text[position] == "\\":
            piece, width = _escape(text, position, flag)
        else:
            piece, width = text[position].encode(), 1
        data += piece
        position += width
    return data


def _literal(data: bytes) -> Part:
    return lambda _record: data


def _directive(text: str, position: int) -> Part:
    name = text[position + 1 : position + 2]
    if name not in DIRECTIVES:
        known = " ".join(f"%{each}" for each in DIRECTIVES)
        raise UsageError(f"-f: %{name} at character {position + 1} is unknown; known: {known}")
    return DIRECTIVES[name]


def _escape(text: str, position: int, flag: str) -> tuple[bytes, int]:
    name = text[position + 1 : position + 2]
    if name in ESCAPES:
        return ESCAPES[name], 2
    if name == "x":
        digits = text[position + 2 : position + 4]
        try:
            return bytes.fromhex(digits), 4
        except ValueError:
            pass
    raise UsageError(
        rf"{flag}: \{name} at character {position + 1} is unknown; known: \n \r \t \0 \\ \xHH"
    )


def to_json(record: Record) -> bytes:
    """One line of JSON. Bytes that are not UTF-8 text go in a field ``…_base64``."""
    shown: dict[str, object] = {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp": record.timestamp_ms,
        **_bytes_field("key", record.key),
        **_bytes_field("value", record.value),
    }
    if record.headers:
        shown["headers"] = [
            {"key": name, **_bytes_field("value", value)} for name, value in record.headers
        ]
    return json.dumps(shown, ensure_ascii=False).encode() + b"\n"


def _bytes_field(name: str, data: bytes | None) -> dict[str, str | None]:
    if data is None:
        return {name: None}
    try:
        return {name: data.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(data).decode()}
