"""Write the tables of settings in the broker's guide from the table of settings.

Run from the repository's root: ``.venv/bin/python -m tools.settings_page``. What stands between the
two marks of ``docs/guide/broker.md`` is written anew; the rest of the page is left as it is.
"""

from collections.abc import Iterable
from pathlib import Path

from fencelog.settings.cluster_table import CLUSTER_SETTINGS
from fencelog.settings.kinds import (
    DAY_MS,
    HOUR_MS,
    INT32_MAX,
    INT64_MAX,
    MINUTE_MS,
    SECOND_MS,
    UNIT_MS,
    Kind,
    OneOf,
    SomeOf,
    Whole,
)
from fencelog.settings.setting import Effect, Setting
from fencelog.settings.stream_table import STREAM_SETTINGS
from fencelog.settings.table import BROKER_SETTINGS
from fencelog.settings.topic_table import TOPIC_SETTINGS

PAGE = Path("docs/guide/broker.md")
BEGIN, END = "<!-- settings: begin -->\n", "<!-- settings: end -->\n"
COMMAND = "python -m tools.settings_page"


def tables() -> str:
    """The tables, with a line before each."""
    topic = [each for each in TOPIC_SETTINGS if each not in STREAM_SETTINGS]
    broker = [each for each in BROKER_SETTINGS if each not in CLUSTER_SETTINGS]
    parts = [
        "Settings of topics; the second name is the broker's, for all topics that say nothing "
        "themselves:",
        _table(
            ("topic", "broker", "values", "default", ""),
            (
                (f"`{s.topic_key}`", _names(s), values(s.kind), _default(s), s.text)
                for s in _with(topic, "sets")
            ),
        ),
        "Settings of topics that are streams; others have none of them:",
        _table(
            ("topic", "values", "default", ""),
            ((f"`{s.topic_key}`", values(s.kind), _default(s), s.text) for s in STREAM_SETTINGS),
        ),
        "Settings of the broker, which it keeps until its next start:",
        _table(
            ("setting", "values", "default", ""),
            ((_names(s), values(s.kind), _default(s), s.text) for s in _with(broker, "sets")),
        ),
        "Settings of a broker that is one of a cluster, which it keeps until its next start:",
        _table(
            ("setting", "values", "default", ""),
            ((_names(s), values(s.kind), _default(s), s.text) for s in CLUSTER_SETTINGS),
        ),
        "Settings that have one value here; any other is refused:",
        _table(
            ("setting", "value", ""),
            ((_names(s), values(s.kind), s.text) for s in _with((*topic, *broker), "fixed")),
        ),
        "Settings of topics that Kafka's tools and libraries make; they have no effect here:",
        _table(
            ("topic", "broker", ""),
            ((f"`{s.topic_key}`", _names(s), s.text) for s in _with(topic, "none")),
        ),
    ]
    return "\n".join(f"{part}\n" for part in parts)


def _with(settings: Iterable[Setting], effect: Effect) -> list[Setting]:
    return [setting for setting in settings if setting.effect == effect]


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return "\n".join(f"| {' | '.join(cells)} |".replace("|  |", "| |") for cells in lines)


def _names(setting: Setting) -> str:
    return ", ".join(f"`{alias.key or setting.topic_key}`" for alias in setting.names)


def _default(setting: Setting) -> str:
    written, said = setting.default_text, plainly(setting.default, setting.kind)
    return f"`{written}`" if written and written == said else said or "none"


def values(kind: Kind) -> str:
    """What may be written, in few words."""
    match kind:
        case Whole(low, high, unit):
            bound = "" if high == INT32_MAX or high >= 1 << 40 else f" to {high}"
            return f"{unit or 'number'} from {low}{bound}"
        case OneOf(words) | SomeOf(words):
            return " or ".join(f"`{word}`" if word else "nothing" for word in words)
    return kind.expected()


def plainly(value: object, kind: Kind) -> str:
    """A value as a person would say it: ``7 days``, ``1 GiB``, ``none`` for what bounds nothing."""
    if not isinstance(kind, Whole) or not isinstance(value, int) or not kind.unit:
        return kind.show(value)
    if value in (-1, INT64_MAX):
        return "none"
    if kind.unit == "bytes":
        return _in_units(value, ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")))
    units = ((DAY_MS, "days"), (HOUR_MS, "h"), (MINUTE_MS, "min"), (SECOND_MS, "s"))
    return _in_units(value * UNIT_MS[kind.unit], units)


def _in_units(value: int, units: tuple[tuple[int, str], ...]) -> str:
    for size, name in units:
        if value and value % size == 0:
            count = value // size
            return f"{count} {'day' if (count, name) == (1, 'days') else name}"
    return str(value)


def page(text: str) -> str:
    """The page with its tables written anew."""
    before, _, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    assert end, f"{PAGE} has lost its marks {BEGIN.strip()} and {END.strip()}"
    return f"{before}{BEGIN}\n{tables()}\n{END}{after}"


def main() -> None:
    """Write the page."""
    PAGE.write_text(page(PAGE.read_text("utf-8")), "utf-8")


if __name__ == "__main__":
    main()
