"""The broker-wide defaults of topic settings: from the start, and as changed while it runs.

What was changed by AlterConfigs is kept in the metadata store and goes before what the flags,
environment and file said: for this broker by its number first, then for all (the empty name).
"""

import json
from collections.abc import Mapping
from typing import NamedTuple

from fencelog.broker.config import LOG_KEYS, BrokerConfig
from fencelog.errors import ErrorCode, RequestError
from fencelog.log.config import LogConfig
from fencelog.ports import MetadataStore

SETTINGS_PREFIX = "settings/broker/"
ALL_BROKERS = ""
_BROKER_KEY_OF = {topic_key: key for key, topic_key in LOG_KEYS.items()}

SOURCE_TOPIC = 1
SOURCE_BROKER = 2
SOURCE_ALL_BROKERS = 3
SOURCE_START = 4
SOURCE_DEFAULT = 5


class Value(NamedTuple):
    """A setting, under the name by which and from the place where it was made."""

    key: str
    text: str
    source: int


class Settings:
    """What holds for every topic that says nothing itself."""

    def __init__(self, config: BrokerConfig, store: MetadataStore) -> None:
        """Only what the broker was started with, until ``load``."""
        self._at_start = config.topic_defaults
        self._store = store
        self.this_broker = str(config.node_id)
        self._changed: dict[str, dict[str, str]] = {ALL_BROKERS: {}, self.this_broker: {}}
        self._shown = LogConfig().to_topic_config()

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
            defaults.update({LOG_KEYS[key]: text for key, text in changed[each].items()})
        return defaults

    def changed(self, scope: str) -> dict[str, str]:
        """What was changed for a broker, or for all, by broker config name."""
        return dict(self._changed[scope])

    async def change(self, scope: str, settings: Mapping[str, str]) -> None:
        """Let these be all that is changed there, durably. They must be valid."""
        key = SETTINGS_PREFIX + scope
        cell = await self._store.get(key)
        value = json.dumps(dict(settings), sort_keys=True).encode()
        version = 0 if cell is None else cell[1]
        if await self._store.put(key, value, expected_version=version) is None:
            raise RequestError(ErrorCode.UNKNOWN_SERVER_ERROR, "changed by another at once")
        self._changed[scope] = dict(settings)

    def values(self, topic_key: str, topic_settings: Mapping[str, str]) -> list[Value]:
        """Every place that sets a topic config, the one in force first, the default last."""
        key = _BROKER_KEY_OF.get(topic_key, topic_key)
        places = [
            (topic_key, topic_settings.get(topic_key), SOURCE_TOPIC),
            (key, self._changed[self.this_broker].get(key), SOURCE_BROKER),
            (key, self._changed[ALL_BROKERS].get(key), SOURCE_ALL_BROKERS),
            (key, self._at_start.get(topic_key), SOURCE_START),
            (key, self._shown[topic_key], SOURCE_DEFAULT),
        ]
        return [Value(name, text, source) for name, text, source in places if text is not None]
