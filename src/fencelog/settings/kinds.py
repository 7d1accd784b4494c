"""Kinds of values of settings: how a text is read, what is allowed, and what a refusal says.

Each has ``config_type``, the type that DescribeConfigs names; ``expected``, what a value may be;
``parse``, the value that a text means, without the spaces around it, or ValueError with the reason;
and ``show``, the text that ``parse`` reads as that value.
"""

import re
from typing import Literal, NamedTuple

INT16_MAX = (1 << 15) - 1
INT32_MAX = (1 << 31) - 1
INT64_MAX = (1 << 63) - 1

ConfigType = Literal["boolean", "string", "int", "short", "long", "double", "list"]
Unit = Literal["", "ms", "minutes", "hours", "bytes"]

SECOND_MS = 1000
MINUTE_MS = 60 * SECOND_MS
HOUR_MS = 60 * MINUTE_MS
DAY_MS = 24 * HOUR_MS

_UNIT_WORDS: dict[Unit, str] = {
    "": "",
    "ms": " of milliseconds",
    "minutes": " of minutes",
    "hours": " of hours",
    "bytes": " of bytes",
}
UNIT_MS: dict[Unit, int] = {"ms": 1, "minutes": MINUTE_MS, "hours": HOUR_MS}
"""Units of time, each in milliseconds."""
_TIMES: tuple[tuple[tuple[str, ...], str, int], ...] = (
    (("ms", "millis", "millisecond", "milliseconds"), "millisecond", 1),
    (("s", "sec", "secs", "second", "seconds"), "second", SECOND_MS),
    (("m", "min", "mins", "minute", "minutes"), "minute", MINUTE_MS),
    (("h", "hr", "hrs", "hour", "hours"), "hour", HOUR_MS),
    (("d", "day", "days"), "day", DAY_MS),
    (("w", "week", "weeks"), "week", 7 * DAY_MS),
)
_SIZES: tuple[tuple[tuple[str, ...], str, int], ...] = (
    (("b", "byte", "bytes"), "byte", 1),
    (("k", "kb", "kib"), "KiB", 1 << 10),
    (("m", "mb", "mib"), "MiB", 1 << 20),
    (("g", "gb", "gib"), "GiB", 1 << 30),
    (("t", "tb", "tib"), "TiB", 1 << 40),
)
_WHOLE = r"[+-]?[0-9]{1,30}"
_WITH_UNIT = r"(?P<number>[0-9]{1,15}(?:\.[0-9]{1,6})?)\s*(?P<unit>[A-Za-z]+)"


class Whole(NamedTuple):
    """A whole number within bounds, in a unit."""

    low: int
    high: int
    unit: Unit = ""

    @property
    def config_type(self) -> ConfigType:
        """By the number of bits that the largest value needs."""
        return "int" if self.high <= INT32_MAX else "long"

    def expected(self) -> str:
        """Return unit and bounds."""
        words = f"a whole number{_UNIT_WORDS[self.unit]}"
        return f"{words}: {self.low}" if self.low == self.high else f"{words} {self.bounds()}"

    def bounds(self) -> str:
        """Return the bounds in words."""
        return f"from {self.low} to {self.high}"

    def parse(self, text: str) -> int:
        """Return the number; raises ValueError for anything but digits, or beyond the bounds."""
        text = text.strip()
        if not re.fullmatch(_WHOLE, text) or not self.low <= int(text) <= self.high:
            raise ValueError(f"expected {self.expected()}{self._hint(text)}")
        return int(text)

    def show(self, value: int) -> str:
        """Return its digits."""
        return str(value)

    def _hint(self, text: str) -> str:
        """What the text may have meant, as a further clause of the refusal."""
        bare = text.strip("\"'").replace("_", "").replace(",", "")
        if bare != text and re.fullmatch(_WHOLE, bare):
            return f"; write {bare}"
        match = re.fullmatch(_WITH_UNIT, bare)
        if match is None or not self.unit:
            return ""
        number, unit = float(match["number"]), match["unit"].lower()
        scale = UNIT_MS.get(self.unit, 1)
        for names, name, size in _SIZES if self.unit == "bytes" else _TIMES:
            meant = number * size / scale
            if unit in names and meant.is_integer():
                is_one = number == 1
                plural = "" if is_one or name.endswith("iB") else "s"
                verb = "is" if is_one else "are"
                return f"; {match['number']} {name}{plural} {verb} {meant:.0f}"
        return ""


