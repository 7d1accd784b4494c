"""The log on stderr: one line an event, whatever clients send and whoever reads it."""

import logging
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from fencelog.cli.log_output import (
    INTERVAL_S,
    KINDS_MAX,
    LINE_CHARACTERS_MAX,
    LINES_MAX,
    REPEATED_MAX,
    LogOutput,
    OneLine,
    Repetition,
    escaped,
)


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    """Both ends of a pipe: what nobody reads fills it."""
    ends = os.pipe()
    yield ends
    for end in ends:
        os.close(end)


def record(text: str, *arguments: object, peer: str | None = None) -> logging.LogRecord:
    made = logging.LogRecord("a.b", logging.WARNING, "f", 1, text, arguments, None)
    if peer is not None:
        made.peer = peer
    return made


def read_to_end(pipe: tuple[int, int], last: bytes) -> list[str]:
    """What is written until this line, which is the last one."""
    text = b""
    while not text.endswith(last + b"\n"):
        text += os.read(pipe[0], 1 << 16)
    return text.decode().splitlines()


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain Übergröße", "plain Übergröße"),
        ("a\n2026-01-01 ERROR forged", "a\\n2026-01-01 ERROR forged"),
        ("\x1b[31mred\r\x00", "\\x1b[31mred\\r\\x00"),
        ("one\u2028two\x85", "one\\u2028two\\x85"),
    ],
)
def test_what_a_client_sends_stays_in_its_line(text: str, shown: str) -> None:
    assert OneLine("%(message)s").format(record("%s", text)) == shown


def test_a_long_line_is_cut_and_says_so() -> None:
    shown = OneLine("%(message)s").format(record("%s", "x" * 100_000))
    assert shown == "x" * LINE_CHARACTERS_MAX + "… (96000 more characters)"
    assert escaped("x" * 10, 10) == "x" * 10


def test_a_traceback_cannot_be_taken_for_lines_of_the_log() -> None:
    made = record("it failed")
    try:
        int("no number")
    except ValueError as error:
        forged = ValueError("one\n2026-01-01 ERROR forged\x1b")
        made.exc_info = (ValueError, forged, error.__traceback__)
    first, *others = OneLine("%(message)s").format(made).split("\n")
    assert first == "it failed"
    assert all(line.startswith("    | ") for line in others)
    assert others[-1] == "    | 2026-01-01 ERROR forged\\x1b"


def test_lines_are_written_in_order_and_all_of_them_by_the_end(pipe: tuple[int, int]) -> None:
    output = LogOutput(pipe[1])
    for number in range(100):
        output.line(f"line {number}")
    output.close()
    assert read_to_end(pipe, b"line 99") == [f"line {number}" for number in range(100)]


def test_nobody_waits_for_a_reader_and_what_is_dropped_is_counted(pipe: tuple[int, int]) -> None:
    output = LogOutput(pipe[1])
    sent = 2 * LINES_MAX + 1_000
    for number in range(sent):  # more than the writer, the queue and the pipe's 64 KiB hold
        output.line(f"{number} " + "x" * 200)
    with ThreadPoolExecutor(1) as reader:
        seen = reader.submit(read_to_end, pipe, b"the end")
        output.close()
        os.write(pipe[1], b"the end\n")
        lines = seen.result()
    told = [line for line in lines if line.endswith("were dropped: nobody reads stderr")]
    dropped = sum(int(line.split()[0]) for line in told)
    written = [line for line in lines if line.endswith("x" * 200)]
    assert dropped > 0
    assert len(written) + dropped == sent


def test_a_peer_that_repeats_itself_is_counted(pipe: tuple[int, int]) -> None:
    output = LogOutput(pipe[1])
    for number in range(REPEATED_MAX + 5):
        output.emit(record("closing %s", number, peer="10.0.0.1"))
    output.emit(record("closing %s", "another", peer="10.0.0.2"))
    for number in range(REPEATED_MAX + 1):
        output.emit(record("offline: %s", number))
    output.close()
    lines = os.read(pipe[0], 1 << 16).decode().splitlines()
    assert len([line for line in lines if "closing " in line and "more" not in line]) == 11
    assert len([line for line in lines if "offline" in line]) == REPEATED_MAX + 1
    assert "5 more lines like this" in lines[-1]
    assert "10.0.0.1" in lines[-1]


def test_an_interval_that_is_over_is_told_and_begins_anew() -> None:
    repetition = Repetition()
    admitted = [repetition.admits("kind", 0.0) for _ in range(REPEATED_MAX + 3)]
    assert admitted == [True] * REPEATED_MAX + [False] * 3
    assert repetition.counted(INTERVAL_S - 1) == []
    assert [line.split()[0] for line in repetition.counted(INTERVAL_S)] == ["3"]
    assert repetition.admits("kind", INTERVAL_S)
    assert repetition.counted(None) == []


def test_kinds_beyond_the_limit_end_the_oldest() -> None:
    repetition = Repetition()
    for _ in range(REPEATED_MAX + 1):
        repetition.admits("first", 0.0)
    for number in range(KINDS_MAX):
        repetition.admits(number, 0.0)
    assert [line.split()[0] for line in repetition.counted(0.0)] == ["1"]


def test_a_closed_stderr_ends_nothing() -> None:
    read, write = os.pipe()
    os.close(read)
    output = LogOutput(write)
    output.line("to nobody")
    output.close()
    os.close(write)
    assert not output._thread.is_alive()
