"""What there is to say of one setting, and a value as somebody wrote it."""

from typing import Any, Literal, NamedTuple

from fencelog.settings.kinds import (
    INT32_MAX,
    INT64_MAX,
    UNIT_MS,
    Kind,
    Unit,
    Whole,
)

Effect = Literal["sets", "fixed", "none"]
"""``sets``: the value is used. ``fixed``: only values that hold anyway are taken. ``none``: any
value is taken, for Kafka's tools and files, and changes nothing."""


class Alias(NamedTuple):
    """Another name of a broker setting, perhaps in another unit."""

    key: str
    kind: Kind


class Setting(NamedTuple):
    """A setting of the broker, of a topic, or of a topic with a default in the broker.

    The names that a broker's file may use stand in Kafka's order of precedence.
    """

    topic_key: str
    """Its name as a topic config; empty for a setting of the broker alone."""
    names: tuple[Alias, ...]
    """Its names as a broker config, the one that overrides the others first."""
    default: Any
    text: str
    """One line of documentation."""
    effect: Effect = "sets"

    @property
    def key(self) -> str:
        """The broker config that overrides the others, and that a running broker can change."""
        return self.names[0].key

    @property
    def kind(self) -> Kind:
        """How values are written under ``key`` and ``topic_key``."""
        return self.names[0].kind

    @property
    def dynamic(self) -> bool:
        """Whether it can be changed while the broker runs: defaults of topics can."""
        return bool(self.topic_key)

    @property
    def default_text(self) -> str:
        """The default as a value of ``key``."""
        return self.kind.show(self.default)

    @property
    def default_alias(self) -> Alias:
        """The name that has the default in Kafka: the one in the largest unit."""
        last = self.names[-1]
        return self.names[0] if last.kind == self.kind else last

    def in_own_unit(self, alias: Alias, text: str) -> str:
        """A valid value of one of the names, as a value of ``key``. A negative number has no unit.

        Raises ValueError.
        """
        value: Any = alias.kind.parse(text)
        scale = _scale(alias.kind) // _scale(self.kind)
        return alias.kind.show(value) if scale == 1 or value < 0 else str(value * scale)

    def default_of(self, alias: Alias) -> str:
        """The default as a value of one of its names."""
        scale = _scale(alias.kind) // _scale(self.kind)
        return self.default_text if scale == 1 else str(self.default // scale)


def _scale(kind: Kind) -> int:
    return UNIT_MS.get(kind.unit, 1) if isinstance(kind, Whole) else 1


def topic(
    topic_key: str,
    key: str,
    kind: Kind,
    default: object,
    text: str,
    **more: Any,  # noqa: ANN401
) -> Setting:
    """A topic config with its broker-wide default, both in the same unit."""
    return Setting(topic_key, (Alias(key, kind),), default, text, **more)


def topic_ms(
    topic_key: str,
    keys: tuple[str, ...],
    low: int,
    default: int,
    text: str,
    effect: Effect = "sets",
) -> Setting:
    """A topic config in milliseconds whose broker-wide default has names in larger units too."""
    return Setting(topic_key, tuple(_time(key, low) for key in keys), default, text, effect)


def _time(key: str, low: int) -> Alias:
    unit: Unit = next(unit for unit in UNIT_MS if key.endswith(f".{unit}"))
    return Alias(key, Whole(low, INT64_MAX if unit == "ms" else INT32_MAX, unit))


def broker(
    key: str,
    kind: Kind,
    default: object,
    text: str,
    *,
    effect: Effect = "sets",
    aliases: tuple[str, ...] = (),
) -> Setting:
    """A setting of the broker, which it is started with and keeps."""
    names = tuple(Alias(name, kind) for name in (key, *aliases))
    return Setting("", names, default, text, effect)
