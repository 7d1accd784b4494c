"""The copy of the cluster's metadata: up to date, in order, and not confused by foreign values."""

import asyncio
import json
from random import Random

import pytest

from fencelog.broker.metadata.catalog import Topic
from fencelog.broker.metadata.cluster_state import (
    Changed,
    ClusterState,
    PartitionKey,
    encoded_controller,
    encoded_deletion,
)
from fencelog.coordination.controller.model import PartitionState, Registration
from fencelog.errors import StorageError
from fencelog.ports import MetadataWrite
from fencelog.storage.granted import Granted
from fencelog.types import LeaderEpoch, NodeId, TopicId
from fencelog_sim.world.metadata import SimStore
from tests.support.cluster_metadata import in_background, in_virtual_time, within

ONE, TWO = NodeId(1), NodeId(2)
ID = TopicId(b"0123456789abcdef")
KEY = PartitionKey(ID, 0)


def topic(name: str, partitions: int = 1) -> bytes:
    return Topic(name=name, topic_id=ID, partitions=partitions, settings={}).encode()


def state(epoch: int = 0) -> bytes:
    return PartitionState((ONE, TWO), ONE, LeaderEpoch(epoch), (ONE, TWO)).encode()


def broker(node: NodeId, life: str = "1") -> bytes:
    return Registration(node, "h", 9092, life, "d").encode()


async def followed(store: SimStore) -> tuple[ClusterState, list[Changed]]:
    """A copy that follows the store, and what it has told."""
    copy, told = ClusterState(store.session()), list[Changed]()
    copy.subscribe(told.append)
    await copy.start()
    in_background(copy.run())
    return copy, told


def contents(copy: ClusterState) -> tuple[object, ...]:
    return (
        copy.versions,
        copy.brokers,
        copy.controller,
        copy.topics,
        copy.deleted,
        copy.settings,
        copy.partitions,
    )


def test_the_copy_has_what_was_there_and_what_comes() -> None:
    async def main() -> None:
        store = SimStore()
        store.commit([MetadataWrite("broker/1", broker(ONE)), MetadataWrite("topic/t", topic("t"))])
        copy, told = await followed(store)
        assert list(copy.brokers) == [ONE]
        assert told == [Changed(brokers={ONE}, topics={"t"})]
        store.commit(
            [
                MetadataWrite("broker/2", broker(TWO)),
                MetadataWrite("broker/1", None),
                MetadataWrite("controller", encoded_controller(TWO, "1")),
            ]
        )
        version = store.commit([MetadataWrite(KEY.text, state())])
        store.commit([MetadataWrite("settings/broker/", json.dumps({"a": "1"}).encode())])
        store.commit([MetadataWrite("topic/t", None)])
        store.commit([MetadataWrite("producer-ids", b"1000")])
        store.commit([MetadataWrite(f"deleted-topic/{ID.hex()}", encoded_deletion("t", [TWO]))])
        await copy.until(lambda: bool(copy.deleted))
        assert told[1:] == [
            Changed(brokers={ONE, TWO}, controller=True),
            Changed(partitions={KEY}),
            Changed(settings={""}),
            Changed(topics={"t"}),
            Changed(granted=True),
            Changed(deleted={ID}),
        ]
        assert list(copy.brokers) == [TWO]
        assert copy.controller is not None
        assert copy.controller[:2] == (TWO, "1")
        assert copy.partitions[KEY].version == version
        assert copy.settings == {"": {"a": "1"}}
        assert copy.topics == {}
        assert copy.deleted[ID].brokers == (TWO,)
        assert copy.granted == Granted(producer_ids=1000)

    in_virtual_time(main)


def test_a_subscriber_sees_the_copy_as_that_commit_has_left_it() -> None:
    async def main() -> None:
        store = SimStore()
        copy = ClusterState(store.session())
        seen: list[tuple[int, int]] = []
        copy.subscribe(
            lambda changed: seen.append((copy.revision, copy.partitions[KEY].state.leader_epoch))
        )
        store.commit([MetadataWrite(KEY.text, state(0))])
        await copy.start()
        in_background(copy.run())
        for epoch in (1, 2, 3):
            store.commit([MetadataWrite(KEY.text, state(epoch))])
        await copy.until(lambda: copy.revision == store.revision)
        assert seen == [(1, 0), (2, 1), (3, 2), (4, 3)]

    in_virtual_time(main)


