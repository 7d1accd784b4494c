"""Consume, transform, produce: the members of one group copy a topic, exactly once (E8, E11).

Every process is a member, and now and then also one of those who write the input. In the end a last
member copies what is left, so that every input must have one output and every offset be committed.
The coordinators' topics have small segments here and are compacted all the time.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, replace
from random import Random
from typing import Any

from fencelog.check.history import FINAL, Event, Recorder, key_of
from fencelog.client.admin import Admin
from fencelog.client.cluster import Cluster
from fencelog.client.sender import ProducerOptions, open_sender
from fencelog.client.topic_changes import TopicChanges
from fencelog.types import TopicPartition
from fencelog_sim.workload import Scale, Stage
from fencelog_sim.workloads.copier import Copier
from fencelog_sim.workloads.member import GroupMember
from fencelog_sim.workloads.own import ERRORS, OwnLibrary, open_cluster
from fencelog_sim.workloads.plans import Plan, Send
from fencelog_sim.workloads.player import Habit, Keys, Player
from fencelog_sim.workloads.settling import (
    RETRY_S,
    come_to_rest,
    end_transactions,
    insist,
    read_all,
    seen_in_the_end,
)
from fencelog_sim.workloads.topics import Generations, ensure_topic

NAME = "copy"
INPUT, OUTPUT = f"{NAME}-in", f"{NAME}-out"
INPUT_TOPIC = f"{INPUT}-0"
FEED_SHARE = 0.4
FEED_TRANSACTION_SHARE = 0.3
STATIC_SHARE = 0.3
ADD_SHARE = 0.5
ENDLESS = 1 << 30
"""No partition is ever full: the input is one topic."""
BROKEN = "(UNKNOWN_SERVER_ERROR)"
PROBLEMS_MAX = 20


@dataclass
class _LastStage:
    """The stage of the last member: nothing else acts any more."""

    bootstrap: str
    random: Random
    history: Recorder
    scale: Scale
    stopping: bool
    last: Stage

    def now(self) -> float:
        return self.last.now()

    async def pause(self) -> None:
        await self.last.pause()


class Copy:
    """The workload; client ``index`` copies as ``copy-index`` and feeds as ``copy-feed-index``."""

    name = NAME
    may_lose = expires = False

    async def prepare(self, stage: Stage) -> None:
        """Create both topics, and have those of the coordinators compacted often."""
        cluster = open_cluster(stage)
        try:
            for topic in (INPUT_TOPIC, OUTPUT):
                await insist(
                    stage,
                    f"topic {topic}",
                    lambda topic=topic: ensure_topic(  # type: ignore[misc]
                        cluster, topic, stage.scale.partitions
                    ),
                )
            await insist(stage, "internal topics", lambda: _compact_often(stage, cluster))
        finally:
            await cluster.close()

    async def client(self, stage: Stage, index: int) -> None:
        """Write and copy until the stage stops."""
        cluster, beats = open_cluster(stage), open_cluster(stage)
        library = OwnLibrary(stage)
        copier = _copier(stage, cluster, beats, index)
        topics = Generations(cluster, INPUT, replace(stage.scale, key_records=ENDLESS))
        habit = Habit(_plan, FEED_TRANSACTION_SHARE)
        feeder = Player(stage, library, topics, _feeder(index), habit)
        try:
            while not stage.stopping:
                try:
                    if stage.random.random() >= FEED_SHARE:
                        await copier.turn()
                    elif not await feeder.operation():
                        await _rest()
                except ERRORS:
                    await _rest()
                await stage.pause()
        finally:
            await copier.close()
            await feeder.close()
            await library.close()
            await beats.close()
            await cluster.close()

    async def settle(self, stage: Stage) -> None:
        """Fence all clients, copy what is left, read everything."""
        cluster = open_cluster(stage)
        clients = range(stage.scale.clients)
        partitions = [
            TopicPartition(topic, number)
            for topic in (INPUT_TOPIC, OUTPUT)
            for number in range(stage.scale.partitions)
        ]
        try:
            identifiers = [name for index in clients for name in (_member(index), _feeder(index))]
            await end_transactions(stage, cluster, identifiers)
            # Some inputs wait for a transaction that only its timeout ends.
            await come_to_rest(stage, cluster, partitions)
            await _copy_the_rest(stage, cluster)
            ends = await come_to_rest(stage, cluster, partitions)
            await read_all(stage, cluster, ends)
            committed = await insist(
                stage, "committed offsets", lambda: Admin(cluster).committed_offsets(NAME)
            )
            stage.history.group_end(
                NAME, {key_of(*each): offset for each, offset in committed.items()}
            )
        finally:
            await cluster.close()

    def check(self, events: list[Event]) -> list[str]:
        """Name inputs that the group never came to, and errors that no client can explain."""
        problems = [
            f"broken: {event['process']}: {event['error']}"
            for event in events
            if BROKEN in str(event.get("error", ""))
        ]
        ended: Mapping[str, int] | None = None
        for event in events:
            if event["type"] == "group_end":
                offsets: Any = event["offsets"]
                ended = offsets
        if ended is not None:
            problems += [
                f"left behind: {value} at {offset} of {key}, and the group ends at {ended.get(key)}"
                for key, offset, value in seen_in_the_end(events)
                if key.startswith(INPUT) and offset >= ended.get(key, 0)
            ]
        return problems[:PROBLEMS_MAX]


def _member(index: int) -> str:
    return f"{NAME}-{index}"


def _feeder(index: int) -> str:
    return f"{NAME}-feed-{index}"


def _plan(keys: Keys) -> Plan:
    partition = keys.topics.partition(0, keys.random.randrange(keys.scale.partitions))
    return [Send(partition, keys.names(keys.count())) for _ in range(keys.random.randint(1, 3))]


def _copier(stage: Stage, cluster: Cluster, beats: Cluster, index: int) -> Copier:
    scale = stage.scale
    is_static = stage.random.random() < STATIC_SHARE
    member = GroupMember(
        cluster,
        beats,
        NAME,
        [TopicPartition(INPUT_TOPIC, number) for number in range(scale.partitions)],
        session_s=scale.session_s,
        instance_id=_member(index) if is_static else None,
        adds_offsets=stage.random.random() < ADD_SHARE,
    )
    outputs = [TopicPartition(OUTPUT, number) for number in range(scale.partitions)]
    return Copier(stage, cluster, member, _member(index), outputs)


async def _rest() -> None:
    """What failed at once would fail at once again without any time passing."""
    await asyncio.sleep(RETRY_S)


async def _compact_often(stage: Stage, cluster: Cluster) -> None:
    """Make the coordinators' topics, and give them segments that are soon full."""
    await (await open_sender(cluster, ProducerOptions(transactional_id=f"{NAME}-prepare"))).close()
    await Admin(cluster).commit_offsets(f"{NAME}-prepare", {TopicPartition(INPUT_TOPIC, 0): 0})
    changes = {
        "segment.bytes": str(1024 * max(1, stage.scale.records_per_send // 4)),
        "min.cleanable.dirty.ratio": "0.01",
        "delete.retention.ms": str(stage.random.choice((0, 500, 86_400_000))),
    }
    for topic in ("__transaction_state", "__consumer_offsets"):
        await TopicChanges(cluster).configure(topic, changes)


async def _copy_the_rest(stage: Stage, cluster: Cluster) -> None:
    """Join as the last member and go on until every input is copied."""
    beats = open_cluster(stage)
    assert stage.history.process.startswith(FINAL)
    history = Recorder("last", now=stage.now, write=stage.history._write)
    last = _LastStage(
        stage.bootstrap, stage.random, history, stage.scale, stopping=False, last=stage
    )
    copier = _copier(last, cluster, beats, stage.scale.clients)
    inputs = [TopicPartition(INPUT_TOPIC, number) for number in range(stage.scale.partitions)]

    async def copy() -> None:
        await copier.turn(is_steady=True)
        ends = await Admin(cluster).offsets(inputs, "latest", "transactional")
        behind = {each: copier.positions.get(each, -1) for each in inputs}
        if any(at < ends[each] for each, at in behind.items()):
            raise TimeoutError(f"the last member is at {behind} of {ends}")

    try:
        await insist(stage, "copy of all inputs", copy)
    finally:
        await copier.close()
        await beats.close()


def copy() -> Copy:
    """The workload on fencelog's own wire, the only client here that names its member."""
    return Copy()
