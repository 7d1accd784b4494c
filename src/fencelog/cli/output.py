"""Output of every command: JSON or a table on stdout, messages on stderr, stable exit statuses.

A script can rely on three things: stdout has data only, the exit status says what kind of error
occurred, and the last line on stderr says what to do about it.
"""

import codecs
import io
import json
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from enum import IntEnum, StrEnum
from typing import TYPE_CHECKING, NoReturn, TextIO

from fencelog.errors import ErrorCode, FencelogError, RequestError, error_text

if TYPE_CHECKING:
    from rich.console import Console

Value = str | int | float | bool | None
Row = dict[str, object]


class ExitStatus(IntEnum):
    """What a script sees. These numbers never change their meaning."""

    OK = 0
    FAILED = 1
    USAGE = 2
    UNREACHABLE = 3
    NOT_FOUND = 4
    OWNERSHIP_LOST = 75  # EX_TEMPFAIL of sysexits.h: try again
    OWNERSHIP_REFUSED = 77  # EX_NOPERM
    CANNOT_RUN = 126  # as of env and timeout
    NO_COMMAND = 127
    INTERRUPTED = 130


class Format(StrEnum):
    """How lists and descriptions are written."""

    JSON = "json"
    TABLE = "table"


NOT_FOUND = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.TRANSACTIONAL_ID_NOT_FOUND,
        ErrorCode.GROUP_ID_NOT_FOUND,
        ErrorCode.RESOURCE_NOT_FOUND,
    }
)

UNREACHABLE = frozenset(
    {
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.BROKER_NOT_AVAILABLE,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
    }
)
REFUSED = frozenset(
    {
        ErrorCode.RESOURCE_OWNED,
        ErrorCode.STALE_GENERATION,
        ErrorCode.CLAIM_IN_PROGRESS,
        ErrorCode.CLAIM_WAITING,
    }
)
LOST = frozenset({ErrorCode.OWNER_FENCED})
STATUSES = {
    NOT_FOUND: ExitStatus.NOT_FOUND,
    UNREACHABLE: ExitStatus.UNREACHABLE,
    REFUSED: ExitStatus.OWNERSHIP_REFUSED,
    LOST: ExitStatus.OWNERSHIP_LOST,
}
WHERE_TO = "check that the broker is running; `-b HOST:PORT` or FENCELOG_BOOTSTRAP_SERVERS sets it"

HINTS = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: (
        "`fencelog topic list` shows the topics, `fencelog topic create NAME` creates one"
    ),
    ErrorCode.TOPIC_ALREADY_EXISTS: "`fencelog topic describe NAME` shows it; choose another name",
    ErrorCode.INVALID_TOPIC_EXCEPTION: (
        "names have 1 to 249 of the characters a-z A-Z 0-9 . _ - and internal topics are "
        "read-only; `fencelog stream list` shows the streams"
    ),
    ErrorCode.INVALID_PARTITIONS: "a topic has one partition or more, and can only get more",
    ErrorCode.INVALID_REPLICATION_FACTOR: (
        "each replica needs a broker that runs, and `fencelog cluster info` shows those: start the "
        "others, or make the topic with fewer replicas (`-r`)"
    ),
    ErrorCode.INVALID_CONFIG: "`fencelog topic describe NAME` lists the configs and their values",
    ErrorCode.OFFSET_OUT_OF_RANGE: "`fencelog topic describe NAME` shows the valid offsets",
    ErrorCode.MESSAGE_TOO_LARGE: "raise the topic's max.message.bytes, or send smaller records",
    ErrorCode.TRANSACTIONAL_ID_NOT_FOUND: "`fencelog txn list` shows the transactional ids",
    ErrorCode.INVALID_TXN_STATE: (
        "`fencelog txn list` shows the states, `fencelog txn find-hanging` hanging transactions"
    ),
    ErrorCode.GROUP_ID_NOT_FOUND: "`fencelog group list` shows the groups",
    ErrorCode.NON_EMPTY_GROUP: "`fencelog group describe NAME` shows its members; stop them first",
    ErrorCode.UNKNOWN_MEMBER_ID: (
        "`fencelog group describe NAME` shows the members; with group.fence=required only members "
        "can commit: delete the group first"
    ),
    ErrorCode.PRODUCER_FENCED: (
        "another producer uses this transactional id; only the newest can write"
    ),
    ErrorCode.INVALID_PRODUCER_EPOCH: (
        "another producer uses this transactional id; only the newest can write"
    ),
    **dict.fromkeys(REFUSED | LOST, "`fencelog own status` shows the present owners"),
    **dict.fromkeys(UNREACHABLE, WHERE_TO),
    ErrorCode.RESIZE_IN_PROGRESS: (
        "`fencelog stream describe NAME` shows the resize; try again when it is complete"
    ),
    ErrorCode.KAFKA_STORAGE_ERROR: "the broker's log names the file; check its disk",
}


