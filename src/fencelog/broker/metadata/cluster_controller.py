"""The controller: the one broker that runs the rules over all brokers and partitions.

It holds the controller's key under its own lease. Every broker tries to get the key when nobody
has it. Each commit compares the key, the registrations that the rules read, and the versions of the
partitions: one who does not know yet that another broker holds it changes nothing.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from typing import NamedTuple

from fencelog.broker.metadata.catalog import DELETED_PREFIX, INTERNAL_TOPICS
from fencelog.broker.metadata.cluster_state import (
    Changed,
    ClusterState,
    PartitionKey,
    broker_key,
    encoded_controller,
    registration_versions,
)
from fencelog.broker.metadata.known_commits import WRITES_MAX, batched, commit_known
from fencelog.broker.metadata.registration import BrokerRegistration
from fencelog.coordination.controller.model import CONTROLLER_KEY, NO_LEADER, PartitionState
from fencelog.coordination.controller.placement import widened
from fencelog.coordination.controller.rules import (
    LiveBroker,
    StoredPartition,
    changes,
    moved_back,
)
from fencelog.errors import StorageError
from fencelog.ports import MetadataStore, MetadataWrite
from fencelog.types import Instant, NodeId, TopicId

log = logging.getLogger(__name__)

SLICE = 1000
"""So many partitions are looked at without giving others the loop."""
RETRY_S = 0.5
CONFLICT_S = 0.01
"""The wait after a second conflict in a row; each further one doubles it, up to ``RETRY_S``."""
CONFLICTS_MAX = 10
UNFINISHED_S = 60.0
"""After which time partitions without a topic are removed: whoever was about to store it died."""
BALANCE_S = 30.0
"""How often partitions are given back to their first replicas."""


class _Seen(NamedTuple):
    """What the rules have read: each version of it is compared when their result is stored."""

    revision: int
    controller_version: int
    brokers: dict[NodeId, LiveBroker]
    partitions: dict[PartitionKey, StoredPartition]


class ClusterController:
    """Takes the controller's key when it is free, and runs the rules while it has it."""

    def __init__(
        self,
        store: MetadataStore,
        state: ClusterState,
        registration: BrokerRegistration,
        min_isr: Callable[[TopicId], int | None],
        internal_factor: int,
    ) -> None:
        """``min_isr``: ``min.insync.replicas`` of a topic, None if there is none of this id.

        ``internal_factor``: how many replicas internal topics get once there are as many brokers.
        """
        self._store = store
        self._state = state
        self._registration = registration
        self._min_isr = min_isr
        self._internal_factor = internal_factor
        self._news = asyncio.Event()
        self._is_new = True
        """Whether all partitions are to be looked at."""
        self._dirty: dict[PartitionKey, None] = {}
        """The partitions to look at."""
        self._batch = WRITES_MAX
        """How many partitions are changed at once; fewer where one of them keeps conflicting."""
        self._conflicts = 0
        """How many commits in a row have conflicted."""
        self._balance_at = 0.0
        self._unfinished: dict[PartitionKey, tuple[int, float]] = {}
        """Partitions without a topic: the version, and when it was seen first."""

    @property
    def is_controller(self) -> bool:
        """Whether this life of this broker holds the key, as far as the copy goes."""
        held, mine = self._state.controller, self._registration.registration
        return held is not None and (held.node_id, held.incarnation) == (
            mine.node_id,
            mine.incarnation,
        )

    async def run(self) -> None:
        """Try for the key, and do the controller's work, until cancelled."""
        self._state.subscribe(self._noticed)
        try:
            while True:
                try:
                    await self._step()
                except StorageError as error:
                    # What is done is in the store, also where its answer was lost.
                    log.warning("the controller's work could not be stored: %s", error)
                    self._is_new = True
                    await asyncio.sleep(RETRY_S)
        finally:
            self._state.unsubscribe(self._noticed)

    def _noticed(self, changed: Changed) -> None:
        if changed.brokers or changed.settings or changed.deleted:
            self._is_new = True
        self._dirty.update(dict.fromkeys(sorted(changed.partitions)))
        for name in sorted(changed.topics):
            stored = self._state.topics.get(name)
            if stored is not None:
                topic = stored.topic
                keys = (PartitionKey(topic.topic_id, index) for index in range(topic.partitions))
                self._dirty.update(dict.fromkeys(keys))
        self._news.set()

    async def _step(self) -> None:
        """Do what there is to do, or wait for it."""
        self._news.clear()
        if not self.is_controller:
            self._is_new = True
            if not await self._take():
                await self._news.wait()
            return
        loop = asyncio.get_running_loop()
        if self._is_new:
            self._is_new, self._dirty = False, dict.fromkeys(self._state.partitions)
        if self._dirty:
            await self._look(self._next_slice())
        elif loop.time() >= self._balance_at:
            self._balance_at = loop.time() + BALANCE_S
            await self._balance()
            await self._forget_deleted()
            await self._remove_unfinished()
        else:
            with suppress(TimeoutError):
                async with asyncio.timeout_at(self._balance_at):
                    await self._news.wait()

    # -- the key -------------------------------------------------------------------------------

    async def _take(self) -> bool:
        """Take the key if no registered broker has it; whether it was tried."""
        mine, held = self._registration, self._state.controller
        if not mine.is_valid(_now()):
            return False
        unchanged = {mine.key: mine.version}
        if held is not None:
            holder = self._state.brokers.get(held.node_id)
            if holder is not None and holder.registration.incarnation == held.incarnation:
                return False
            if held.node_id != mine.registration.node_id:
                unchanged[broker_key(held.node_id)] = holder.version if holder else 0
        value = encoded_controller(mine.registration.node_id, mine.registration.incarnation)
        version = self._state.versions.get(CONTROLLER_KEY, 0)
        write = MetadataWrite(CONTROLLER_KEY, value, version, mine.lease)
        if await commit_known(self._store, [write], unchanged=unchanged):
            log.info("broker %s is the controller", mine.registration.node_id)
            await self._state.until_soon(lambda: self.is_controller)
        else:
            await self._state.until_soon(
                lambda: self._state.versions.get(CONTROLLER_KEY, 0) != version
            )
        return True

    # -- the rules -----------------------------------------------------------------------------

    def _next_slice(self) -> list[PartitionKey]:
        keys = list(islice(self._dirty, SLICE))
        for each in keys:
            del self._dirty[each]
        return keys

    async def _look(self, keys: Sequence[PartitionKey]) -> None:
        """Run the rules on some partitions, and remove those of deleted topics."""
        deleted = self._state.deleted
        await self._remove(
            {
                key: self._state.versions[key.text]
                for key in keys
                if key.topic_id in deleted and key.text in self._state.versions
            }
        )
        seen = self._seen(keys)
        await self._commit(seen, changes(seen.partitions, seen.brokers))
        await self._widen(keys)

    async def _widen(self, keys: Iterable[PartitionKey]) -> None:
        """Add the replicas of internal topics that were made while brokers were missing."""
        topics = {
            stored.topic.topic_id
            for name, stored in self._state.topics.items()
            if name in INTERNAL_TOPICS
        }
        seen = self._seen(
            key
            for key in keys
            if key.topic_id in topics
            and (stored := self._state.partitions.get(key)) is not None
            and len(stored.state.replicas) < min(self._internal_factor, len(self._state.brokers))
        )
        if seen.partitions:
            existing = (each.state for each in self._state.partitions.values())
            wider = widened(seen.partitions, self._internal_factor, seen.brokers, existing)
            if wider:
                log.info("%d partitions of internal topics get more replicas", len(wider))
            await self._commit(seen, wider)

    async def _balance(self) -> None:
        """Give partitions back to their first replicas."""
        keys = list(self._state.partitions)
        for first in range(0, len(keys), SLICE):
            seen = self._seen(keys[first : first + SLICE])
            await self._commit(seen, moved_back(seen.partitions, seen.brokers))
            await asyncio.sleep(0)

    def _seen(self, keys: Iterable[PartitionKey]) -> _Seen:
        """Return what the rules read of these partitions, those of topics."""
        state = self._state
        min_isr: dict[TopicId, int | None] = {}
        found = {}
        for key in keys:
            if key.topic_id not in min_isr:
                min_isr[key.topic_id] = self._min_isr(key.topic_id)
            stored, needed = state.partitions.get(key), min_isr[key.topic_id]
            if stored is not None and needed is not None:
                # A topic with fewer replicas needs all of them.
                needed = min(needed, len(stored.state.replicas))
                found[key] = StoredPartition(stored.state, stored.version, needed)
        held = 0 if state.controller is None else state.controller.version
        return _Seen(state.revision, held, dict(state.brokers), found)

    async def _commit(self, seen: _Seen, states: dict[PartitionKey, PartitionState]) -> None:
        """Store new states; what conflicts is looked at again."""
        rest = list(states)
        while rest:
            batch, rest = rest[: self._batch], rest[self._batch :]
            if await self._commit_batch(seen, {key: states[key] for key in batch}):
                self._batch, self._conflicts = WRITES_MAX, 0
                continue
            self._batch = max(1, len(batch) // 2)
            # The others first: one of these may keep changing.
            self._dirty.update(dict.fromkeys([*rest, *batch]))
            log.info("%d partitions changed meanwhile: looking at them again", len(batch))
            await self._state.until_soon(lambda: self._state.revision != seen.revision)
            await asyncio.sleep(min(RETRY_S, CONFLICT_S * (2**self._conflicts - 1)))
            self._conflicts = min(self._conflicts + 1, CONFLICTS_MAX)
            return

    async def _commit_batch(self, seen: _Seen, states: dict[PartitionKey, PartitionState]) -> bool:
        """Store some states at once, if nothing has changed of what the rules read."""
        unchanged = {CONTROLLER_KEY: seen.controller_version}
        unchanged |= registration_versions(seen.brokers, states.values())
        versions = {key: seen.partitions[key].version for key in states}
        writes = [
            MetadataWrite(key.text, state.encode(), versions[key]) for key, state in states.items()
        ]
        if not await commit_known(self._store, writes, unchanged=unchanged):
            return False
        topics = {each.topic.topic_id: name for name, each in self._state.topics.items()}
        for key, state in states.items():
            log.info(
                "%s-%d: led by %s in leader epoch %d; in sync are %s%s%s",
                topics.get(key.topic_id, key.topic_id.hex()),
                key.partition,
                "nobody" if state.leader == NO_LEADER else f"broker {state.leader}",
                state.leader_epoch,
                ", ".join(map(str, state.isr)) or "none",
                f"; eligible are {', '.join(map(str, state.eligible))}" if state.eligible else "",
                "" if state.heir == NO_LEADER else f"; to be handed over to broker {state.heir}",
            )
        last = next(reversed(states))
        await self._state.until_soon(lambda: self._state.versions.get(last.text) != versions[last])
        return True

    async def _remove(self, gone: Mapping[PartitionKey, int]) -> None:
        """Remove partitions that no topic has, in this order, each at this version."""
        writes = [MetadataWrite(key.text, None, version) for key, version in gone.items()]
        for batch in batched(writes):
            if not await commit_known(self._store, batch):
                self._dirty.update(dict.fromkeys(gone))
                key, version = batch[0].key, batch[0].expected_version
                await self._state.until_soon(lambda: self._state.versions.get(key, 0) != version)  # noqa: B023 - awaited here
                return

    async def _remove_unfinished(self) -> None:
        """Remove what a broker has left that died while it stored a topic's partitions.

        In order of their numbers, as ``commit_in_parts`` expects it.
        """
        now, seen = _now(), self._unfinished
        topics = (each.topic for each in self._state.topics.values())
        partitions = {each.topic_id: each.partitions for each in topics}
        self._unfinished = {}
        for key, (_, version) in sorted(self._state.partitions.items()):
            is_none = key.partition >= partitions.get(key.topic_id, 0)
            if is_none and key.topic_id not in self._state.deleted:
                before, since = seen.get(key, (version, now))
                self._unfinished[key] = (version, since if before == version else now)
        late = {
            key: version
            for key, (version, since) in self._unfinished.items()
            if now - since >= UNFINISHED_S
        }
        if late:
            log.warning("removing %d partitions that were stored without their topic", len(late))
            await self._remove(late)

    async def _forget_deleted(self) -> None:
        """Forget deleted topics of which nothing is left anywhere."""
        left = {each.topic_id for each in self._state.partitions}
        for topic_id, deleted in list(self._state.deleted.items()):
            if not deleted.brokers and topic_id not in left:
                key = DELETED_PREFIX + topic_id.hex()
                await self._store.delete(key, expected_version=deleted.version)


def _now() -> Instant:
    return Instant(asyncio.get_running_loop().time())
