"""This broker's registration in the cluster, under a lease, and the end of others'.

The lease's time counts from the sending of its last renewal that was answered, by the broker's own
clock: so it is over here before the store, or any other broker, can see it end.
"""

import asyncio
import logging
from collections.abc import Callable

from fencelog.broker.metadata.cluster_state import Changed, ClusterState, broker_key
from fencelog.broker.metadata.known_commits import batched, commit_known
from fencelog.coordination.controller.model import (
    CONTROLLER_KEY,
    PARTITION_PREFIX,
    PartitionState,
    Registration,
)
from fencelog.coordination.controller.rules import without
from fencelog.errors import CorruptionError, FencedError, StorageError
from fencelog.ports import LeaseId, MetadataStore, MetadataWrite
from fencelog.types import Instant, NodeId

log = logging.getLogger(__name__)

RENEWALS = 3
"""How often a lease is renewed in its time."""
RETRIES = 30
"""How often in its time a renewal that failed is tried again."""
_PAST = Instant(float("-inf"))


class BrokerRegistration:
    """One life of this broker in the cluster: from ``begin`` to the loss of its lease."""

    def __init__(
        self,
        store: MetadataStore,
        state: ClusterState,
        registration: Registration,
        *,
        ttl_s: float,
        on_lost: Callable[[], None],
    ) -> None:
        """``on_lost`` is called once, in the step in which the loss is known."""
        self._store = store
        self._state = state
        self._ttl_s = ttl_s
        self._on_lost = on_lost
        self._ended = asyncio.Event()
        self._sent_at = _PAST
        self.registration = registration
        """As it was written last."""
        self.lease: LeaseId | None = None
        """None until ``begin``."""
        self.version = 0
        """The version of the broker's key; 0 until ``begin``."""
        self._begun_at = 0
        self._announcing = asyncio.Lock()
        self.deadline = _PAST
        """When the lease may have ended; nothing is answered from then on."""

    @property
    def key(self) -> str:
        """The broker's key in the metadata store."""
        return broker_key(self.registration.node_id)

    def is_valid(self, now: Instant) -> bool:
        """Whether this broker may answer requests."""
        return now < self.deadline

    async def begin(self) -> None:
        """Register. Raises FencedError while another broker has the number, and StorageError.

        A registration of an earlier life of the same data directory is replaced at once: its
        process is gone, or the directory would be locked.
        """
        sent_at = _now()
        self.lease = await self._store.grant(self._ttl_s)
        value = self.registration.encode()
        while True:
            found = await self._store.get(self.key)
            version = 0 if found is None else found[1]
            if found is not None:
                _check_own(self.key, found[0], self.registration.directory)
            write = MetadataWrite(self.key, value, version, self.lease)
            if await commit_known(self._store, [write]) and await self._read_version(value):
                break
            if not await self._store.renew(self.lease):
                raise StorageError("the broker's lease has ended while it registered: try again")
        self._begun_at = self.version
        self._sent_at, self.deadline = sent_at, Instant(sent_at + self._ttl_s)
        self._state.subscribe(self._noticed)
        self._noticed(Changed(brokers={self.registration.node_id}))

    async def _read_version(self, value: bytes) -> bool:
        """Learn the version of what was written; False if it was removed or replaced meanwhile."""
        found = await self._store.get(self.key)
        if found is None or found[0] != value:
            return False
        self.version = found[1]
        return True

    async def run(self) -> None:
        """Renew the lease until it is lost, or ended."""
        while not self._ended.is_set():
            await self._wait(self._sent_at + self._ttl_s / RENEWALS)
            while not self._ended.is_set() and not await self._renew():
                await self._wait(_now() + self._ttl_s / RETRIES)

    async def _renew(self) -> bool:
        """Renew once; False if it is to be tried again."""
        assert self.lease is not None
        sent_at = _now()
        if sent_at >= self.deadline:
            # Also after a pause in which the store has kept the lease: others may be told already.
            self.lose("it was not renewed in time")
            return False
        try:
            async with asyncio.timeout_at(min(self.deadline, sent_at + self._ttl_s / RENEWALS)):
                is_alive = await self._store.renew(self.lease)
        except (StorageError, TimeoutError) as error:
            reason = str(error) or "the metadata store has not answered in time"
            log.warning("the broker's lease could not be renewed: %s", reason)
            return False
        if not is_alive:
            self.lose("it has ended")
        elif not self._ended.is_set():
            self._sent_at, self.deadline = sent_at, Instant(sent_at + self._ttl_s)
        return True

    async def _wait(self, until: float) -> None:
        """Wait for a time, the deadline or the loss, whichever is first."""
        try:
            async with asyncio.timeout_at(min(until, self.deadline)):
                await self._ended.wait()
        except TimeoutError:
            pass

    def _noticed(self, changed: Changed) -> None:
        """See that another broker has ended this life, or another life has begun."""
        node = self.registration.node_id
        if node not in changed.brokers or self._state.revision < self.version:
            return
        found = self._state.brokers.get(node)
        if found is None:
            self.lose("its registration was removed")
        elif found.registration.incarnation != self.registration.incarnation:
            self.lose("the broker is registered anew")

    def lose(self, reason: str) -> None:
        """End this life: it is valid no more. Once is enough."""
        if not self._ended.is_set():
            log.warning("broker %s has lost its lease: %s", self.registration.node_id, reason)
            self._end()
            self._on_lost()

    def _end(self) -> None:
        self.deadline = _PAST
        self._ended.set()
        self._state.unsubscribe(self._noticed)

    async def announce_stop(self) -> None:
        """Ask to lead nothing any more; does nothing if the registration is not there.

        Raises StorageError.
        """
        await self._announce(lambda mine: mine._replace(is_stopping=True))

    async def announce_full(self, is_full: bool) -> None:
        """Ask to lead only what no other can, or as before; otherwise as ``announce_stop``."""
        await self._announce(lambda mine: mine._replace(is_full=is_full))

    async def _announce(self, change: Callable[[Registration], Registration]) -> None:
        """Write the registration again, in the same life."""
        async with self._announcing:
            # Read first: what an earlier attempt has written may not be known here.
            found = await self._store.get(self.key)
            if found is None or not self._is_of_this_life(found[0]):
                return
            again = change(self.registration)._replace(begun_at=self._begun_at)
            value = again.encode()
            write = MetadataWrite(self.key, value, found[1], self.lease)
            if await commit_known(self._store, [write]) and await self._read_version(value):
                self.registration = again

    def _is_of_this_life(self, value: bytes) -> bool:
        found = Registration.decode(self.key, value)
        return found.incarnation == self.registration.incarnation

    async def end(self) -> None:
        """End the life now, the controller's key with it if it is held. Raises StorageError.

        It is no loss: ``run`` ends, and ``on_lost`` is not called.
        """
        self._end()
        if self.lease is not None:
            await self._store.revoke(self.lease)


