"""The settings in force: of topics, and of the broker as it was started and as changed since.

What AlterConfigs changed is kept in the metadata store and overrides what flags, environment and
file said: for this broker by its number first, then for all (the empty name).
"""

import json
from collections.abc import Mapping
from typing import NamedTuple

from fencelog.broker.config import BrokerConfig
from fencelog.errors import ErrorCode, RequestError
from fencelog.ports import MetadataStore
from fencelog.settings.fields import shown
from fencelog.settings.setting import Setting
from fencelog.settings.table import DYNAMIC_KEYS, TOPIC_KEYS

SETTINGS_PREFIX = "settings/broker/"
ALL_BROKERS = ""

SOURCE_TOPIC = 1
SOURCE_BROKER = 2
SOURCE_ALL_BROKERS = 3
SOURCE_START = 4
SOURCE_DEFAULT = 5


class Value(NamedTuple):
    """A value of a setting, under the name by which and from the place where it was set."""

    key: str
    written: str
    """As it was written under that name, perhaps in a larger unit."""
    source: int
    text: str
    """In the setting's own unit."""


class Settings:
    """What holds for the broker, and for every topic that says nothing itself."""

    def __init__(self, config: BrokerConfig, store: MetadataStore) -> None:
        """Only what the broker was started with, until ``load``."""
        self._at_start = config.topic_defaults
        self._given = config.given
        self._fixed = _texts(config)
        self._store = store
        self.this_broker = str(config.node_id)
        self._changed: dict[str, dict[str, str]] = {ALL_BROKERS: {}, self.this_broker: {}}

    async def load(self) -> None:
        """Read what was changed while an earlier run served."""
        for scope in self._changed:
            cell = await self._store.get(SETTINGS_PREFIX + scope)
            if cell is not None:
                self._changed[scope] = json.loads(cell[0])

    @property
    def topic_defaults(self) -> dict[str, str]:
        """What is set for topics in general, by topic config name."""
        return self.topic_defaults_with(ALL_BROKERS, self._changed[ALL_BROKERS])

    def topic_defaults_with(self, scope: str, settings: Mapping[str, str]) -> dict[str, str]:
        """What would be set for topics in general after a ``change``."""
        changed = {**self._changed, scope: settings}
        defaults = dict(self._at_start)
        for each in (ALL_BROKERS, self.this_broker):
            defaults.update({DYNAMIC_KEYS[k].topic_key: text for k, text in changed[each].items()})
        return defaults

    def changed(self, scope: str) -> dict[str, str]:
        """What was changed for a broker, or for all, by broker config name."""
        return dict(self._changed[scope])

    async def change(self, scope: str, settings: Mapping[str, str]) -> None:
        """Let these be all that is changed there, durably. They must be valid."""
        key = SETTINGS_PREFIX + scope
        cell = await self._store.get(key)
        value = encoded_settings(settings)
        version = 0 if cell is None else cell[1]
        if await self._store.put(key, value, expected_version=version) is None:
            raise RequestError(ErrorCode.UNKNOWN_SERVER_ERROR, "changed by another at once")
        self._changed[scope] = dict(settings)

    def apply(self, scope: str, settings: Mapping[str, str]) -> None:
        """Let these be all that is changed there, as the store of a cluster has it."""
        if scope in self._changed:
            self._changed[scope] = dict(settings)

    def values(self, topic_key: str, topic_settings: Mapping[str, str]) -> list[Value]:
        """Every place that sets a topic config, the one in force first, the default last."""
        setting = TOPIC_KEYS[topic_key]
        places = [
            (topic_key, topic_settings.get(topic_key), SOURCE_TOPIC),
            (setting.key, self._changed[self.this_broker].get(setting.key), SOURCE_BROKER),
            (setting.key, self._changed[ALL_BROKERS].get(setting.key), SOURCE_ALL_BROKERS),
        ]
        changed = [
            Value(key, text, source, text) for key, text, source in places if text is not None
        ]
        return changed + self._from_start(setting, self._at_start.get(topic_key))

    def fixed_values(self, setting: Setting) -> list[Value]:
        """The same of a setting that only a start can change."""
        return self._from_start(setting, self._fixed.get(setting.key))

    def _from_start(self, setting: Setting, in_force: str | None) -> list[Value]:
        """What flags, environment and file said of it, and the default."""
        default = setting.default_text
        values = [
            Value(
                alias.key,
                self._given[alias.key],
                SOURCE_START,
                setting.in_own_unit(alias, self._given[alias.key]),
            )
            for alias in setting.names
            if alias.key in self._given
        ]
        if not values and in_force is not None and in_force != default:
            values = [Value(setting.key, in_force, SOURCE_START, in_force)]
        alias = setting.default_alias
        name = alias.key or setting.topic_key
        return [*values, Value(name, setting.default_of(alias), SOURCE_DEFAULT, default)]


def encoded_settings(settings: Mapping[str, str]) -> bytes:
    """Return the stored form of what was changed for a broker, or for all."""
    return json.dumps(dict(settings), sort_keys=True).encode()


def _texts(config: BrokerConfig) -> dict[str, str]:
    """The broker's own settings as it was started, by broker config name."""
    texts = {**shown(config), "listeners": f"PLAINTEXT://{_address(config.host, config.port)}"}
    if config.advertised_host is not None and config.advertised_port is not None:
        address = _address(config.advertised_host, config.advertised_port)
        texts["advertised.listeners"] = f"PLAINTEXT://{address}"
    return texts


def _address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
