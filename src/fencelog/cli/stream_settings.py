"""The topic settings of a stream, from the options of ``fencelog stream create``."""

import re
from collections.abc import Iterable

from fencelog.cli.options import key_values
from fencelog.cli.output import UsageError
from fencelog.settings.kinds import INT32_MAX, Whole

LEAST, MOST = "stream.segments.min", "stream.segments.max"
EVENTS, KBYTES = "stream.rate.events.per.segment", "stream.rate.kbytes.per.segment"
RATE = re.compile(r"(\d+)(?:([kmg])i?b)?/s", re.IGNORECASE)
RATES = Whole(1, INT32_MAX)
UNITS_KIB = {"k": 1, "m": 1 << 10, "g": 1 << 20}


def stream_settings(
    pairs: Iterable[str], *, least: int | None, most: int | None, rates: Iterable[str]
) -> dict[str, str]:
    """Merge ``--set``, ``--min``, ``--max`` and ``--rate``.

    Raises UsageError for a rate that cannot be read, and for a setting that is given twice.
    """
    settings = key_values(pairs, "--set")
    options = [("--min", LEAST, least), ("--max", MOST, most)]
    options += [(f"--rate {text}", *_rate(text)) for text in rates]
    for flag, key, value in options:
        if value is None:
            continue
        if key in settings:
            raise UsageError(f"{flag}: {key} is set already; give it once")
        settings[key] = str(value)
    if least is not None and most is not None and least > most:
        raise UsageError(f"--min {least}: --max is {most}, and cannot be lower")
    return settings


def _rate(text: str) -> tuple[str, int]:
    """The setting for a rate, and its value: records a second, or KiB a second."""
    found = RATE.fullmatch(text)
    try:
        number = RATES.parse(found[1]) if found else 0
        unit = found[2] if found else None
        rate = RATES.parse(str(number * (UNITS_KIB[unit.lower()] if unit else 1)))
    except ValueError:
        raise UsageError(
            f"--rate {text}: expected records as 100/s, or 500KB/s, 2MB/s; {RATES.bounds()}"
        ) from None
    return KBYTES if unit else EVENTS, rate