async def fence(store: MetadataStore, state: ClusterState, node_id: NodeId, version: int) -> bool:
    """End the registration of a broker whose process is gone, at the version that is known.

    So is its hold of the controller's key. False if another life has begun, or it has ended
    already. Raises StorageError.
    """
    writes = [MetadataWrite(broker_key(node_id), None, version)]
    held, broker = state.controller, state.brokers.get(node_id)
    if (
        held is not None
        and broker is not None
        and (held.node_id, held.incarnation) == (node_id, broker.registration.incarnation)
    ):
        writes.append(MetadataWrite(CONTROLLER_KEY, None, held.version))
        if await commit_known(store, writes):
            return True
        # Without the key, which has changed: nobody holds it whose registration is gone.
    return await commit_known(store, writes[:1])


async def leave_replica_sets(store: MetadataStore, node_id: NodeId, directory: str) -> int:
    """Take a broker that may have lost records out of all in-sync and eligible replicas.

    Before it registers: after a power loss in ``os`` mode, or with an empty data directory. A
    registration of an earlier life of the same directory ends first: a leader that goes on after a
    pause may not let that one join. Returns how many partitions had the broker.

    Raises StorageError, and FencedError while another broker has the number: that one's replicas
    stay in sync.
    """
    key = broker_key(node_id)
    left = 0
    while True:
        await _end_earlier_life(store, key, directory)
        writes = await _without(store, node_id)
        if not writes:
            return left
        for batch in batched(writes):
            # Where one conflicts, or somebody has registered meanwhile, all is read anew.
            if await commit_known(store, batch, unchanged={key: 0}):
                left += len(batch)


async def _end_earlier_life(store: MetadataStore, key: str, directory: str) -> None:
    """Remove the registration of this data directory's last life, if it is there yet."""
    while (cell := await store.get(key)) is not None:
        _check_own(key, cell[0], directory)
        if await commit_known(store, [MetadataWrite(key, None, cell[1])]):
            return


def _check_own(key: str, value: bytes, directory: str) -> None:
    """Raise FencedError if a registration is that of another data directory."""
    try:
        other = Registration.decode(key, value)
    except CorruptionError as error:
        log.warning("%s: replaced", error)
        return
    if other.directory != directory:
        raise FencedError(
            f"broker {other.node_id} is registered already, at {other.host}:{other.port} with "
            "another data directory: give this one another node.id; if it is to replace that one, "
            "stop that one first, or wait until its session has ended"
        )


async def _without(store: MetadataStore, node_id: NodeId) -> list[MetadataWrite]:
    """Return what takes a broker out of each partition of which it is in sync or eligible."""
    writes = []
    for key, value, version in (await store.snapshot(PARTITION_PREFIX)).cells:
        try:
            state = PartitionState.decode(key, value)
        except CorruptionError as error:
            log.warning("%s: left out", error)
            continue
        if node_id in (*state.isr, *state.eligible):
            writes.append(MetadataWrite(key, without(state, node_id).encode(), version))
    return writes


def _now() -> Instant:
    return Instant(asyncio.get_running_loop().time())
