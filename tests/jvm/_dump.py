"""What kafka-dump-log prints, and which of it is a complaint."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.support.jvm.host import ToolHost

TOOL = "org.apache.kafka.tools.DumpLogSegments"
DEEP = ("--deep-iteration", "--print-data-log")
COMPLAINT = re.compile(
    r"mismatch|corrupt|invalid|isvalid: false|exception|error|not found|unknown|fail"
    r"|out of order",
    re.IGNORECASE,
)
GAPS = re.compile(r"Non-consecutive offsets in (\S+)")
GAP = re.compile(r" +(-?\d+) is followed by (\d+)")
RECORD = re.compile(
    r"^\| offset: (?P<offset>\d+) (?:CreateTime|LogAppendTime): (?P<timestamp>\d+)"
    r" keySize: (?P<key_size>-?\d+) valueSize: (?P<value_size>-?\d+)"
    r" sequence: (?P<sequence>-?\d+) headerKeys: \[(?P<headers>[^\]]*)\]"
    r"(?: endTxnMarker: .*)?(?: key: (?P<key>.*?))?(?: payload: (?P<value>.*))?$",
    re.MULTILINE,
)


@dataclass(frozen=True)
class Printed:
    """A record as the tool printed it."""

    offset: int
    timestamp_ms: int
    headers: tuple[str, ...]
    key: bytes | None
    value: bytes | None


@dataclass(frozen=True)
class Dump:
    """What the tool said: about each file, and where offsets do not follow each other."""

    files: Mapping[Path, str]
    gaps: Mapping[Path, Sequence[tuple[int, int]]]


def dump(tools: ToolHost, files: Sequence[Path], *options: str) -> Dump:
    """Let the tool read these files. AssertionError where it complains of anything but gaps."""
    names = ",".join(str(file) for file in files)
    outcome = tools.done(TOOL, "--files", names, *options)
    parts = re.split(r"^Dumping (.+)\n", outcome.out, flags=re.MULTILINE)
    assert not parts[0].strip(), parts[0][:4000]
    said = dict(zip(map(Path, parts[1::2]), parts[2::2], strict=True))
    assert list(said) == list(files)
    found = {path: lines for path, text in said.items() if (lines := complaints(text))}
    assert not found
    gaps: dict[Path, list[tuple[int, int]]] = {}
    other = [line for line in outcome.err.splitlines() if line.strip()]
    while other and (begin := GAPS.fullmatch(other[0])):
        listed = gaps.setdefault(Path(begin[1]), [])
        other.pop(0)
        while other and (pair := GAP.fullmatch(other[0])):
            listed.append((int(pair[1]), int(pair[2])))
            other.pop(0)
    assert not other
    return Dump(said, {path: sorted(listed) for path, listed in gaps.items()})


def complaints(printed: str) -> list[str]:
    """The lines that say that something is wrong; what records hold is left out."""
    said = (line for line in printed.splitlines() if not line.startswith("| "))
    return [line for line in said if COMPLAINT.search(line)]


def records(printed: str) -> Iterator[Printed]:
    """The records, without control records."""
    for found in RECORD.finditer(printed):
        if " endTxnMarker: " not in found[0]:
            yield Printed(
                int(found["offset"]),
                int(found["timestamp"]),
                tuple(name for name in found["headers"].split(",") if name),
                _bytes(found["key"], int(found["key_size"])),
                _bytes(found["value"], int(found["value_size"])),
            )


def fields(line: str) -> Mapping[str, str]:
    """The ``name: value`` pairs of a line."""
    return dict(re.findall(r"(\w+): (\S+)", line))


def _bytes(shown: str | None, size: int) -> bytes | None:
    return None if size < 0 else (shown or "").encode()
