"""Owners that are severed, paused, cut off and replaced, and go on as if they were not.

Several processes claim a few resources: partitions, for their writes and for a group's readers,
and plain strings. Each goes on with the claims that it has lost, on the connections and with the
transactions that it had. Another one writes beside them, without a claim. When all faults are
healed every resource is claimed once more, and the log is read with its ownership records.
"""

import asyncio
from dataclasses import dataclass

from fencelog.check.history import FINAL, Event, key_of
from fencelog.client.admin import Admin
from fencelog.client.cluster import Cluster
from fencelog.client.ownership import Ownership
from fencelog.client.sender import ProducerOptions, open_sender
from fencelog.client.topic_changes import TopicChanges
from fencelog.errors import ErrorCode, RequestError
from fencelog.rpc.deadline import Deadline
from fencelog.types import TopicPartition
from fencelog.wire.messages.own import OwnRequest, OwnResource
from fencelog_sim.workload import Stage
from fencelog_sim.workloads.claimant import STRINGS, TOPIC, look, play
from fencelog_sim.workloads.own import ERRORS, OwnWriter, open_cluster
from fencelog_sim.workloads.owned_log import rows_of
from fencelog_sim.workloads.owned_offsets import PATIENCE_S
from fencelog_sim.workloads.owned_requests import (
    NOBODY,
    READERS,
    TRANSACTIONAL_SHARE,
    commit_as_nobody,
    send_once,
    transact_as_nobody,
)
from fencelog_sim.workloads.owners_history import problems_of
from fencelog_sim.workloads.owning import Claim, own
from fencelog_sim.workloads.plans import Send, completed, invoked, named, unknown
from fencelog_sim.workloads.routes import led
from fencelog_sim.workloads.settling import (
    RETRY_S,
    come_to_rest,
    insist,
    read_all,
    transactions_end,
)
from fencelog_sim.workloads.topics import ensure_topic

NAME = "owners"
BESIDE = "beside"
"""A topic that nobody owns: what happens to owners must not show there."""
OTHERS_SHARE = 0.5
"""How often the writer without a claim tries what may be somebody's."""
COMMIT_SHARE = 0.4
LAST_LEASE_MS = 10_000


@dataclass
class Owners:
    """The workload."""

    name: str = NAME
    may_lose: bool = True
    expires: bool = False

    async def prepare(self, stage: Stage) -> None:
        """Create the topics; the seed says how strict the owned one is."""
        configs = {
            "ownership": stage.random.choice(("if-owned", "if-owned", "required")),
            "ownership.read": stage.random.choice(("off", "required")),
        }
        stage.history.note(what="topic", **configs)
        cluster = open_cluster(stage)
        try:
            for name, wanted in ((TOPIC, configs), (BESIDE, {})):
                await insist(
                    stage,
                    f"topic {name}",
                    lambda name=name, wanted=wanted: ensure_topic(  # type: ignore[misc]
                        cluster, name, stage.scale.partitions, wanted
                    ),
                )
            await insist(stage, "compaction", lambda: _compact_often(stage, cluster))
        finally:
            await cluster.close()

    async def client(self, stage: Stage, index: int) -> None:
        """Write beside the owners, or be one of them."""
        cluster = open_cluster(stage)
        try:
            if index == 0:
                await _write_beside(stage, cluster)
            else:
                await play(stage, cluster)
        finally:
            await cluster.close()

    async def settle(self, stage: Stage) -> None:
        """Claim everything once more, read all logs, look at every offset."""
        cluster = open_cluster(stage)
        owned = [TopicPartition(TOPIC, each) for each in range(stage.scale.partitions)]
        beside = [TopicPartition(BESIDE, each) for each in range(stage.scale.partitions)]
        names = [key_of(*each) for each in owned]
        try:
            writer = await _claim_all(stage, cluster, None, [*names, *STRINGS])
            reader = await _claim_all(stage, cluster, READERS, names)
            await transactions_end(stage, cluster)
            ends = await come_to_rest(stage, cluster, owned)
            for each in owned:
                await _read_owned(stage, reader, each, ends[each]["high_watermark"])
                await insist(
                    stage,
                    "committed offsets",
                    lambda each=each: look(stage, cluster, each, None),  # type: ignore[misc]
                )
            await insist(stage, "states", lambda: _describe(stage, cluster))
            await read_all(stage, cluster, await come_to_rest(stage, cluster, beside))
            await writer.close()
            await reader.close()
        finally:
            await cluster.close()

    def check(self, events: list[Event]) -> list[str]:
        """What the owners' monitors find in the history."""
        return problems_of(events)


