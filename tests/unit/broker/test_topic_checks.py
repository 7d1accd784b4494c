"""Topics that ask more of a produced batch: a codec of their own, more in-sync replicas."""

import asyncio
import threading
import zlib
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Any

import pytest

from fencelog.broker.handlers.configs import Operation
from fencelog.broker.handlers.record_keys import RECORDS_AT_ONCE
from fencelog.broker.partitions import decompression
from fencelog.errors import ErrorCode
from fencelog.types import TopicPartition
from fencelog.wire.batch import (
    HEADER_BYTES,
    BatchHeader,
    Compression,
    attributes,
    check_crc,
    iterate,
    read_header,
    seal,
)
from fencelog.wire.records import RecordToWrite, build_batch
from tests.support.node import Peer, World, batch, until, visible
from tests.support.transactions import Producer
from tests.unit.broker.test_configs import change

ALL, LEADER, NONE = -1, 1, 0
CODECS = {
    "uncompressed": Compression.NONE,
    "gzip": Compression.GZIP,
    "snappy": Compression.SNAPPY,
    "lz4": Compression.LZ4,
    "zstd": Compression.ZSTD,
}


def run(scenario: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(scenario())


def compressed(codec: Compression, *values: bytes, key: bytes | None = None) -> bytearray:
    return build_batch([RecordToWrite(key, value, 1) for value in values], compression=codec)


def bomb(size: int) -> bytearray:
    """A small batch whose gzip holds that many bytes."""
    plain = compressed(Compression.NONE, b"x")
    inside = zlib.compress(bytes(size), wbits=31)
    header = read_header(plain)._replace(attributes=attributes(compression=Compression.GZIP))
    return seal(header, inside)


async def stored(peer: Peer, topic: str = "t") -> list[BatchHeader]:
    """The headers of a partition's batches, whose CRC is checked."""
    fetched = await peer.fetch(topic)
    every = [found for records in fetched.records for found in iterate(records)]
    assert all(check_crc(one) for _, one in every)
    return [header for header, _ in every]


@pytest.mark.parametrize("topics", CODECS)
@pytest.mark.parametrize("sent", list(Compression))
def test_a_batch_is_stored_in_the_codec_of_its_topic(
    world: World, topics: str, sent: Compression
) -> None:
    async def scenario() -> None:
        async with world.node() as node, Peer.of(node) as peer:
            await peer.create_topic("t", compression_type=topics)
            produced = await peer.produce("t", compressed(sent, b"a" * 500, b"b"))
            assert (produced.error, produced.base_offset) == (ErrorCode.NONE, 0)
            assert [header.compression for header in await stored(peer)] == [CODECS[topics]]
            assert visible(await peer.fetch("t")) == [(0, "a" * 500), (1, "b")]

    run(scenario)


def test_a_topic_of_producers_codecs_keeps_each_batch_as_it_is(world: World) -> None:
    async def scenario() -> None:
        async with world.node() as node, Peer.of(node) as peer:
            await peer.create_topic("t")
            sent = compressed(Compression.GZIP, b"a")
            await peer.produce("t", sent)
            fetched = await peer.fetch("t")
            assert bytes(fetched.records[0])[HEADER_BYTES:] == sent[HEADER_BYTES:]

    run(scenario)


def test_pipelined_batches_keep_their_order_and_sequences(world: World) -> None:  # E3, E13
    async def scenario() -> None:
        async with world.node() as node, Peer.of(node) as peer:
            await peer.create_topic("t", compression_type="zstd")
            for sequence in range(20):
                peer.send_produce(
                    "t", batch(str(sequence), producer_id=7, epoch=0, sequence=sequence)
                )
            produced = [await peer.produced() for _ in range(20)]
            assert [one.base_offset for one in produced] == list(range(20))
            again = await peer.produce("t", batch("19", producer_id=7, epoch=0, sequence=19))
            assert (again.error, again.base_offset) == (ErrorCode.NONE, 19)  # E4
            headers = await stored(peer)
            assert [header.base_sequence for header in headers] == list(range(20))
            assert {header.compression for header in headers} == {Compression.ZSTD}

    run(scenario)


def test_others_are_served_while_a_batch_is_recompressed(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, released = threading.Event(), threading.Event()
    recompress = decompression.recompressed

    def held(*arguments: Any) -> tuple[BatchHeader, memoryview]:
        begun.set()
        assert released.wait(10)
        return recompress(*arguments)

    monkeypatch.setattr(decompression, "recompressed", held)

    async def scenario() -> None:
        async with world.node() as node, Peer.of(node) as peer, Peer.of(node) as other:
            await peer.create_topic("t", compression_type="lz4")
            await peer.create_topic("plain")
            peer.send_produce("t", batch("first"))
            await until(begun.is_set, "recompression has begun")
            assert (await other.produce("plain", batch("x"))).error is ErrorCode.NONE
            assert visible(await other.fetch("t")) == []
            released.set()
            assert (await peer.produced()).base_offset == 0

    run(scenario)


def test_two_large_batches_at_a_time_are_decompressed_and_others_are_served(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:  # F4, I1
    begun = threading.Semaphore(0)
    released = threading.Event()
    plain_records = decompression.plain_records

    def held(*arguments: Any) -> bytes:
        begun.release()
        assert released.wait(10)
        return plain_records(*arguments)

    monkeypatch.setattr(decompression, "plain_records", held)
    count = RECORDS_AT_ONCE + 1
    large = compressed(Compression.ZSTD, *[b""] * count, key=b"k")

    async def scenario() -> None:
        async with world.node() as node, AsyncExitStack() as stack:
            several = [
                await stack.enter_async_context(Peer.of(node))
                for _ in range(decompression.CONCURRENT_MAX + 1)
            ]
            other = await stack.enter_async_context(Peer.of(node))
            await other.create_topic("c", cleanup_policy="compact")
            for peer in several:
                peer.send_produce("c", large)
            for _ in range(decompression.CONCURRENT_MAX):
                await until(lambda: begun.acquire(blocking=False), "decompression has begun")
            assert (
                await other.produce("c", compressed(Compression.ZSTD, b"x", key=b"k"))
            ).error is ErrorCode.NONE
            assert not begun.acquire(blocking=False)
            released.set()
            offsets = sorted([(await peer.produced()).base_offset for peer in several])
            assert offsets == [1 + number * count for number in range(len(several))]

    run(scenario)


@pytest.mark.parametrize(("topics", "mebibytes"), [("zstd", 33), ("uncompressed", 2)])
def test_a_batch_that_decompresses_to_too_much_is_refused(
    world: World, topics: str, mebibytes: int
) -> None:
    async def scenario() -> None:
        async with world.node() as node, Peer.of(node) as peer:
            await peer.create_topic("t", compression_type=topics)
            refused = await peer.produce("t", bomb(mebibytes << 20))
            assert refused.error is ErrorCode.MESSAGE_TOO_LARGE
            assert "decompresses to more than" in (refused.error_message or "")
            assert await stored(peer) == []

    run(scenario)


def test_a_batch_that_grows_above_the_limit_is_refused(world: World) -> None:
    async def scenario() -> None:
        async with world.node() as node, Peer.of(node) as peer:
            await peer.create_topic("t", compression_type="uncompressed", max_message_bytes="1000")
            refused = await peer.produce("t", compressed(Compression.GZIP, b"a" * 950))
            assert refused.error is ErrorCode.MESSAGE_TOO_LARGE

    run(scenario)


def test_bytes_of_no_codec_are_refused(world: World) -> None:
    async def scenario() -> None:
        async with world.node() as node, Peer.of(node) as peer:
            await peer.create_topic("t", compression_type="zstd")
            header = read_header(compressed(Compression.GZIP, b"x"))
            refused = await peer.produce("t", seal(header, b"no gzip"))
            assert refused.error is ErrorCode.INVALID_RECORD
            assert await stored(peer) == []

    run(scenario)


def test_a_compacted_topic_with_a_codec_still_asks_for_keys(world: World) -> None:  # F4
    async def scenario() -> None:
        async with world.node() as node, Peer.of(node) as peer:
            await peer.create_topic("t", compression_type="gzip", cleanup_policy="compact")
            refused = await peer.produce("t", compressed(Compression.LZ4, b"keyless"))
            assert refused.error is ErrorCode.INVALID_RECORD
            kept = await peer.produce("t", compressed(Compression.LZ4, b"a", key=b"k"))
            assert kept.error is ErrorCode.NONE
            assert [header.compression for header in await stored(peer)] == [Compression.GZIP]

    run(scenario)


def test_too_few_replicas_refuse_acks_all_and_no_other(world: World) -> None:
    async def scenario() -> None:
        async with world.node() as node, Peer.of(node) as peer:
            await peer.create_topic("t", min_insync_replicas="2")
            refused = await peer.produce("t", batch("all"), acks=ALL)
            assert refused.error is ErrorCode.NOT_ENOUGH_REPLICAS
            assert "min.insync.replicas is 2" in (refused.error_message or "")
            assert (await peer.produce("t", batch("leader"), acks=LEADER)).base_offset == 0
            peer.send_produce("t", batch("none"), acks=NONE)
            assert (await peer.produce("t", batch("after"), acks=LEADER)).base_offset == 2
            step = (Operation.SET, "min.insync.replicas", "1")
            assert await change(peer, step) is ErrorCode.NONE
            assert (await peer.produce("t", batch("all"), acks=ALL)).base_offset == 3

    run(scenario)


@pytest.mark.parametrize("codec", ["gzip", "producer"])
def test_replicas_that_leave_while_a_batch_is_checked_refuse_it(
    world: World, monkeypatch: pytest.MonkeyPatch, codec: str
) -> None:
    async def scenario() -> None:
        async with world.node() as node, Peer.of(node) as peer:
            await peer.create_topic("t", compression_type=codec)
            partition = node.broker.logs.find(TopicPartition("t", 0))

            def shrinks(then: Callable[..., Any]) -> Callable[..., Any]:
                async def meanwhile(*arguments: Any) -> Any:
                    partition.reconfigure(replace(partition.log.config, min_insync_replicas=2))
                    return await then(*arguments)

                return meanwhile

            producer = Producer(peer)
            assert await producer.init() is ErrorCode.NONE
            assert await producer.add("t", 0) is ErrorCode.NONE
            opened = node.broker.decompression.recompressed
            verified = node.broker.leaders.verify
            monkeypatch.setattr(node.broker.decompression, "recompressed", shrinks(opened))
            monkeypatch.setattr(node.broker.leaders, "verify", shrinks(verified))
            if codec == "gzip":
                error = (await peer.produce("t", batch("plain"))).error
            else:
                error = await producer.produce("t", "of a transaction")
            assert error is ErrorCode.NOT_ENOUGH_REPLICAS
            assert partition.log.log_end_offset == 0

    run(scenario)


def test_a_refusal_for_replicas_keeps_the_first_batch_of_a_producer_first(world: World) -> None:
    # E13
    async def scenario() -> None:
        async with world.node() as node, Peer.of(node) as peer:
            await peer.create_topic("t", min_insync_replicas="2")
            first = batch("0", producer_id=7, epoch=0, sequence=0)
            assert (await peer.produce("t", first)).error is ErrorCode.NOT_ENOUGH_REPLICAS
            await change(peer, (Operation.SET, "min.insync.replicas", "1"))
            second = batch("1", producer_id=7, epoch=0, sequence=1)
            refused = await peer.produce("t", second)
            assert refused.error is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
            assert (await peer.produce("t", first)).base_offset == 0
            assert (await peer.produce("t", second)).base_offset == 1

    run(scenario)
