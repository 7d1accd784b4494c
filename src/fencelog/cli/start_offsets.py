"""The start offset: the ``-o`` option, as in kcat and rpk."""

import re
from dataclasses import dataclass
from datetime import UTC, datetime

from fencelog.cli.options import OFFSETS, whole_number
from fencelog.cli.output import UsageError
from fencelog.settings.kinds import INT64_MAX, Whole

UNITS_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
AGE = re.compile(r"-(\d+)(ms|s|m|h|d)")
TIMES = Whole(0, INT64_MAX, "ms")
"""A search for a time that is below 0 would mean something else on the wire."""


@dataclass(frozen=True)
class Beginning:
    """The first record that is not deleted."""


@dataclass(frozen=True)
class End:
    """After the newest record, or ``back`` offsets before that."""

    back: int = 0


@dataclass(frozen=True)
class Exactly:
    """One offset."""

    offset: int


@dataclass(frozen=True)
class At:
    """The first record with this timestamp or a later one."""

    timestamp_ms: int


Start = Beginning | End | Exactly | At


def parse_start(text: str, *, now_ms: int) -> Start:
    """Read ``beginning``, ``end``, ``-N``, ``N`` or ``@TIME``.

    A time is milliseconds (13 digits), seconds (10), an ISO date or time, or an age such as
    ``-15m``. Raises UsageError for any other text.
    """
    if text in {"beginning", "start", "earliest"}:
        return Beginning()
    if text in {"end", "latest"}:
        return End()
    if re.fullmatch(r"-\d+", text):
        return End(back=whole_number(text[1:], f"-o {text}", OFFSETS))
    if text.isdecimal():
        return Exactly(whole_number(text, f"-o {text}", OFFSETS))
    if text.startswith("@"):
        timestamp_ms = _timestamp_ms(text[1:], now_ms)
        if not TIMES.low <= timestamp_ms <= TIMES.high:
            raise UsageError(f"-o {text}: expected a time from 1970 on, {TIMES.bounds()} ms")
        return At(timestamp_ms)
    raise UsageError(f"-o {text}: expected beginning, end, N, -N (from the end) or @TIME")


def _timestamp_ms(text: str, now_ms: int) -> int:
    if text.isdecimal():
        return whole_number(text, f"-o @{text}", TIMES) * (1 if len(text) > 10 else 1000)
    if age := AGE.fullmatch(text):
        return now_ms - whole_number(age[1], f"-o @{text}", OFFSETS) * UNITS_MS[age[2]]
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise UsageError(
            f"-o @{text}: expected milliseconds, seconds, ISO date or time, or an age (@-15m)"
        ) from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return round(moment.timestamp() * 1000)
