"""Several sources become one set of values: checked, each in its own unit, none dropped in silence.

A later source overrides an earlier one setting by setting, whatever names they use: a
``log.retention.hours`` of the environment overrides a ``log.retention.ms`` of the file. Within one
source Kafka's precedence holds: milliseconds over minutes over hours, in any order.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from fencelog.settings.given import ConfigError, Given, Source
from fencelog.settings.kafka_names import CHECKED, LISTENER_KEYS
from fencelog.settings.names import is_kafkas, unknown_broker_key
from fencelog.settings.setting import Setting
from fencelog.settings.table import BROKER_KEYS


class Joined(NamedTuple):
    """What all sources together say."""

    values: dict[str, str]
    """In force, by the setting's key and in its unit."""
    given: dict[str, dict[str, Given]]
    """By the setting's key: what its source says, by broker config name."""
    listeners: dict[str, Given]
    """What says how ``listeners`` is meant, by broker config name."""
    notices: list[str]
    """Lines for the log at the start."""

    def in_force(self, key: str) -> Given | None:
        """Who sets a setting."""
        return next(iter(self.given.get(key, {}).values()), None)


def join(sources: Sequence[Source]) -> Joined:
    """Return what holds. Raises ConfigError for a name or a value that means nothing."""
    joined = Joined(values={}, given={}, listeners={}, notices=[])
    without_effect: list[Given] = []
    for source in sources:
        joined.notices.extend(source.notices)
        latest = _latest(source.given, joined.notices)
        for given in latest.values():
            if given.key in LISTENER_KEYS:
                joined.listeners[given.key] = given
            elif given.key not in BROKER_KEYS:
                without_effect += _of_kafka(given)
            elif BROKER_KEYS[given.key].effect == "none":
                without_effect.append(given)
        _add_settings(joined, latest)
    if without_effect:
        joined.notices.append(
            f"these settings have no effect here: {', '.join(_by_place(without_effect))}"
        )
    return joined


def _latest(all_given: Iterable[Given], notices: list[str]) -> dict[str, Given]:
    """What a source says of each name in the end."""
    latest: dict[str, Given] = {}
    for given in all_given:
        if given.key in latest:
            notices.append(_overridden(latest[given.key], given))
        latest[given.key] = given
    return latest


def _overridden(lost: Given, won: Given) -> str:
    return f"{lost.place} has no effect: it is overridden by {won.place}"


def _of_kafka(given: Given) -> list[Given]:
    """A name that is no setting of ours, if the log should name it. Raises ConfigError."""
    if given.key in CHECKED:
        try:
            CHECKED[given.key](given.text)
        except ValueError as error:
            raise given.refused(str(error)) from None
        return []  # it asks for what is the case anyway
    if not is_kafkas(given.key):
        where = f"{given.where}: " if given.where else ""
        raise ConfigError(f"{where}{unknown_broker_key(given.key)}")
    return [given]


def _add_settings(joined: Joined, latest: Mapping[str, Given]) -> None:
    """Let what one source says override what is there."""
    for key in dict.fromkeys(BROKER_KEYS[key].key for key in latest if key in BROKER_KEYS):
        setting = BROKER_KEYS[key]
        named = {alias.key: latest[alias.key] for alias in setting.names if alias.key in latest}
        values = [_value(setting, given) for given in named.values()]
        first, *others = named.values()
        joined.notices.extend(
            _overridden(other, first)
            for other, value in zip(others, values[1:], strict=True)
            if value != values[0]
        )
        joined.values[key] = values[0]
        joined.given[key] = named


def _value(setting: Setting, given: Given) -> str:
    alias = next(alias for alias in setting.names if alias.key == given.key)
    try:
        return setting.in_own_unit(alias, given.text)
    except ValueError as error:
        raise given.refused(str(error)) from None


def _by_place(settings: Iterable[Given]) -> list[str]:
    """The names in order, each place once behind the last of its own."""
    names: dict[str, list[str]] = {}
    for each in settings:
        names.setdefault(each.where.partition(", line ")[0], []).append(each.name)
    return [f"{', '.join(own)} ({place})" for place, own in names.items()]
