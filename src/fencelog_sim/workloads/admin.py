"""Administration: topics that are deleted and made again, widened, and set up anew, while written.

Each client has a topic of its own, and knows what is in it. A topic that was deleted has left
nothing in the next one of its name: no record, no offset, no producer, no setting. Its group
commits plain offsets, and is never told another one.
"""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

from fencelog.check.history import Event
from fencelog.client.admin import Admin
from fencelog.client.cluster import Cluster
from fencelog.client.model import DataLossError
from fencelog.client.sender import ProducerOptions, Sender, open_sender
from fencelog.client.topic_changes import TopicChanges
from fencelog.errors import ErrorCode, RequestError
from fencelog.types import TopicPartition
from fencelog_sim.faults import Points
from fencelog_sim.workload import Stage
from fencelog_sim.workloads.own import ERRORS, encode, open_cluster, read_once
from fencelog_sim.workloads.settling import RETRY_S, insist
from fencelog_sim.workloads.topics import CONFIGS

Note: TypeAlias = dict[str, Any]
"""A ``meta`` event of this workload."""
NAME = "admin"
BROKERS_DEFAULT = -1
PARTITIONS_MAX = 4
DELETE_SHARE = 0.15
WIDEN_SHARE = 0.08
CONFIGURE_SHARE = 0.1
READ_SHARE = 0.2
LATE_S = 13.0
"""How late a broker of a cluster may hear of a deletion. Until then one that has the topic's group
may forget with its offsets what was committed since, for that may have come from a reader of the
deleted topic; and one that led it may show its records."""
QUICK_S = 1.0
"""A request that took longer may have been sent twice, and one of them is still on its way."""
COMMIT_SHARE = 0.1
SEGMENT_BYTES = ("1024", "2048", "65536")
REFUSED: tuple[type[Exception], ...] = (DataLossError, *ERRORS)
GONE = {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID}
PROBLEMS_MAX = 20
POINTS: Points = (("commit topic/*", 8),)
"""Where a cluster's broker changes a topic."""


@dataclass
class Admins:
    """The workload; client ``index`` owns the topic ``admin-index``."""

    name: str = NAME
    may_lose: bool = False
    expires: bool = False

    async def prepare(self, stage: Stage) -> None:
        """Nothing: each client makes its topic."""

    async def client(self, stage: Stage, index: int) -> None:
        """Administrate until the stage stops."""
        cluster = open_cluster(stage)
        owner = _Owner(stage, cluster, index)
        try:
            while not stage.stopping:
                try:
                    await owner.turn()
                except REFUSED:
                    await owner.doubt()
                    await asyncio.sleep(RETRY_S)
                await stage.pause()
        finally:
            await owner.doubt()
            await cluster.close()

    async def settle(self, stage: Stage) -> None:
        """Read what is left of each topic and its group; then each can be made once more."""
        cluster = open_cluster(stage)
        try:
            for index in range(stage.scale.clients):
                last = _Owner(stage, cluster, index)
                await insist(stage, f"final read of {last.topic}", last.look)
                await insist(stage, f"a new {last.topic}", last.begin_again)
                await insist(stage, f"final read of the new {last.topic}", last.look)
                await last.doubt()
        finally:
            await cluster.close()

    def check(self, events: list[Event]) -> list[str]:
        """What is there and should not be, or is missing."""
        notes: list[Note] = [event for event in events if event["type"] == "meta"]
        topics = sorted({str(note["topic"]) for note in notes})
        problems = [
            problem
            for topic in topics
            for problem in _problems(topic, [note for note in notes if note["topic"] == topic])
        ]
        return problems[:PROBLEMS_MAX]


