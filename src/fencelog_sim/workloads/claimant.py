"""A process that claims resources again and again, and goes on with claims that it has lost."""

import asyncio

from fencelog.check.history import key_of
from fencelog.client.cluster import GROUP, Cluster
from fencelog.client.groups import OFFSET_FETCH_VERSION_MAX
from fencelog.coordination.ownership.model import NEXT_GENERATION, NO_EPOCH
from fencelog.errors import ErrorCode, RequestError
from fencelog.rpc.deadline import Deadline
from fencelog.types import TopicPartition
from fencelog.wire.messages.offset_fetch import OffsetFetchRequest, OffsetFetchResponse
from fencelog.wire.messages.own import OwnRequest, OwnResource
from fencelog_sim.workload import Stage
from fencelog_sim.workloads.own import ERRORS
from fencelog_sim.workloads.owned_offsets import PATIENCE_S
from fencelog_sim.workloads.owned_requests import HOWS, NAMES, READERS
from fencelog_sim.workloads.owning import Claim, own

TOPIC = "owned"
STRINGS = ("leader", "shard:7")
CLAIMS_MAX = 3
"""Claims that a process goes on with, its lost ones among them."""
CLAIM_SHARE = 0.4
ACTS_MAX = 4
HAUNT_SHARE, LEAVE_SHARE, AGAIN_SHARE = 0.2, 0.4, 0.2
"""What who learns that a claim is lost does next; else it goes on as before."""
KEEP_SHARE = 0.6
"""Of the claims, those that are renewed; the others are silent from the beginning."""
HURRY_SHARE = 0.5
HURRIED_MAX = 30
WAIT_SHARE = 0.35
GIVE_UP_SHARE = 0.1
PREV_SHARE = 0.3
NAME_SHARE = 0.5
WAIT_MS = 300
LEASE_MS = (500, 2500)


