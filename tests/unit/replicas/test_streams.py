"""Followers and leaders over connections in memory: the same bytes, and nothing counted early."""

import asyncio
import logging
from collections.abc import Callable

import pytest

from fencelog.errors import StorageError
from fencelog.log.ownership import Owner
from fencelog.types import NodeId, Offset
from fencelog.wire.messages.replica_fetch import FetchedReplica, ReplicaFetchResponse
from fencelog_sim.world.disk import Loss
from tests.support.log import NOW_MS
from tests.support.partition import scenario
from tests.unit.replicas.hosts import Host, key, running, until

pytestmark = pytest.mark.slow  # brokers that wait for each other


@scenario
async def test_a_follower_catches_up_and_commits() -> None:
    async with running() as (leader, follower):
        leader.lead(1)
        for number in range(50):
            leader.produce(b"%d" % number)
        follower.follow(1, 1)
        await until(lambda: leader.partition().log.high_watermark == 50)
        await until(lambda: follower.partition().log.high_watermark == 50)
        assert follower.bytes_of() == leader.bytes_of() != b""


@scenario
async def test_what_comes_later_follows_at_once() -> None:
    async with running(3) as (leader, second, third):
        leader.lead(1)
        second.follow(1, 1)
        third.follow(1, 1)
        for number in range(20):
            end = leader.produce(b"%d" % number).end_offset
            await asyncio.wait_for(leader.partition().committed(end), 5)
        assert second.bytes_of() == third.bytes_of() == leader.bytes_of()


@scenario
async def test_a_stream_that_begins_where_one_has_ended_gets_its_own_answers() -> None:  # F2
    async with running(2, partitions=2) as (leader, follower):
        leader.lead(1, index=1)
        follower.follow(1, 1, 1)
        await until(lambda: leader.led.get(key(1)).progress.has_heard(2))
        await until(lambda: bool(follower.wires[0]._waiting))
        # The last partition is followed no more; another one is at once.
        follower.forget(key(1))
        ended = follower.tasks.pop()
        ended.cancel()
        await asyncio.wait([ended])
        follower.fetchers.clear()
        follower.follow(1, 1)
        await until(lambda: any(request.positions for request in follower.wires[-1].requests))
        leader.lead(1)
        leader.produce(b"x")
        await until(lambda: follower.partition().log.high_watermark == 1)
        assert len(follower.wires) == 2, "what was asked over the first is answered to nobody"


@scenario
async def test_idle_partitions_are_in_no_request() -> None:
    async with running(2, partitions=200) as (leader, follower):
        for index in range(200):
            leader.lead(1, index=index)
            follower.follow(1, 1, index)
        await until(lambda: all(leader.led.get(key(i)).progress.has_heard(2) for i in range(200)))
        (wire,) = follower.wires
        await until(lambda: not wire.requests[-1].positions)
        before = len(wire.requests)
        leader.produce(b"x", index=7)
        await until(lambda: leader.partition(7).log.high_watermark == 1)
        named = {each.partition for request in wire.requests[before:] for each in request.positions}
        assert named == {7}


@scenario
async def test_the_log_is_cut_at_the_fork_and_follows_the_new_leader() -> None:
    async with running(3) as (one, two, three):
        one.lead(1)
        two.follow(1, 1)
        three.follow(1, 1)
        for number in range(10):
            one.produce(b"%d" % number)
        await until(lambda: one.partition().log.high_watermark == 10)
        await until(lambda: two.partition().log.high_watermark == 10)
        two.forget(key())
        three.forget(key())
        for number in range(5):  # only the first has these
            one.produce(b"lost %d" % number)
        await until(lambda: one.partition().log.log_end_offset == 15)
        one.led.resign(key())
        two.lead(2)
        one.follow(2, 2)
        three.follow(2, 2)
        for number in range(7):
            two.produce(b"new %d" % number)
        await until(lambda: two.partition().log.high_watermark == 17)
        assert one.cuts == [10]
        await until(lambda: one.partition().log.high_watermark == 17)
        assert one.bytes_of() == two.bytes_of() == three.bytes_of()


