"""A follower with much to take, and one whose leader does not know of it yet."""

import asyncio
from itertools import pairwise

import pytest

from fencelog.broker.network.time_slices import ITEMS_PER_SLICE
from fencelog.broker.replicas.fetcher import PARTITION_MAX_BYTES, RETRIES_UNTOLD
from fencelog.wire.messages.replica_fetch import ReplicaFetchResponse
from fencelog.wire.primitives import Reader
from tests.support.partition import scenario
from tests.unit.replicas.hosts import key, running, until

pytestmark = pytest.mark.slow  # brokers that wait for each other


@scenario
async def test_many_batches_are_taken_in_time_slices() -> None:
    async with running() as (leader, follower):
        leader.lead(1, isr=[1])
        for number in range(5 * ITEMS_PER_SLICE):
            leader.produce(b"%d" % number)
        await until(lambda: leader.partition().log.high_watermark == 5 * ITEMS_PER_SLICE)
        follower.follow(1, 1)
        log, ends = follower.partition().log, [0]
        while ends[-1] < 5 * ITEMS_PER_SLICE:
            await asyncio.sleep(0)  # an iteration of the loop
            ends.append(log.log_end_offset)
        assert max(after - before for before, after in pairwise(ends)) == ITEMS_PER_SLICE
        await until(lambda: log.high_watermark == ends[-1])
        assert follower.bytes_of() == leader.bytes_of()


@scenario
async def test_who_is_given_up_between_two_time_slices_takes_nothing_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # F7
    async with running() as (leader, follower):
        leader.lead(1, isr=[1])
        for number in range(3 * ITEMS_PER_SLICE):
            leader.produce(b"%d" % number)
        await until(lambda: leader.partition().log.high_watermark == 3 * ITEMS_PER_SLICE)
        next_slice, given_up = follower.time_slices.next, asyncio.Event()

        async def give_up() -> None:
            follower.forget(key())
            await next_slice()
            given_up.set()

        monkeypatch.setattr(follower.time_slices, "next", give_up)
        follower.follow(1, 1)
        log = follower.partition().log
        await given_up.wait()
        await asyncio.sleep(0)  # what takes the answer goes on
        monkeypatch.undo()
        assert (log.log_end_offset, log.high_watermark) == (ITEMS_PER_SLICE, 0)
        follower.follow(1, 1)
        await until(lambda: log.high_watermark == 3 * ITEMS_PER_SLICE)
        assert follower.bytes_of() == leader.bytes_of()


@scenario
async def test_who_is_behind_asks_for_more_before_it_has_written() -> None:
    async with running() as (leader, follower):
        leader.lead(1, isr=[1])
        for _ in range(9):
            leader.produce(bytes(PARTITION_MAX_BYTES // 3 - 100))
        await until(lambda: leader.partition().log.high_watermark == 9)
        follower.follow(1, 1)
        await until(lambda: follower.partition().log.high_watermark == 9)
        (wire,) = follower.wires
        asked = [each for request in wire.requests for each in request.positions]
        early = [each.fetch_offset for each in asked if each.durable_end < each.fetch_offset]
        assert early == [3, 6], "at the end there is nothing to ask for"
        assert follower.bytes_of() == leader.bytes_of()


def test_a_leader_that_does_not_know_of_it_for_long_is_worth_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    @scenario
    async def test() -> None:
        async with running() as (leader, follower):
            refusals = 0

            def lead_late(body: bytes) -> bytes:
                nonlocal refusals
                answer = ReplicaFetchResponse.read_from(Reader(body), 0)
                refusals += any(each.error_code for each in answer.partitions)
                if refusals == RETRIES_UNTOLD:
                    leader.lead(1)
                return body

            leader.tamper = lead_late
            follower.follow(1, 1)
            for number in range(2):
                await until(lambda: leader.led.get(key()) is not None)
                leader.produce(b"x")
                end = number + 1
                await until(lambda end=end: leader.partition().log.high_watermark == end)
                assert refusals == RETRIES_UNTOLD
                refusals = 0
                leader.led.resign(key())
            leader.tamper = bytes
            assert not caplog.records
            await until(lambda: caplog.records)

    test()
    assert caplog.records[0].getMessage() == (
        "t-0: broker 1, epoch 1: it does not lead the partition"
    )
