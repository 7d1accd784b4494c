"""Brings topics and settings of the cluster's store to where one broker keeps them in memory."""

import logging

from fencelog.broker.metadata.catalog import Catalog, Topic
from fencelog.broker.metadata.cluster_state import Changed, ClusterState
from fencelog.broker.metadata.settings import Settings
from fencelog.broker.partitions.log_manager import LogManager
from fencelog.log.config import InvalidConfigError, LogConfig
from fencelog.types import TopicId

log = logging.getLogger(__name__)


class ClusterFeed:
    """Keeps a catalog, the settings and the configs of open partitions as the store has them.

    Subscribe it first: others read the catalog when they are told of a change.
    """

    def __init__(
        self, state: ClusterState, catalog: Catalog, settings: Settings, logs: LogManager
    ) -> None:
        """Fed from the next change on."""
        self._state = state
        self._catalog = catalog
        self._settings = settings
        self._logs = logs
        state.subscribe(self._changed)

    def min_isr(self, topic_id: TopicId) -> int | None:
        """Return ``min.insync.replicas`` of a topic; None if there is no topic of this id."""
        topic = self._catalog.by_id(topic_id)
        if topic is None:
            return None
        try:
            return topic.log_config(self._settings.topic_defaults).min_insync_replicas
        except InvalidConfigError:
            return LogConfig().min_insync_replicas

    def _changed(self, changed: Changed) -> None:
        for name in changed.topics:
            stored, before = self._state.topics.get(name), self._catalog.get(name)
            topic = None if stored is None else stored.topic
            if before is not None and (topic is None or topic.topic_id != before.topic_id):
                self._logs.withdraw(before.partition_names)
            self._catalog.apply(name, topic)
        for scope in changed.settings:
            self._settings.apply(scope, self._state.settings.get(scope, {}))
        if changed.settings:
            topics = self._catalog.topics()
        else:
            found = (self._catalog.get(name) for name in changed.topics)
            topics = [topic for topic in found if topic is not None]
        for topic in topics:
            self._reconfigure(topic)

    def _reconfigure(self, topic: Topic) -> None:
        try:
            config = topic.log_config(self._settings.topic_defaults)
        except InvalidConfigError as error:
            log.warning("topic %s keeps its settings, the new ones: %s", topic.name, error)
            return
        for name in topic.partition_names:
            self._logs.reconfigure(name, config)