async def _compact_often(stage: Stage, cluster: Cluster) -> None:
    """Make the coordinators' topics, and give them segments that are soon full."""
    request = OwnRequest(resources=[OwnResource(resource=NAME)], session_timeout_ms=LAST_LEASE_MS)
    if (claim := await own(stage, cluster, request, lambda: True)) is not None:
        await claim.close()
    await (await open_sender(cluster, ProducerOptions(transactional_id=NAME))).close()
    await Admin(cluster).commit_offsets(NAME, {TopicPartition(BESIDE, 0): 0})
    changes = {
        "segment.bytes": str(stage.random.choice((1024, 4096))),
        "min.cleanable.dirty.ratio": "0.01",
        "delete.retention.ms": str(stage.random.choice((0, 500, 86_400_000))),
    }
    for topic in ("__fencelog_ownership", "__transaction_state", "__consumer_offsets"):
        await TopicChanges(cluster).configure(topic, changes)


async def _write_beside(stage: Stage, cluster: Cluster) -> None:
    """Write to the topic of nobody, and try what may be owned."""
    count = 0
    while not stage.stopping:
        count += 1
        try:
            if stage.random.random() < OTHERS_SHARE:
                await _try_owned(stage, cluster, count)
            else:
                await _write_plainly(stage, cluster, count)
        except ERRORS:
            await asyncio.sleep(RETRY_S)
        await stage.pause()


async def _try_owned(stage: Stage, cluster: Cluster, count: int) -> None:
    """Write or commit without a claim, once: it may be somebody's. Raises one of ERRORS."""
    partition = TopicPartition(TOPIC, stage.random.randrange(stage.scale.partitions))
    value = f"{NOBODY}:{stage.history.process}.{count}"
    if stage.random.random() >= COMMIT_SHARE:
        with led(cluster, partition):
            connection = await cluster.leader(partition, Deadline(PATIENCE_S))
            await send_once(stage, connection, partition, value, NOBODY)
    elif stage.random.random() < TRANSACTIONAL_SHARE:
        await transact_as_nobody(stage, cluster, partition, value)
    else:
        await commit_as_nobody(stage, cluster, partition, value)


async def _write_plainly(stage: Stage, cluster: Cluster, count: int) -> None:
    """Write to the topic that nobody owns. Raises one of ERRORS."""
    partition = TopicPartition(BESIDE, stage.random.randrange(stage.scale.partitions))
    send = Send(partition, [f"{stage.history.process}.{count}"])
    invocation = stage.history.invoke(invoked([send]))
    try:
        writer = OwnWriter(await open_sender(cluster, ProducerOptions()), stage)
        try:
            await writer.send(partition, send.values)
            offsets = await writer.flush()
        finally:
            await writer.close()
    except ERRORS as error:
        invocation.indeterminate(unknown([send]), named(error))
        raise
    invocation.ok(completed([send], offsets, []))


async def _claim_all(stage: Stage, cluster: Cluster, group: str | None, names: list[str]) -> Claim:
    """Every resource can be claimed within the bound, whatever its owners have left (O9)."""

    request = OwnRequest(
        group=group,
        resources=[OwnResource(resource=each) for each in names],
        holder=stage.history.process,
        session_timeout_ms=LAST_LEASE_MS,
        claim_id=f"{stage.history.process}.{group}",
    )

    async def attempt() -> Claim:
        claim = await own(stage, cluster, request, lambda: True)
        if claim is None:
            raise RequestError(ErrorCode.CLAIM_IN_PROGRESS, "the last claim is refused")
        return claim

    claim = await insist(stage, f"claim of all resources of {group}", attempt)
    claim.keep()
    return claim


async def _read_owned(stage: Stage, reader: Claim, partition: TopicPartition, end: int) -> None:
    """Note all that the log has, ownership records and markers included."""
    assert stage.history.process.startswith(FINAL)
    rows: list[list[object]] = []
    position = 0

    async def attempt() -> None:
        nonlocal position
        while position < end:
            batches = await reader.fetched(partition, position)
            found, position = rows_of(batches, position)
            rows.extend(found)

    await insist(stage, f"final read of {partition}", attempt)
    stage.history.note(what="log", partition=key_of(*partition), rows=rows)


async def _describe(stage: Stage, cluster: Cluster) -> None:
    """Nothing is left in the middle of a grant, and nobody waits. Raises RequestError."""
    states = [
        [each.group, each.resource, each.state, each.waiting]
        for each in await Ownership(cluster).describe_all()
    ]
    stage.history.note(what="states", states=states)


def owners() -> Owners:
    """The workload on raw messages: a library would stop where its lease ends."""
    return Owners()
