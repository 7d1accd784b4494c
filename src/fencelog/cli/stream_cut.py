"""Where a reader group begins or goes on: ``--from`` and ``--to``."""

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from fencelog.cli.options import INDEXES, OFFSETS
from fencelog.cli.output import UsageError
from fencelog.errors import error_text

if TYPE_CHECKING:
    from fencelog.client.streams.model import StreamDescription

EARLIEST, LATEST = "earliest", "latest"
WORDS = {
    **dict.fromkeys(("beginning", "start", EARLIEST), EARLIEST),
    **dict.fromkeys(("end", LATEST), LATEST),
}
CUT_BYTES_MAX = 1 << 20


@dataclass(frozen=True, kw_only=True)
class Place:
    """What was asked for: a cut, or a word or name.

    Attributes:
        start: as the client takes it.
        name: of a checkpoint, None for anything else.
        stream, topic_id: those that the cut names, None where it names none.
    """

    flag: str
    start: str | Mapping[int, int]
    name: str | None = None
    stream: str | None = None
    topic_id: str | None = None

    @property
    def is_cut(self) -> bool:
        """Whether it is a stream cut."""
        return not isinstance(self.start, str)

    def check(self, described: "StreamDescription") -> None:
        """Raise UsageError if it is a cut of another stream."""
        if self.stream is not None and self.stream != described.name:
            raise UsageError(
                f"{self.flag}: the cut is of stream {self.stream}, not {described.name}"
            )
        if self.topic_id is not None and self.topic_id != described.topic_id.hex():
            raise UsageError(
                f"{self.flag}: the cut is of an earlier stream {described.name}, which was deleted"
            )


def parse_place(text: str, flag: str) -> Place:
    """Read ``beginning``, ``end``, a cut (JSON, a file or ``-``), or a checkpoint's name.

    Raises UsageError for a cut that cannot be read.
    """
    if text in WORDS:
        return Place(flag=flag, start=WORDS[text])
    if text.lstrip().startswith("{"):
        return _cut(text, flag)
    if text == "-":
        return _cut(sys.stdin.buffer.read(CUT_BYTES_MAX), flag)
    if Path(text).is_file():
        try:
            with open(text, encoding="utf-8") as file:
                return _cut(file.read(CUT_BYTES_MAX), flag)
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"{flag} {text}: {error_text(error)}") from None
    return Place(flag=flag, start=text, name=text)


def _cut(text: str | bytes, flag: str) -> Place:
    try:
        found = json.loads(text)
        segments = {
            INDEXES.parse(index): OFFSETS.parse(str(offset))
            for index, offset in found["segments"].items()
        }
        stream, topic_id = found.get("stream"), found.get("topic_id")
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise UsageError(
            f"{flag}: expected a stream cut, as `fencelog stream cut` prints it"
        ) from None
    return Place(flag=flag, start=segments, stream=stream, topic_id=topic_id)