@scenario
async def test_nothing_committed_is_cut() -> None:
    async with running() as (one, two):
        one.lead(1)
        two.follow(1, 1)
        for _ in range(10):
            one.produce(b"x")
        await until(lambda: two.partition().log.high_watermark == 10)
        # The other one comes back with an empty disk, and is believed to lead.
        await one.stop()
        empty = Host(one.node, one.hosts)
        one.hosts[one.node] = empty
        await empty.open()
        empty.lead(2)
        empty.produce(b"y")
        two.follow(1, 2)
        await until(lambda: two.offline)
        assert "below 10 is committed" in two.offline[key()]
        assert two.partition().log.log_end_offset == 10


@scenario
async def test_in_fsync_mode_only_what_is_synced_is_acknowledged() -> None:
    async with running(2, "fsync") as (leader, follower):
        leader.lead(1)
        follower.follow(1, 1)
        syncs = asyncio.Event()
        sync = follower.partition()._store.sync

        async def held() -> None:
            await syncs.wait()
            await sync()

        follower.partition()._store.sync = held
        leader.produce(b"x")
        await until(lambda: follower.partition().log.log_end_offset == 1)
        await until(lambda: leader.led.get(key()).progress._followers[2].fetch_end == 1)
        assert leader.partition().log.high_watermark == 0
        syncs.set()
        await until(lambda: leader.partition().log.high_watermark == 1)


async def after_a_power_cut(host: Host) -> Host:
    """Cut the power of a host, and return what it is afterwards, with its replica open."""
    await host.stop()
    again = Host(host.node, host.hosts, host.durability, host.disk.power_loss(Loss.ALL))
    host.hosts[again.node] = again
    await again.reopen(key())
    return again


@scenario
async def test_a_follower_that_crashes_before_its_sync_fetches_again() -> None:
    async with running(2, "fsync") as (leader, follower):
        leader.lead(1)
        follower.follow(1, 1)
        leader.produce(b"a")
        await until(lambda: leader.partition().log.high_watermark == 1)

        async def never() -> None:
            await asyncio.Event().wait()

        follower.partition()._store.sync = never
        leader.produce(b"b")
        await until(lambda: follower.partition().log.log_end_offset == 2)
        again = await after_a_power_cut(follower)
        assert again.partition().log.log_end_offset == 1
        assert leader.partition().log.high_watermark == 1
        again.follow(1, 1)
        await until(lambda: leader.partition().log.high_watermark == 2)
        assert again.bytes_of() == leader.bytes_of()
        await again.stop()


@pytest.mark.parametrize("what", ["owner", "seal", "record"])
@scenario
async def test_owners_and_seals_are_synced_by_each_replica(what: str) -> None:  # O8, O9, R2
    owner = Owner(None, 1, "s1", None, "me", is_live=True)
    async with running(2, "os") as (leader, follower):
        leader.lead(1)
        follower.follow(1, 1)
        match what:
            case "owner":
                leader.partition().set_owner(owner, now_ms=NOW_MS)
            case "seal":
                leader.partition().seal(now_ms=NOW_MS)
            case _:
                leader.produce(b"a")
        await until(lambda: leader.partition().log.high_watermark == 1)
        again = await after_a_power_cut(follower)
        assert again.partition().log.log_end_offset == (0 if what == "record" else 1)
        assert again.partition().log.owner(None) == (owner if what == "owner" else None)
        await again.stop()


@scenario
async def test_a_replica_below_the_leaders_start_begins_with_its_snapshot() -> None:
    async with running() as (leader, follower):
        leader.lead(1, isr=[1])
        leader.produce(b"a", producer_id=7, sequence=0)
        leader.produce(b"b", producer_id=8, sequence=0)
        await until(lambda: leader.partition().log.high_watermark == 2)
        leader.partition().advance_start(Offset(2))
        leader.produce(b"c", producer_id=8, sequence=1)
        follower.follow(1, 1)
        await until(lambda: follower.partition().log.log_end_offset == 3)
        assert follower.partition().log.log_start_offset == 2
        known = {
            each.producer_id: each.last_sequence for each in follower.partition().log.producers()
        }
        assert known == {7: 0, 8: 1}  # E4


