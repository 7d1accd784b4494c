"""How every verb answers: JSON or a table on stdout, words on stderr, stable exit statuses.

A script can rely on three things: stdout holds data only, the exit status says what kind of thing
went wrong, and the last line on stderr says what to do about it.
"""

import json
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from enum import IntEnum, StrEnum
from typing import NoReturn

from fencelog.errors import ErrorCode, FencelogError, RequestError, error_text

Value = str | int | float | bool | None
Row = dict[str, object]


class ExitStatus(IntEnum):
    """What a script sees. These numbers never change their meaning."""

    OK = 0
    FAILED = 1
    USAGE = 2
    UNREACHABLE = 3
    NOT_FOUND = 4
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
WHERE_TO = "is the broker running? `-b HOST:PORT` or FENCELOG_BOOTSTRAP_SERVERS names another one"

HINTS = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: (
        "`fencelog topic list` shows what there is, `fencelog topic create NAME` makes one"
    ),
    ErrorCode.TOPIC_ALREADY_EXISTS: "`fencelog topic describe NAME` shows it; choose another name",
    ErrorCode.INVALID_TOPIC_EXCEPTION: (
        "names have 1 to 249 of the characters a-z A-Z 0-9 . _ - and internal ones are read-only"
    ),
    ErrorCode.INVALID_PARTITIONS: "ask for at least one partition: `-p 3`",
    ErrorCode.INVALID_REPLICATION_FACTOR: "one broker can hold one replica only: `-r 1`",
    ErrorCode.INVALID_CONFIG: "`fencelog topic describe NAME` lists the names and values in force",
    ErrorCode.OFFSET_OUT_OF_RANGE: "`-o beginning` starts at the first record that is still there",
    ErrorCode.MESSAGE_TOO_LARGE: "raise the topic's max.message.bytes, or send smaller records",
    ErrorCode.TRANSACTIONAL_ID_NOT_FOUND: "`fencelog txn list` shows the ids that are known",
    ErrorCode.INVALID_TXN_STATE: (
        "`fencelog txn list` shows the states, `fencelog txn find-hanging` what nobody will end"
    ),
    ErrorCode.GROUP_ID_NOT_FOUND: "`fencelog group list` shows the groups that are known",
    ErrorCode.NON_EMPTY_GROUP: "`fencelog group describe NAME` shows its members",
    ErrorCode.UNKNOWN_MEMBER_ID: (
        "`fencelog group describe NAME` shows its members; with group.fence=required only they "
        "move a group that has had any, until it is deleted"
    ),
    ErrorCode.PRODUCER_FENCED: (
        "another producer uses this transactional id; only the newest may write"
    ),
    ErrorCode.INVALID_PRODUCER_EPOCH: (
        "another producer uses this transactional id; only the newest may write"
    ),
    **dict.fromkeys(UNREACHABLE, WHERE_TO),
    ErrorCode.KAFKA_STORAGE_ERROR: "the broker's own log names the file; check its disk",
}


class UsageError(FencelogError):
    """The command line asks for something that does not exist or does not fit together."""


def default_format() -> Format:
    """A table for people, JSON for pipes."""
    return Format.TABLE if sys.stdout.isatty() else Format.JSON


def say(text: str) -> None:
    """One line for the person who is watching: stderr, never stdout."""
    sys.stderr.write(f"{text}\n")


def fail(status: ExitStatus, text: str, hint: str | None = None) -> NoReturn:
    """Name what was wrong and what to do, and leave with that status."""
    say(f"error: {text}")
    if hint:
        say(f"hint: {hint}")
    raise SystemExit(int(status))


def show_json(value: object) -> None:
    """One JSON document on stdout: indented for people, one line for pipes."""
    indent = 2 if sys.stdout.isatty() else None
    sys.stdout.write(json.dumps(value, indent=indent, ensure_ascii=False) + "\n")


def show_rows(rows: Sequence[Row], columns: Sequence[str], form: Format | None) -> None:
    """A list of like things: a JSON array of objects, or a table with these columns."""
    if (form or default_format()) is Format.JSON:
        show_json(list(rows))
        return
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    numeric = {c for c in columns if rows and all(isinstance(r.get(c), int) for r in rows)}
    for column in columns:
        table.add_column(column.replace("_", " "), justify="right" if column in numeric else "left")
    for row in rows:
        table.add_row(*(cell(row.get(column)) for column in columns))
    console = Console(no_color="NO_COLOR" in os.environ, soft_wrap=not sys.stdout.isatty())
    console.print(table)


def cell(value: object) -> str:
    """One value as a table shows it; markup characters stay what they are."""
    from rich.markup import escape

    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return escape(", ".join(str(item) for item in value))
    return escape(str(value))


def status_of(code: ErrorCode) -> ExitStatus:
    """What a script sees of this answer."""
    if code in NOT_FOUND:
        return ExitStatus.NOT_FOUND
    return ExitStatus.UNREACHABLE if code in UNREACHABLE else ExitStatus.FAILED


@contextmanager
def reported_errors() -> Iterator[None]:
    """Turn what a verb may meet into one sentence, one hint and an exit status."""
    try:
        yield
        sys.stdout.flush()
    except UsageError as error:
        fail(ExitStatus.USAGE, str(error), "`--help` after the verb lists what it takes")
    except RequestError as error:
        fail(status_of(error.code), str(error), HINTS.get(error.code))
    except BrokenPipeError:
        # The reader of our output has seen enough (`| head`). Nothing is left to say to it.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(int(ExitStatus.OK)) from None
    except (ConnectionError, TimeoutError) as error:
        fail(ExitStatus.UNREACHABLE, error_text(error), WHERE_TO)
    except (FencelogError, OSError) as error:
        fail(ExitStatus.FAILED, error_text(error))
    except KeyboardInterrupt:
        raise SystemExit(int(ExitStatus.INTERRUPTED)) from None