class _Owner:
    """The one client at a time that changes a topic, and its producer."""

    def __init__(self, stage: Stage, cluster: Cluster, index: int) -> None:
        """Know nothing of what an earlier client has left."""
        self.topic = f"{NAME}-{index}"
        self._stage = stage
        self._random = stage.random
        self._cluster = cluster
        self._sender: Sender | None = None
        self._partitions = 0
        self._values = 0

    async def turn(self) -> None:
        """Do one thing. Raises one of REFUSED."""
        if self._partitions == 0:
            await self._create()
            return
        chance = self._random.random()
        for share, act in (
            (DELETE_SHARE, self._delete),
            (WIDEN_SHARE, self._widen),
            (CONFIGURE_SHARE, self._configure),
            (COMMIT_SHARE, self._commit),
            (READ_SHARE, self.look),
        ):
            if chance < share:
                await act()
                return
            chance -= share
        await self._write()

    async def begin_again(self) -> None:
        """Delete the topic, make it and write to it. Raises one of REFUSED."""
        await self._delete()
        await self._create()
        await self._write()

    async def doubt(self) -> None:
        """Forget what is known of the topic: a request may have been carried out or not."""
        self._partitions = 0
        self._cluster.forget(self.topic)
        sender, self._sender = self._sender, None
        if sender is not None:
            await sender.close()

    # -- the topic -----------------------------------------------------------------------------

    async def _create(self) -> None:
        configs = {**CONFIGS, "segment.bytes": self._random.choice(SEGMENT_BYTES)}
        count = self._random.randint(1, 2)
        began, is_new = self._stage.now(), True
        self._note("create")
        try:
            await Admin(self._cluster).create_topic(self.topic, count, configs, BROKERS_DEFAULT)
        except RequestError as error:
            if error.code is not ErrorCode.TOPIC_ALREADY_EXISTS:
                raise
            is_new = False
        self._note("created", is_new=is_new, quick=self._is_quick(began))
        self._cluster.forget(self.topic)
        counts = await self._cluster.partition_counts([self.topic])
        self._partitions = counts[self.topic]

    async def _delete(self) -> None:
        began = self._stage.now()
        self._note("delete")
        await self.doubt()
        try:
            await Admin(self._cluster).delete_topic(self.topic)
        except RequestError as error:
            if error.code not in GONE:
                raise
        is_alone = "," not in self._stage.bootstrap
        self._note("deleted", quick=self._is_quick(began), is_heard=is_alone)

    async def _widen(self) -> None:
        if self._partitions < PARTITIONS_MAX:
            count = self._partitions + 1
            await TopicChanges(self._cluster).add_partitions(self.topic, count)
            self._partitions = count

    async def _configure(self) -> None:
        began = self._stage.now()
        value = self._random.choice((*SEGMENT_BYTES, None))
        await TopicChanges(self._cluster).configure(self.topic, {"segment.bytes": value})
        described = await Admin(self._cluster).describe_topic(self.topic)
        found = described.configs.get("segment.bytes")
        self._note("configured", wanted=value, found=found, quick=self._is_quick(began))

    # -- records and offsets -------------------------------------------------------------------

    def _partition(self) -> TopicPartition:
        return TopicPartition(self.topic, self._random.randrange(self._partitions))

    async def _write(self) -> None:
        partition = self._partition()
        self._values += 1
        value = f"{self._stage.history.process}.{self._values}"
        connection = await self._cluster.any_broker(self._cluster.deadline())
        self._note("write", value=value)
        if self._sender is None:
            self._sender = await open_sender(self._cluster, ProducerOptions())
        await self._sender.enqueue([encode(partition, [value], self._stage.now())])
        (delivery,) = await self._sender.flush()
        self._note(
            "wrote",
            value=value,
            partition=str(partition),
            offset=delivery.base_offset,
            # It is sent again, though the first copy may still be on its way, where this is lost.
            once=not connection.closed,
        )

    async def _commit(self) -> None:
        offset = self._random.randint(0, 9)
        partition = self._partition()
        self._note("commit", partition=str(partition), offset=offset)
        await Admin(self._cluster).commit_offsets(self.topic, {partition: offset})
        self._note("committed", partition=str(partition), offset=offset)

    async def look(self) -> None:
        """Read all that is there, and the offsets of the group. Raises one of REFUSED."""
        admin = Admin(self._cluster)
        self._cluster.forget(self.topic)
        try:
            counts = await self._cluster.partition_counts([self.topic])
        except RequestError as error:
            if error.code not in GONE:
                raise
            self._note("gone")
            return
        partitions = [TopicPartition(self.topic, each) for each in range(counts[self.topic])]
        starts = await admin.offsets(partitions, "earliest", "replicated")
        ends = await admin.offsets(partitions, "latest", "replicated")
        rows: list[list[object]] = []
        for each in partitions:
            position = starts[each]
            while position < ends[each]:
                found, position = await read_once(self._cluster, each, position, ends[each])
                rows += [[str(each), offset, value] for offset, value in found]
        committed = await admin.committed_offsets(self.topic)
        self._note(
            "left",
            rows=rows,
            starts=max(starts.values()),
            committed={str(each): offset for each, offset in committed.items()},
        )

    def _is_quick(self, began: float) -> bool:
        return self._stage.now() - began < QUICK_S

    def _note(self, what: str, **fields: object) -> None:
        self._stage.history.note(what=what, topic=self.topic, **fields)


