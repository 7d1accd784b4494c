"""Fields of a configuration that get name, default and unit from the table of settings."""

from collections.abc import Mapping
from dataclasses import field, fields
from typing import Any, NamedTuple

from fencelog.settings.kinds import SECOND_MS
from fencelog.settings.setting import Setting
from fencelog.settings.table import BROKER_KEYS, TOPIC_KEYS

_SETTING, _PER = "setting", "per"


class Bound(NamedTuple):
    """A field and the setting that it holds, divided by ``per``."""

    name: str
    setting: Setting
    per: int


def of_topic(key: str) -> Any:  # noqa: ANN401  # the field says its type
    """A dataclass field for a topic config."""
    return _field(TOPIC_KEYS[key], 1)


def of_broker(key: str) -> Any:  # noqa: ANN401
    """A dataclass field for a broker config."""
    return _field(BROKER_KEYS[key], 1)


def seconds_of_broker(key: str) -> Any:  # noqa: ANN401
    """A dataclass field in seconds for a broker config in milliseconds."""
    return _field(BROKER_KEYS[key], SECOND_MS)


def _field(setting: Setting, per: int) -> Any:  # noqa: ANN401
    default = setting.default if per == 1 else setting.default / per
    return field(default=default, metadata={_SETTING: setting, _PER: per})


def bound(config: type) -> tuple[Bound, ...]:
    """The fields of a configuration's class that hold settings."""
    return tuple(
        Bound(each.name, each.metadata[_SETTING], each.metadata[_PER])
        for each in fields(config)
        if _SETTING in each.metadata
    )


def read(config: type, texts: Mapping[str, str]) -> dict[str, Any]:
    """The fields that valid texts set, by broker config name; others' texts are passed over."""
    values = {}
    for name, setting, per in bound(config):
        if setting.key in texts:
            value: Any = setting.kind.parse(texts[setting.key])
            values[name] = value if per == 1 else value / per
    return values


def shown(config: Any) -> dict[str, str]:  # noqa: ANN401
    """The text of each setting that a configuration holds, by broker config name."""
    texts = {}
    for name, setting, per in bound(type(config)):
        value = getattr(config, name)
        texts[setting.key] = setting.kind.show(value if per == 1 else round(value * per))
    return texts