def test_nobody_waits_for_news_once_the_store_is_not_followed_any_more() -> None:
    async def main() -> None:
        store = SimStore()
        copy = ClusterState(store.session())
        await copy.start()
        following = asyncio.ensure_future(copy.run())
        waiting = asyncio.ensure_future(copy.until(lambda: False))
        await asyncio.sleep(1)
        assert not waiting.done()
        following.cancel()
        with pytest.raises(StorageError, match="does not follow the metadata any more"):
            await waiting
        with pytest.raises(StorageError, match="does not follow the metadata any more"):
            await copy.until(lambda: False)
        await copy.until(lambda: True)
        began = asyncio.get_running_loop().time()
        await copy.until_soon(lambda: False)
        assert asyncio.get_running_loop().time() - began < 0.1

    in_virtual_time(main)


def test_the_highest_numbers_that_were_granted_are_known_though_the_store_forgets_them() -> None:
    # E7, E17
    async def main() -> None:
        store = SimStore()
        store.commit([MetadataWrite("coordinator-epoch/x-0", b"7")])
        copy, told = await followed(store)
        assert copy.granted == Granted(0, 7)
        store.commit([MetadataWrite("coordinator-epoch/x-1", b"6")])
        most = MetadataWrite("producer-ids", b"%d" % (2**63 - 1))
        store.commit([most, MetadataWrite("coordinator-epoch/x-1", b"7")])
        store.commit([MetadataWrite("producer-ids", b"1000")])
        store.commit([MetadataWrite("coordinator-epoch/x-0", None)])
        store.commit([MetadataWrite("coordinator-epoch/y-0", b"%d" % 2**30)])
        await copy.until(lambda: copy.revision == store.revision)
        assert copy.granted == Granted(2**63 - 1, 2**30)
        assert [each.granted for each in told] == [True, False, True, False, False, True]

    in_virtual_time(main)


@pytest.mark.parametrize("seed", range(20))
def test_the_copy_is_the_store_whatever_is_late_or_forgotten(seed: int) -> None:
    random = Random(seed)
    values = {
        "broker/1": [broker(ONE), broker(ONE, "2"), b"garbage"],
        "broker/2": [broker(TWO), broker(ONE)],
        "controller": [encoded_controller(ONE, "1"), encoded_controller(TWO, "1")],
        "topic/a": [topic("a"), topic("a", 2), b"[]"],
        KEY.text: [state(0), state(1), b""],
        "settings/broker/": [b'{"a": "1"}', b"{}"],
        "producer-ids": [b"1000", b"2000", b"%d" % (2**63 - 1)],
    }

    async def main() -> None:
        store = SimStore()
        session = store.session()
        session.lateness = lambda: random.choice([0, 0, 0.1, 5.0])
        copy = ClusterState(session)
        await copy.start()
        in_background(copy.run())
        for _ in range(100):
            keys = random.sample(sorted(values), random.randint(1, 3))
            store.commit([MetadataWrite(k, random.choice([None, *values[k]])) for k in keys])
            if random.random() < 0.1:
                store.compact()
            if random.random() < 0.05:
                session.cut()
            if random.random() < 0.1:
                session.heal()
            await asyncio.sleep(random.choice([0, 0.2, 3.0]))
        session.heal()
        store.commit([MetadataWrite("settings/broker/", b'{"end": "1"}')])
        await copy.until(lambda: copy.settings.get("") == {"end": "1"})
        fresh = ClusterState(store.session())
        await fresh.start()
        assert contents(copy) == contents(fresh)

    in_virtual_time(main)