@scenario
async def test_a_replica_begins_with_the_batch_that_holds_the_leaders_start() -> None:
    async with running() as (leader, follower):
        leader.lead(1, isr=[1])
        leader.produce(b"a", producer_id=7, sequence=0)
        leader.produce(b"b", b"c", b"d", producer_id=7, sequence=1)
        await until(lambda: leader.partition().log.high_watermark == 4)
        leader.partition().advance_start(Offset(2))
        follower.follow(1, 1)
        await until(lambda: follower.partition().log.high_watermark == 4)
        await until(lambda: follower.partition().log.log_start_offset == 2)
        assert follower.partition().log.log_end_offset == 4
        known = [each.last_sequence for each in follower.partition().log.producers()]
        assert known == [3]  # E4
        assert leader.bytes_of().endswith(follower.bytes_of())


@scenario
async def test_a_follower_goes_on_where_the_batch_begins_that_holds_the_leaders_start() -> None:
    async with running() as (leader, follower):
        leader.lead(1)
        follower.follow(1, 1)
        leader.produce(b"a")
        await until(lambda: follower.partition().log.high_watermark == 1)
        before = follower.partition()
        follower.forget(key())
        leader.lead(2, isr=[1])
        leader.produce(b"b", b"c", b"d")
        await until(lambda: leader.partition().log.high_watermark == 4)
        leader.partition().advance_start(Offset(2))
        follower.follow(1, 2)  # its last batch is not of the epoch of the leader's first one
        await until(lambda: follower.partition().log.high_watermark == 4)
        begun = follower.partition()
        assert begun is not before
        follower.forget(key())
        leader.produce(b"e", b"f")
        await until(lambda: leader.partition().log.high_watermark == 6)
        leader.partition().advance_start(Offset(5))
        follower.follow(1, 2)
        await until(lambda: follower.partition().log.high_watermark == 6)
        await until(lambda: begun.log.log_start_offset == 5)
        assert follower.partition() is begun
        assert leader.bytes_of().endswith(follower.bytes_of())


@scenario
async def test_what_another_leader_wrote_below_the_leaders_start_is_not_kept() -> None:  # F7
    async with running(3) as (one, two, three):
        one.lead(1, isr=[1])
        two.lead(2, isr=[2])
        one.produce(b"lost", producer_id=7, sequence=0)  # the second never had it
        await until(lambda: one.partition().durable_end == 1)
        one.led.resign(key())
        two.produce(b"a", b"b", b"c", producer_id=8, sequence=0)
        await until(lambda: two.partition().log.high_watermark == 3)
        two.partition().advance_start(Offset(2))
        before = one.partition()
        before.log.high_watermark = Offset(0)
        one.follow(2, 2)
        three.follow(2, 2)
        for each in (one, three):
            await until(lambda each=each: each.partition().log.high_watermark == 3)
            assert [one.producer_id for one in each.partition().log.producers()] == [8]
            assert each.bytes_of() == two.bytes_of()
        assert not one.offline


@pytest.mark.parametrize("epoch", [2, 3])
def test_who_ends_at_the_leaders_start_with_what_another_wrote_begins_anew(epoch: int) -> None:
    """What is below the log start is gone, but its producers are known (E4).

    ``epoch``: that of the first record that is left; the one before it is of epoch 2.
    """

    @scenario
    async def test() -> None:  # F7
        async with running() as (one, two):
            one.lead(1)
            two.follow(1, 1)
            one.produce(b"a", producer_id=6, sequence=0)
            await until(lambda: two.partition().log.high_watermark == 1)
            two.forget(key())
            one.produce(b"lost", producer_id=7, sequence=0)  # only the first has it
            await until(lambda: one.partition().durable_end == 2)
            one.led.resign(key())
            two.lead(2, isr=[2])
            two.produce(b"b", producer_id=8, sequence=0)
            if epoch > 2:
                two.lead(epoch, isr=[2])
            two.produce(b"c", producer_id=8, sequence=1)
            await until(lambda: two.partition().log.high_watermark == 3)
            two.partition().advance_start(Offset(2))
            one.follow(2, epoch)
            await until(lambda: one.partition().log.high_watermark == 3)
            assert {each.producer_id for each in one.partition().log.producers()} == {6, 8}
            assert not one.offline

    test()