class Claimant:
    """One process. No two of its requests are under way at a time, except renewals."""

    def __init__(self, stage: Stage, cluster: Cluster) -> None:
        """Own nothing."""
        self._stage = stage
        self._random = stage.random
        self._cluster = cluster
        self._claims: list[Claim] = []
        self._held: dict[tuple[str | None, str], int] = {}
        """The epochs that this process was granted last."""
        self._positions: dict[TopicPartition, int] = {}
        self._numbers = 0

    async def turn(self) -> None:
        """Claim, or do a few things with claims. Raises one of ERRORS."""
        if not self._claims or self._random.random() < CLAIM_SHARE:
            await self.claim()
            return
        for _ in range(self._random.randint(1, ACTS_MAX)):
            await self._act_with(self._random.choice(self._claims))
            if not self._claims:
                return

    async def _act_with(self, claim: Claim) -> None:
        """Do something with a claim; go on with it as a zombie, or not, where it was lost."""
        try:
            await self._act(claim)
        except RequestError as error:
            is_lost = error.code is ErrorCode.OWNER_FENCED or claim.control.closed
            chance = self._random.random()
            if is_lost and claim.partitions and chance < HAUNT_SHARE:
                await claim.haunt(self._random.choice(claim.partitions))
            elif is_lost and chance < HAUNT_SHARE + LEAVE_SHARE:
                await self._leave(claim)
            elif is_lost and chance < HAUNT_SHARE + LEAVE_SHARE + AGAIN_SHARE:
                # It claims what it had, if nobody else has had it since.
                await self.claim(claim)

    async def close(self) -> None:
        """Leave all claims as they are."""
        for each in self._claims:
            await each.close()

    # -- claims ----------------------------------------------------------------------------------

    async def claim(self, lost: Claim | None = None) -> None:
        """Claim something, or what this claim had. Raises one of ERRORS."""
        if lost is not None:
            await self._leave(lost)
        group = self._random.choice((None, None, READERS)) if lost is None else lost.group
        names = self._resources(group) if lost is None else list(lost.epochs)
        wants_prev = lost is not None or self._random.random() < PREV_SHARE
        wanted = [
            OwnResource(
                resource=each,
                generation=self._generation(),
                prev_epoch=self._held.get((group, each), NO_EPOCH) if wants_prev else NO_EPOCH,
            )
            for each in names
        ]
        waits = lost is None and self._random.random() < WAIT_SHARE
        self._numbers += 1
        request = OwnRequest(
            group=group,
            resources=wanted,
            holder=self._stage.history.process,
            session_timeout_ms=self._random.randint(*LEASE_MS),
            transactional_id_name=(
                self._random.choice(NAMES) if self._random.random() < NAME_SHARE else None
            ),
            claim_id=f"{self._stage.history.process}.{self._numbers}",
            wait_ms=WAIT_MS if waits else 0,
        )
        claim = await own(self._stage, self._cluster, request, self._gives_up)
        if claim is None:
            return
        self._held.update(((group, each), epoch) for each, epoch in claim.epochs.items())
        self._claims.append(claim)
        if self._random.random() < KEEP_SHARE:
            claim.keep()
        if claim.partitions and self._random.random() < HURRY_SHARE:
            claim.hurry(self._random.randint(1, HURRIED_MAX))
        if len(self._claims) > CLAIMS_MAX:
            await self._leave(self._claims[0])

    def _gives_up(self) -> bool:
        return self._stage.stopping or self._random.random() < GIVE_UP_SHARE

    def _resources(self, group: str | None) -> list[str]:
        """Partitions and other strings, one or several."""
        partitions = [f"{TOPIC}/{number}" for number in range(self._stage.scale.partitions)]
        known = partitions if group is not None else [*partitions, *STRINGS]
        count = min(self._random.choice((1, 1, 2, 3)), len(known))
        return sorted(self._random.sample(known, count))

    def _generation(self) -> int:
        chance = self._random.random()
        if chance < 0.6:
            return NEXT_GENERATION
        return 0 if chance < 0.75 else self._random.randint(1, 12)

    async def _leave(self, claim: Claim) -> None:
        self._claims.remove(claim)
        await claim.close()

    # -- with a claim, whether it is still held or not --------------------------------------------

    async def _act(self, claim: Claim) -> None:
        chance = self._random.random()
        partitions = claim.partitions
        if chance < 0.06:
            await claim.release()
        elif chance < 0.1:
            await self._leave(claim)
        elif chance < 0.14 or not partitions:
            await claim.renew()
        elif chance < 0.35:
            await self._read(claim, self._random.choice(partitions))
        elif claim.transactional_id is not None and chance < 0.7:
            count = self._random.randint(1, len(partitions))
            chosen = self._random.sample(partitions, count)
            transact = claim.transact if claim.group is None else claim.transact_offsets
            await transact(chosen, self._random.choice(HOWS))
            if claim.group is not None:
                await look(self._stage, self._cluster, chosen[0], claim.session)
        elif claim.group is not None:
            await self._commit(claim, self._random.choice(partitions))
        else:
            await claim.write(self._random.choice(partitions))

    async def _read(self, claim: Claim, partition: TopicPartition) -> None:
        position = self._positions.get(partition, 0)
        self._positions[partition] = await claim.read(partition, position)

    async def _commit(self, claim: Claim, partition: TopicPartition) -> None:
        """Commit, look, and commit: what is seen between them is the owner's own."""
        await claim.commit(partition)
        if self._random.random() < 0.5:
            await look(self._stage, self._cluster, partition, claim.session)
            await claim.commit(partition)


async def look(
    stage: Stage, cluster: Cluster, partition: TopicPartition, session: str | None
) -> None:
    """Note the metadata that the group's committed offset has. Raises one of ERRORS."""
    stage.history.note(what="look", partition=key_of(*partition), session=session)
    request = OffsetFetchRequest(group_id=READERS, topics=None, require_stable=True)
    answer = await cluster.ask_coordinator(
        GROUP,
        READERS,
        request,
        OffsetFetchResponse,
        Deadline(PATIENCE_S),
        OFFSET_FETCH_VERSION_MAX,
    )
    found = {
        TopicPartition(topic.name, each.partition_index): each
        for topic in answer.topics
        for each in topic.partitions
    }
    known = found.get(partition)
    if answer.error_code or (known is not None and known.error_code):
        raise RequestError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "offsets")
    metadata = None if known is None or known.committed_offset < 0 else known.metadata
    stage.history.note(
        what="found", partition=key_of(*partition), session=session, metadata=metadata
    )


async def play(stage: Stage, cluster: Cluster) -> None:
    """Claim and act until the stage stops."""
    claimant = Claimant(stage, cluster)
    try:
        while not stage.stopping:
            try:
                await claimant.turn()
            except ERRORS:
                await asyncio.sleep(0.02)
            await stage.pause()
    finally:
        await claimant.close()