def test_what_was_missed_is_told_when_the_history_is_lost() -> None:
    async def main() -> None:
        store = SimStore()
        store.commit([MetadataWrite(f"broker/{n}", broker(n)) for n in (ONE, TWO)])
        store.commit([MetadataWrite(KEY.text, state())])
        session = store.session()
        copy, told = ClusterState(session), list[Changed]()
        copy.subscribe(told.append)
        await copy.start()
        store.commit([MetadataWrite("broker/1", None)])
        store.commit([MetadataWrite("broker/2", broker(TWO, "2"))])
        store.commit([MetadataWrite("topic/t", topic("t"))])
        store.compact()
        in_background(copy.run())
        await copy.until(lambda: copy.revision == store.revision)
        assert told[1:] == [Changed(brokers={ONE, TWO}, topics={"t"})]
        assert list(copy.brokers) == [TWO]
        assert copy.brokers[TWO].registration.incarnation == "2"
        store.commit([MetadataWrite("topic/t", None)])
        await copy.until(lambda: not copy.topics)

    in_virtual_time(main)


def test_a_store_out_of_reach_is_read_again_when_it_is_back() -> None:
    async def main() -> None:
        store = SimStore()
        session = store.session()
        copy = ClusterState(session)
        await copy.start()
        store.commit([MetadataWrite("topic/t", topic("t"))])
        store.compact()
        session.cut()
        in_background(copy.run())
        await asyncio.sleep(60)
        assert not copy.topics
        session.heal()
        await within(5, copy.until(lambda: "t" in copy.topics))

    in_virtual_time(main)


GARBAGE = {
    "broker/1": [b"\xff", b"{}", b"[]", b"null", broker(TWO)],
    "broker/x": [broker(ONE)],
    "broker/01": [broker(ONE)],
    "controller": [b"", b"[1]", b'{"node_id": "one", "incarnation": ""}'],
    "topic/t": [b"", b"{}", b"[]", b'{"id": 7, "partitions": 1, "settings": {}}'],
    "topic/large": [topic("large", 10**9), topic("large", 0)],
    "topic/odd": [
        b'{"id": "%s", "partitions": "1", "settings": {}}' % (b"00" * 16),
        b'{"id": "00", "partitions": 1, "settings": {}}',
        b'{"id": "%s", "partitions": 1, "settings": {"a": 1}}' % (b"00" * 16),
        b'{"id": "%s", "partitions": 1, "settings": 7}' % (b"00" * 16),
    ],
    "topic/../x": [topic("../x")],
    "topic/": [topic("")],
    "settings/broker/": [b"[]", b"7", b"{"],
    KEY.text: [b"{}", b"7", PartitionState((), ONE, LeaderEpoch(0), ()).encode()],
    f"partition/{ID.hex()}/-1": [state()],
    f"partition/{ID.hex()}": [state()],
    "partition/00/0": [state()],
    f"deleted-topic/{ID.hex()}": [b"name", b"{}", b'{"name": "t", "brokers": 7}'],
    "deleted-topic/zz": [encoded_deletion("t", [ONE])],
    "producer-ids": [b"\xff", b"", b"-1", b"%d" % 2**63],
    "coordinator-epoch/x-0": [b"\xff", b"-1", b"%d" % (2**30 + 1)],
}


@pytest.mark.parametrize(("key", "value"), [(k, v) for k, all_ in GARBAGE.items() for v in all_])
def test_a_value_that_cannot_be_read_is_named_and_left_out(
    key: str, value: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        store = SimStore()
        store.commit([MetadataWrite(key, value)])
        copy, _ = await followed(store)
        store.commit([MetadataWrite("topic/other", topic("other"))])
        await copy.until(lambda: "other" in copy.topics)
        assert contents(copy)[1:] == ({}, None, copy.topics, {}, {}, {})
        assert copy.granted == Granted()
        assert list(copy.topics) == ["other"]
        assert copy.versions[key] == 1
        assert f"metadata key {key} cannot be read" in caplog.text
        store.commit([MetadataWrite(key, None)])
        await copy.until(lambda: key not in copy.versions)

    in_virtual_time(main)


def test_keys_of_others_are_nothing_to_name(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        store = SimStore()
        for key in ("cluster", "somebody's"):
            store.commit([MetadataWrite(key, b"\xff")])
        copy, told = await followed(store)
        assert contents(copy)[1:] == ({}, None, {}, {}, {}, {})
        assert told == [Changed()]
        assert not caplog.records

    in_virtual_time(main)