@scenario
async def test_a_stream_whose_follower_has_left_the_isr_leaves_no_reader_behind() -> None:  # I1
    async with running(2) as (leader, follower):
        progress = leader.lead(1)
        follower.follow(1, 1)
        await until(lambda: progress.has_heard(NodeId(2)))
        (wire,) = follower.wires
        await until(lambda: bool(wire._waiting))
        follower.is_up = False
        wire._stream.ask = lambda *_: None  # the follower is paused: it sends nothing more
        progress.settled((NodeId(1),))
        leader.led.changed(key())
        await until(lambda: not wire._stream._session.partitions())  # it is to speak again
        wire.close("it is gone")
        await until(lambda: not leader.partition()._purgatory._readers)


@scenario
async def test_a_failed_partition_does_not_stop_the_others() -> None:
    async with running(2, partitions=2) as (leader, follower):
        for index in range(2):
            leader.lead(1, index=index)
            follower.follow(1, 1, index)
        follower.partition(0).fail(StorageError("broken"))
        leader.produce(b"x", index=0)
        leader.produce(b"y", index=1)
        await until(lambda: leader.partition(1).log.high_watermark == 1)
        assert leader.partition(0).log.high_watermark == 0


# -- what a leader must not be believed -----------------------------------------------------------


def too_many(body: bytes) -> bytes:
    """An answer that names a hundred thousand partitions."""
    del body
    return ReplicaFetchResponse(partitions=[FetchedReplica()] * 100_000).write(0)


def too_long(body: bytes) -> bytes:
    """An answer with more records than it says."""
    return body + b"more"


def cut_short(body: bytes) -> bytes:
    return body[:-1]


@pytest.mark.parametrize("tamper", [too_many, too_long, cut_short])
def test_an_answer_that_is_none_closes_the_connection_and_nothing_else(
    tamper: Callable[[bytes], bytes], caplog: pytest.LogCaptureFixture
) -> None:
    @scenario
    async def test() -> None:
        async with running() as (leader, follower):
            leader.tamper = tamper
            leader.lead(1)
            leader.produce(b"x")
            follower.follow(1, 1)
            await until(lambda: len(follower.wires) > 1)
            assert follower.wires[0].closed_by.startswith("malformed response")
            assert follower.partition().log.log_end_offset == 0
            leader.tamper = bytes
            await until(lambda: leader.partition().log.high_watermark == 1)

    test()
    assert "replica fetches from broker 1" in caplog.text


@pytest.mark.parametrize("what", ["crc", "gap", "epoch"])
def test_records_that_do_not_fit_are_refused_and_nothing_else(
    what: str, caplog: pytest.LogCaptureFixture
) -> None:
    @scenario
    async def test() -> None:
        caplog.set_level(logging.WARNING)
        async with running(2, partitions=2) as (leader, follower):
            marked = b""

            def tamper(body: bytes) -> bytes:
                place = body.find(marked)
                if place < 0:
                    return body
                changed = bytearray(body)
                if what == "crc":
                    changed[place + 60] ^= 1
                elif what == "gap":
                    changed[place + 7] = 9
                else:
                    changed[place + 15] = 77
                return bytes(changed)

            for index in range(2):
                leader.lead(1, index=index)
            leader.produce(b"first")
            await until(leader.bytes_of)
            marked = leader.bytes_of()
            leader.tamper = tamper
            for index in range(2):
                follower.follow(1, 1, index)
            leader.produce(b"other", index=1)
            await until(lambda: leader.partition(1).log.high_watermark == 1)
            await until(lambda: "at offset" in caplog.text)
            assert follower.partition().log.log_end_offset == 0
            leader.tamper = bytes
            await until(lambda: leader.partition().log.high_watermark == 1)

    test()
    assert "t-0: broker 1, epoch 1: at offset" in caplog.text