class _Known:
    """What one topic may have, after each of its events."""

    def __init__(self) -> None:
        self.sent: set[str] = set()
        """Values that may be there."""
        self.there: dict[str, tuple[str, int]] = {}
        """Partition and offset of what was acknowledged, by value."""
        self.doubtful: set[str] = set()
        """Values of which a copy may arrive at any time, also in the next topic of the name: up to
        version 12 Produce says nothing but the name."""
        self.may_vanish = False
        """A request to delete the topic may arrive at any time."""
        self.is_gone = True
        """Nobody has asked for the topic since it was deleted."""
        self.is_creating = self.may_appear = False
        """A request to create it has no answer yet; one may arrive at any time."""
        self.offsets: dict[str, set[int]] = {}
        """What may be committed, by partition."""
        self.sure: set[str] = set()
        """Partitions that have a committed offset."""
        self.heard_at = 0.0
        """When each broker has heard that the topic is deleted."""
        self.deleted: set[str] = set()
        """Values of deleted topics, which are shown where that was not heard yet."""

    def take(self, note: Note) -> None:
        """Apply what a client asked for, or got."""
        match note["what"]:
            case "write":
                self.sent.add(note["value"])
                self.doubtful.add(note["value"])
            case "wrote":
                self.there[note["value"]] = note["partition"], note["offset"]
                if note["once"]:
                    self.doubtful.discard(note["value"])
            case "create":
                self.may_appear |= self.is_creating
                self.is_creating = True
            case "created":
                self.is_creating = self.is_gone = False
                self.may_appear |= not note["quick"]
            case "delete":
                self.may_vanish = True
                self.there.clear()
                self.sure.clear()
            case "deleted" if note["quick"]:
                self.heard_at = note["time"] + (0.0 if note["is_heard"] else LATE_S)
                self.may_vanish, self.is_gone = False, True
                self.deleted |= self.sent
                self.sent = set(self.doubtful)
            case "commit":
                self.offsets.setdefault(note["partition"], set()).add(note["offset"])
            case "committed" if note["time"] >= self.heard_at:
                self.sure.add(note["partition"])
            case _:
                pass

    def problems(self, topic: str, note: Note) -> Iterator[str]:
        """Yield what a client was told or shown and cannot be."""
        match note["what"]:
            case "created" if self.is_gone and not self.may_appear and not note["is_new"]:
                yield f"broken: {topic} is refused as existing, and was deleted"
            case "gone" if self.there and not self.may_vanish:
                yield f"lost: {topic} is gone, with {len(self.there)} records"
            case "configured" if note["quick"] and note["wanted"] not in {None, note["found"]}:
                yield f"broken: segment.bytes is {note['found']}, set to {note['wanted']}"
            case "left" if not self._is_unheard(note):
                yield from self._left(topic, note)
            case _:
                pass

    def _is_unheard(self, note: Note) -> bool:
        """Whether a read was answered by a broker that has not heard of the topic's deletion."""
        found = {value for _, _, value in note["rows"]}
        return note["time"] < self.heard_at and not found.isdisjoint(self.deleted - self.sent)

    def _left(self, topic: str, note: Note) -> Iterator[str]:
        rows: list[tuple[str, int, str]] = [tuple(row) for row in note["rows"]]
        found = {value: (partition, offset) for partition, offset, value in rows}
        for value in sorted(found.keys() - self.sent):
            yield f"from nowhere: {topic} has {value}, of a deleted topic"
        if note["starts"] != 0:
            yield f"broken: a partition of {topic} begins at {note['starts']}, nothing was deleted"
        committed: dict[str, int] = note["committed"]
        for partition, offset in committed.items():
            if offset not in self.offsets.get(partition, set()):
                yield f"broken: offset {offset} of {partition} was never committed"
        if self.may_vanish:
            return
        if len(found) != len(rows):
            yield f"twice: {topic} has {len(rows)} records of {len(found)} values"
        for value, place in self.there.items():
            if found.get(value) != place:
                yield f"lost: {topic} has {value} at {found.get(value)}, acknowledged at {place}"
        for partition in sorted(self.sure - committed.keys()):
            yield f"lost: the offset of {partition}, one of {self.offsets[partition]}"


def _problems(topic: str, notes: list[Note]) -> Iterator[str]:
    """Yield what one topic's clients saw that cannot be."""
    known = _Known()
    for note in notes:
        yield from known.problems(topic, note)
        known.take(note)


def admin() -> Admins:
    """The workload on fencelog's own client."""
    return Admins()