class Short(Whole):
    """A whole number that Kafka keeps in 16 bits."""

    __slots__ = ()

    @property
    def config_type(self) -> ConfigType:
        """Kafka's name of it."""
        return "short"


class Fraction(NamedTuple):
    """A number from 0 to 1."""

    @property
    def config_type(self) -> ConfigType:
        """Kafka's name of it."""
        return "double"

    def expected(self) -> str:
        """Return the bounds."""
        return "a number from 0 to 1"

    def parse(self, text: str) -> float:
        """Return the number; raises ValueError."""
        try:
            value = float(text)
        except ValueError:
            value = -1.0
        if not 0 <= value <= 1 or "_" in text:
            raise ValueError(f"expected {self.expected()}, for example 0.5")
        return value

    def show(self, value: float) -> str:
        """Return it in decimals."""
        return str(value)


class Truth(NamedTuple):
    """``true`` or ``false``, in either case as in Kafka."""

    @property
    def config_type(self) -> ConfigType:
        """Kafka's name of it."""
        return "boolean"

    def expected(self) -> str:
        """Return both words."""
        return "true or false"

    def parse(self, text: str) -> bool:
        """Return the truth; raises ValueError for yes, 1 and on as well."""
        word = text.strip().lower()
        if word not in ("true", "false"):
            raise ValueError(f"expected {self.expected()}")
        return word == "true"

    def show(self, value: bool) -> str:
        """Return Kafka's word."""
        return "true" if value else "false"


class OneOf(NamedTuple):
    """One of some words; ``because`` says why no others."""

    words: tuple[str, ...]
    because: str = ""
    config_type: ConfigType = "string"

    def expected(self) -> str:
        """Return the words."""
        shown = [word or "nothing" for word in self.words]
        return " or ".join([", ".join(shown[:-1]), shown[-1]] if len(shown) > 1 else shown)

    def parse(self, text: str) -> str:
        """Return the word; raises ValueError."""
        word = text.strip()
        if word in self.words:
            return word
        meant = [each for each in self.words if each.lower() == word.lower()]
        hint = f"; did you mean {meant[0]}?" if meant else ""
        because = f": {self.because}" if self.because and not meant else ""
        raise ValueError(f"expected {self.expected()}{because}{hint}")

    def show(self, value: str) -> str:
        """Return the word."""
        return value


class SomeOf(NamedTuple):
    """One or more of some words, with commas between them."""

    words: tuple[str, ...]
    because: str = ""

    @property
    def config_type(self) -> ConfigType:
        """Kafka's name of it."""
        return "list"

    def expected(self) -> str:
        """Return the words."""
        if len(self.words) == 1:
            return self.words[0]
        return f"{', '.join(self.words[:-1])} or {self.words[-1]}, or more of them with commas"

    def parse(self, text: str) -> frozenset[str]:
        """Return the words; raises ValueError."""
        words = frozenset(part.strip() for part in text.split(","))
        if not words <= frozenset(self.words):
            because = f": {self.because}" if self.because else ""
            raise ValueError(f"expected {self.expected()}{because}")
        return words

    def show(self, value: frozenset[str]) -> str:
        """Return them in order."""
        return ",".join(sorted(value))


class Text(NamedTuple):
    """Any text; what it means is decided where it is used."""

    config_type: ConfigType = "string"
    form: str = "text"
    """What may be written, for people."""

    def expected(self) -> str:
        """Return the form: nothing is held against it here."""
        return self.form

    def parse(self, text: str) -> str:
        """Return it without spaces around it."""
        return text.strip()

    def show(self, value: str) -> str:
        """Return it."""
        return value


Kind = Whole | Fraction | Truth | OneOf | SomeOf | Text
"""How the values of a setting are written."""
