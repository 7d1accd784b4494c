"""Hands leaderships over to the heirs that the metadata name.

A leader ends its leadership itself: first it serves readers no more, then it stores that its heir
leads. So no live broker leads that does not know of a newer leader, and could show readers less
than that one (F8). What is begun is asked for until a newer leader epoch is seen; a life that ends
meanwhile is followed by an election.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping

from fencelog.broker.metadata.cluster_state import (
    Changed,
    ClusterState,
    PartitionKey,
    registration_versions,
)
from fencelog.broker.metadata.known_commits import batched, commit_known
from fencelog.broker.replicas.isr import RETRY_S
from fencelog.broker.replicas.led import Key, Led, LedPartitions
from fencelog.coordination.controller.model import NO_LEADER, PartitionState
from fencelog.coordination.controller.rules import handed_over
from fencelog.errors import StorageError
from fencelog.ports import MetadataStore, MetadataWrite
from fencelog.types import LeaderEpoch

log = logging.getLogger(__name__)


class Handovers:
    """Ends the leaderships of this broker that have an heir."""

    def __init__(
        self,
        store: MetadataStore,
        cluster: ClusterState,
        led: LedPartitions,
        resign: Callable[[Led], None],
    ) -> None:
        """``resign`` lets no reader be served of a partition from this step on."""
        self._store = store
        self._cluster = cluster
        self._led = led
        self._resign = resign
        self._due: dict[Key, None] = {}
        self._resigned: dict[Key, LeaderEpoch] = {}
        """Of what no reader is served here, though this broker has seen no newer leader epoch."""
        self._news = asyncio.Event()
        led.settled = self._look_again
        led.listeners.append(self._look_again)

    async def run(self) -> None:
        """Hand over until cancelled."""
        self._cluster.subscribe(self._noticed)
        try:
            self._mark(self._cluster.partitions)
            while True:
                self._news.clear()
                self._begin()
                if self._resigned:
                    await self._hand_over()
                else:
                    await self._news.wait()
        finally:
            self._cluster.unsubscribe(self._noticed)

    def _noticed(self, changed: Changed) -> None:
        self._mark(changed.partitions)
        if changed.brokers:  # one may have come that can lead
            self._news.set()

    def _mark(self, partitions: Iterable[PartitionKey]) -> None:
        for name in partitions:
            stored, key = self._cluster.partitions.get(name), (name.topic_id, name.partition)
            if key in self._resigned or (stored is not None and stored.state.heir != NO_LEADER):
                self._due[key] = None
                self._news.set()

    def _look_again(self, key: Key) -> None:
        """A leadership has begun, or the outcome of a write of its in-sync replicas is known."""
        self._mark([PartitionKey(*key)])

    def _begin(self) -> None:
        """Resign where there is an heir, and no write of ours is on its way."""
        due, self._due = self._due, {}
        for key in due:
            led, stored = self._led.get(key), self._cluster.partitions.get(PartitionKey(*key))
            if (
                led is not None
                and stored is not None
                and stored.state.heir != NO_LEADER
                and stored.state.leader_epoch == led.progress.leader_epoch
                and led.progress.is_settled
            ):
                self._resigned[key] = led.progress.leader_epoch
                self._resign(led)

    async def _hand_over(self) -> None:
        """Try once to store who leads now; what conflicts is looked at anew."""
        states = {}
        for key, leader_epoch in list(self._resigned.items()):
            name = PartitionKey(*key)
            stored = self._cluster.partitions.get(name)
            if stored is None or stored.state.leader_epoch > leader_epoch:
                del self._resigned[key]
            elif (state := handed_over(stored.state, self._cluster.brokers)) is not None:
                states[name] = state
        if not states:
            if self._resigned:
                await self._news.wait()
            return
        try:
            for part in batched(states.items()):
                await self._commit(dict(part))
        except StorageError as error:
            log.warning("asking again whether leaderships are handed over: %s", error)
            await asyncio.sleep(RETRY_S)

    async def _commit(self, states: Mapping[PartitionKey, PartitionState]) -> None:
        """Store these states together, or else each by itself; return when the copy has news."""
        versions = self._cluster.versions
        writes = [
            MetadataWrite(name.text, state.encode(), versions[name.text])
            for name, state in states.items()
        ]
        unchanged = registration_versions(self._cluster.brokers, states.values())
        if not await commit_known(self._store, writes, unchanged=unchanged) and len(writes) > 1:
            for each in writes:
                await commit_known(self._store, [each], unchanged=unchanged)
        compared = unchanged | {each.key: each.expected_version for each in writes}
        await self._cluster.until_soon(
            lambda: any(versions.get(key, 0) != version for key, version in compared.items())
        )