class UsageError(FencelogError):
    """The command line has a wrong option, argument or combination of them."""


def default_format() -> Format:
    """A table for people, JSON for pipes."""
    return Format.TABLE if sys.stdout.isatty() else Format.JSON


def _is_utf8() -> bool:
    return codecs.lookup(sys.stdout.encoding or "ascii").name == "utf-8"


def say(text: str) -> None:
    """One line for the person who is watching: stderr, never stdout."""
    try:
        sys.stderr.write(f"{text}\n")
    except BrokenPipeError:
        # Nobody is watching. The exit status still tells.
        discard(sys.stderr)


def discard(stream: TextIO) -> None:
    """Let what is buffered and what follows go nowhere: its reader has closed the pipe."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


@contextmanager
def status_follows() -> Iterator[None]:
    """Show a result whose exit status comes after it, and counts also if nobody reads it all."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        discard(sys.stdout)


def console(*, soft_wrap: bool, highlight: bool = True) -> "Console":
    """Rich's console on stdout. Raises BrokenPipeError, for which Rich would exit with status 1."""
    from rich.console import Console

    class Raising(Console):
        def on_broken_pipe(self) -> None:
            raise BrokenPipeError

    return Raising(no_color="NO_COLOR" in os.environ, soft_wrap=soft_wrap, highlight=highlight)


def fail(status: ExitStatus, text: str, hint: str | None = None) -> NoReturn:
    """Print the error and the hint to stderr, and exit with this status."""
    say(f"error: {text}")
    if hint:
        say(f"hint: {hint}")
    raise SystemExit(int(status))


def show_json(value: object) -> None:
    """One JSON document on stdout: indented for people, one line for pipes."""
    indent = 2 if sys.stdout.isatty() else None
    sys.stdout.write(json.dumps(value, indent=indent, ensure_ascii=not _is_utf8()) + "\n")


def show_line(value: object) -> None:
    """One JSON document on one line of stdout, at once: for what goes on until Ctrl-C."""
    sys.stdout.write(json.dumps(value, ensure_ascii=not _is_utf8()) + "\n")
    sys.stdout.flush()


def show_rows(rows: Sequence[Row], columns: Sequence[str], form: Format | None) -> None:
    """Print rows as a JSON array of objects, or as a table with these columns."""
    if (form or default_format()) is Format.JSON:
        show_json(list(rows))
        return
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    numeric = {c for c in columns if rows and all(isinstance(r.get(c), int) for r in rows)}
    for column in columns:
        table.add_column(column.replace("_", " "), justify="right" if column in numeric else "left")
    for row in rows:
        table.add_row(*(cell(row.get(column)) for column in columns))
    console(soft_wrap=not sys.stdout.isatty()).print(table)


def cell(value: object) -> str:
    """One value as text for a table; markup characters are escaped."""
    from rich.markup import escape

    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return escape(", ".join(str(item) for item in value))
    return escape(str(value))


def status_of(code: ErrorCode) -> ExitStatus:
    """The exit status for this error code."""
    for codes, status in STATUSES.items():
        if code in codes:
            return status
    return ExitStatus.FAILED


@contextmanager
def reported_errors() -> Iterator[None]:
    """Report each expected exception with an error line, a hint and an exit status."""
    for stream in (sys.stdout, sys.stderr):
        # A terminal or pipe of another encoding than UTF-8 gets escapes for what it cannot show.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        yield
        sys.stdout.flush()
    except UsageError as error:
        fail(ExitStatus.USAGE, str(error), "add `--help` to the command for its options")
    except RequestError as error:
        fail(status_of(error.code), str(error), HINTS.get(error.code))
    except BrokenPipeError:
        # The reader of our output has closed the pipe (`| head`). That is no error.
        raise SystemExit(int(ExitStatus.OK)) from None
    except (ConnectionError, TimeoutError) as error:
        fail(ExitStatus.UNREACHABLE, error_text(error), WHERE_TO)
    except (FencelogError, OSError) as error:
        fail(ExitStatus.FAILED, error_text(error))
    except KeyboardInterrupt:
        raise SystemExit(int(ExitStatus.INTERRUPTED)) from None
    finally:
        try:
            sys.stdout.flush()
        except OSError:
            # Told above, or nobody reads it. Python would try again, and change the exit status.
            discard(sys.stdout)
