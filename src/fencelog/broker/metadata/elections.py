"""Elections that an operator asks for, on any broker of a cluster (KIP-183, KIP-460)."""

import logging
from collections.abc import Callable

from fencelog.broker.metadata.catalog import TRANSACTION_TOPIC
from fencelog.broker.metadata.cluster_state import (
    ClusterState,
    PartitionKey,
    registration_versions,
    unclean_key,
)
from fencelog.broker.metadata.known_commits import commit_known
from fencelog.broker.metadata.placement import ElectionType
from fencelog.coordination.controller.model import NO_LEADER, PartitionState
from fencelog.coordination.controller.rules import (
    Refused,
    StoredPartition,
    UncleanElection,
    preferred,
    unclean,
)
from fencelog.errors import ErrorCode, RequestError, StorageError
from fencelog.ports import MetadataStore, MetadataWrite
from fencelog.types import NodeId, TopicId

log = logging.getLogger(__name__)

CONFLICTS_MAX = 10
"""After so many other changes at the same time an election is given up."""


class Elections:
    """Stores what the rules make of an operator's request, as the controller does.

    A commit compares the partition's version and the registrations of all its replicas: who may
    lead has not changed since the rules have read it.
    """

    def __init__(
        self,
        store: MetadataStore,
        state: ClusterState,
        min_isr: Callable[[TopicId], int | None],
    ) -> None:
        """``min_isr``: ``min.insync.replicas`` of a topic, None if there is none of this id."""
        self._store = store
        self._state = state
        self._min_isr = min_isr

    async def elect(
        self, topic_id: TopicId, index: int, kind: ElectionType, node: NodeId | None
    ) -> RequestError | None:
        """Elect a partition's leader; return why not. This broker's copy has seen it then.

        ``node``: which replica an unclean election elects, None for the first live one.
        """
        key = PartitionKey(topic_id, index)
        for _ in range(CONFLICTS_MAX):
            decided = self._decide(key, kind, node)
            if isinstance(decided, Refused):
                return RequestError(decided.error, decided.reason)
            version = self._state.versions[key.text]
            try:
                is_stored = await self._commit(key, kind, decided)
            except StorageError as error:
                return RequestError(ErrorCode.REQUEST_TIMED_OUT, str(error))
            await self._state.until_soon(lambda: self._state.versions.get(key.text) != version)  # noqa: B023 - awaited here
            if is_stored:
                return await self._hand_over(key) if kind is ElectionType.PREFERRED else None
        return RequestError(
            ErrorCode.REQUEST_TIMED_OUT, "the partition was changed by others all the time"
        )

    def _decide(
        self, key: PartitionKey, kind: ElectionType, node: NodeId | None
    ) -> PartitionState | Refused:
        stored, needed = self._state.partitions.get(key), self._min_isr(key.topic_id)
        if stored is None or needed is None:
            return Refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "there is no such partition")
        if kind is ElectionType.PREFERRED:
            needed = min(needed, len(stored.state.replicas))
            partition = StoredPartition(stored.state, stored.version, needed)
            return preferred(partition, self._state.brokers)
        election = unclean(stored.state, node, self._state.brokers)
        if isinstance(election, UncleanElection):
            return election.state
        return election

    async def _hand_over(self, key: PartitionKey) -> RequestError | None:
        """Return when the leader has handed over to its heir; why it has not."""
        await self._state.until_soon(lambda: self._heir(key) == NO_LEADER)
        stored = self._state.partitions.get(key)
        if stored is not None and stored.state.heir != NO_LEADER:
            text = f"broker {stored.state.leader} has not handed over yet; it does when it can"
            return RequestError(ErrorCode.REQUEST_TIMED_OUT, text)
        if stored is not None and stored.state.leader != stored.state.replicas[0]:
            text = f"broker {stored.state.replicas[0]} could not lead any more"
            return RequestError(ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE, text)
        return None

    def _heir(self, key: PartitionKey) -> NodeId:
        stored = self._state.partitions.get(key)
        return NO_LEADER if stored is None else stored.state.heir

    async def _commit(self, key: PartitionKey, kind: ElectionType, state: PartitionState) -> bool:
        unchanged = registration_versions(self._state.brokers, [state])
        topics = {each.topic.topic_id: name for name, each in self._state.topics.items()}
        writes = [MetadataWrite(key.text, state.encode(), self._state.versions[key.text])]
        if kind is ElectionType.UNCLEAN and topics.get(key.topic_id) == TRANSACTION_TOPIC:
            writes.append(MetadataWrite(unclean_key(key), b"%d" % state.leader_epoch))
        if not await commit_known(self._store, writes, unchanged=unchanged):
            return False
        name = f"{topics.get(key.topic_id, key.topic_id.hex())}-{key.partition}"
        if kind is ElectionType.PREFERRED:
            log.info("%s: an operator asks for its first replica, broker %d", name, state.heir)
        else:
            log.warning(
                "%s: elected by an operator: broker %d leads in leader epoch %d",
                name,
                state.leader,
                state.leader_epoch,
            )
        return True
