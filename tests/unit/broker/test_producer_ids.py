"""Producer ids are unique, also after a loss of data."""

import asyncio
import itertools
from functools import partial
from pathlib import Path

import pytest

from fencelog.adapters.sqlite_metadata import SqliteMetadata
from fencelog.broker.coordinators.coordinator_epochs import CoordinatorEpochs
from fencelog.broker.coordinators.producer_ids import BLOCK_SIZE, ProducerIds
from fencelog.broker.metadata.granted import COORDINATOR_EPOCH_PREFIX, PRODUCER_ID_KEY
from fencelog.errors import ErrorCode, NotLeaderError, StorageError
from fencelog.log import layout
from fencelog.ports import MetadataWrite
from fencelog.types import ProducerId, TopicPartition
from fencelog_sim.world.disk import SimDisk
from fencelog_sim.world.gate import Lost
from fencelog_sim.world.metadata import SimMetadata, SimStore
from tests.support.node import Peer, World, life_in_a_cluster, until
from tests.support.transactions import Producer, Run


def taken_in_a_life(path: Path, count: int, *, highest_seen: int = -1) -> list[int]:
    async def life() -> list[int]:
        store = await SqliteMetadata.open(path)
        ids = ProducerIds(store, None)
        await ids.start_above(ProducerId(highest_seen))
        taken = [int(await ids.take()) for _ in range(count)]
        await store.close()
        return taken

    return asyncio.run(life())


def test_producer_ids_are_unique_over_blocks_and_restarts(tmp_path: Path) -> None:  # E7
    path = tmp_path / "metadata.sqlite"
    taken = [*taken_in_a_life(path, BLOCK_SIZE + 5), *taken_in_a_life(path, 5)]
    assert len(set(taken)) == len(taken)


def test_no_id_that_a_log_has_seen_is_handed_out_again(tmp_path: Path) -> None:  # E7
    # The metadata was lost or restored from an older copy; a log still knows producer 5000.
    assert taken_in_a_life(tmp_path / "metadata.sqlite", 3, highest_seen=5000) == [5001, 5002, 5003]


@pytest.mark.parametrize("highest_seen", [BLOCK_SIZE - 1, BLOCK_SIZE, BLOCK_SIZE + 1])
def test_an_id_at_the_stored_boundary_is_not_handed_out_again(
    tmp_path: Path, highest_seen: int
) -> None:  # E7
    path = tmp_path / "metadata.sqlite"
    assert taken_in_a_life(path, 1) == [0]  # the store now has BLOCK_SIZE: the next block's first
    first = max(BLOCK_SIZE, highest_seen + 1)
    assert taken_in_a_life(path, 2, highest_seen=highest_seen) == [first, first + 1]


async def test_a_producer_without_a_free_id_gets_a_retriable_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # D2, E7
    async with World(tmp_path).node() as node, Peer.of(node) as peer:
        ids = node.broker.producer_ids

        async def full(key: str, value: bytes, *, expected_version: int) -> int | None:
            raise StorageError("a test")

        with monkeypatch.context() as broken:
            broken.setattr(ids._store, "put", full)
            joined = await Run(peer).join()
            assert joined.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
            assert await Producer(peer).init() is ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert (await Run(peer).join()).error_code == ErrorCode.NONE


@pytest.mark.parametrize("lost", [Lost(is_stored=False), Lost(is_stored=True)])
async def test_two_brokers_share_no_id_where_answers_are_lost(lost: Lost) -> None:  # E7
    store = SimStore()
    one, other = store.session(), store.session()
    lose_every_second_answer(one, lost)
    ids = [ProducerIds(one, None), ProducerIds(other, None)]
    taken = [int(await each.take()) for _ in range(BLOCK_SIZE + 2) for each in ids]
    assert len(set(taken)) == len(taken)


@pytest.mark.parametrize("lost", [Lost(is_stored=False), Lost(is_stored=True)])
async def test_two_brokers_share_no_coordinator_epoch_where_answers_are_lost(
    lost: Lost,
) -> None:  # E17
    store = SimStore()
    one, other = store.session(), store.session()
    lose_every_second_answer(one, lost)
    shard = TopicPartition("__transaction_state", 0)
    brokers = [CoordinatorEpochs(one), CoordinatorEpochs(other)]
    epochs = [await each.next(shard) for _ in range(4) for each in brokers]
    assert epochs == sorted(set(epochs))


async def test_no_coordinator_epoch_is_granted_again_where_etcd_is_of_an_older_time() -> None:
    # E17: a marker in a lower epoch than before would be refused.
    disk, store = SimDisk(), SimStore()
    key = f"{COORDINATOR_EPOCH_PREFIX}__transaction_state-0"
    store.commit([MetadataWrite(key, b"7")])
    async with life_in_a_cluster(disk, store):
        await until(lambda: b"epoch=7\n" in disk.contents(layout.META_PROPERTIES), "it is kept")
    store.commit([MetadataWrite(key, b"3")])
    async with life_in_a_cluster(disk, store) as node, Peer.of(node) as peer:
        assert await Producer(peer).init() is ErrorCode.NONE
        cell = await store.session().get(key)
        assert cell is not None
        assert int(cell[0]) == 8


async def test_an_unreadable_store_hands_out_no_id_that_is_known_here() -> None:  # E7
    store = SimStore()
    store.commit([MetadataWrite(PRODUCER_ID_KEY, b"somebody's")])
    ids = ProducerIds(store.session(), None)
    with pytest.raises(StorageError, match="key producer-ids cannot be read"):
        await ids.start_above(ProducerId(4999))
    with pytest.raises(NotLeaderError, match="cannot be read"):
        await ids.take()
    store.commit([MetadataWrite(PRODUCER_ID_KEY, b"1000")])
    assert await ids.take() == 5000


def is_kept(disk: SimDisk, reserved: int) -> bool:
    return b"ids=%d\n" % reserved in disk.contents(layout.META_PROPERTIES)


@pytest.mark.parametrize("lives", [1, 2])
async def test_no_id_is_handed_out_again_where_etcd_is_of_an_older_time(lives: int) -> None:  # E7
    disk, store = SimDisk(), SimStore()
    taken, end = list[int](), 0
    for _ in range(lives):
        async with life_in_a_cluster(disk, store) as node:
            taken.append(int(await node.broker.producer_ids.take()))
            # Another broker's, which may come back later than this one.
            taken.append(int(await ProducerIds(store.session(), None).take()))
            end = taken[-1] + BLOCK_SIZE
            await until(partial(is_kept, disk, end), "the data directory has it")
        store.commit([MetadataWrite(PRODUCER_ID_KEY, None)])
    async with life_in_a_cluster(disk, store) as node:
        cell = await store.session().get(PRODUCER_ID_KEY)
        assert cell is not None, "another broker takes no such id from here on"
        assert int(cell[0]) == end + BLOCK_SIZE
        assert await node.broker.producer_ids.take() == end
    assert sorted({*taken, end}) == [*taken, end]


def lose_every_second_answer(session: SimMetadata, lost: Lost) -> None:
    answers = itertools.cycle([lost, None])
    session.lose = lambda _verb, _key: next(answers)
