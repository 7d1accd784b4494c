"""Deleted records stay deleted: who may lead next begins where the leader's log does (D4)."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fencelog.broker.replicas.low_watermarks import LowWatermarks
from fencelog.errors import ErrorCode, StorageError
from fencelog.types import NodeId, Offset
from tests.support.partition import scenario
from tests.unit.replicas.hosts import Host, key, running, until


class Stage:
    """A leader of ten records and its followers, of which a test may keep one behind."""

    def __init__(self, hosts: list[Host], low_watermarks: LowWatermarks) -> None:
        self.leader, *self.followers = hosts
        self.low_watermarks = low_watermarks
        self.slow = self.followers[-1]
        self._begin_at = self.slow.begin_at

    def hold(self) -> None:
        self.slow.begin_at = lambda partition, log_start: None  # type: ignore[method-assign]

    def release(self) -> None:
        self.slow.begin_at = self._begin_at  # type: ignore[method-assign]
        self.slow.fetchers[NodeId(1)].moved(self.slow.fetchers[NodeId(1)]._followed[key()])

    def delete(self, offset: int, timeout_s: float = 10) -> "asyncio.Task[ErrorCode]":
        partition = self.leader.partition()
        partition.advance_start(Offset(offset))

        async def reached() -> ErrorCode:
            wanted = {partition: Offset(offset)}
            return (await self.low_watermarks.reached(wanted, timeout_s))[partition]

        return asyncio.create_task(reached())

    @property
    def starts(self) -> list[int]:
        return [each.partition().log.log_start_offset for each in self.followers]


@asynccontextmanager
async def stage(isr: tuple[int, ...] = (1, 2, 3)) -> AsyncIterator[Stage]:
    async with running(3) as hosts:
        leader, *followers = hosts
        low_watermarks = LowWatermarks(leader.led)
        leader.lead(1, isr)
        leader.produce(*[b"%d" % number for number in range(10)])
        for follower in followers:
            follower.follow(1, 1)
        for host in hosts:
            await until(lambda host=host: host.partition().log.high_watermark == 10)
        yield Stage(hosts, low_watermarks)
        assert not low_watermarks._waits


@scenario
async def test_whoever_deletes_records_is_answered_once_all_in_sync_replicas_have() -> None:  # D4
    async with stage() as here:
        here.hold()
        deleting = here.delete(4)
        await until(lambda: here.starts == [4, 0])
        await until(lambda: here.leader.led.get(key()).low_watermark == 0)
        assert not deleting.done()
        here.release()
        assert await deleting is ErrorCode.NONE
        assert here.starts == [4, 4]  # the leader may go now: the next one begins there


@scenario
async def test_a_replica_that_is_not_in_sync_is_not_waited_for() -> None:
    async with stage((1, 2)) as here:
        here.hold()
        assert await here.delete(4) is ErrorCode.NONE
        assert here.starts == [4, 0]


@scenario
async def test_who_leaves_the_in_sync_replicas_is_waited_for_no_more() -> None:
    async with stage() as here:
        here.hold()
        deleting = here.delete(4)
        await until(lambda: here.starts == [4, 0])
        here.leader.led.get(key()).progress.settled((NodeId(1), NodeId(2)))
        here.leader.led.changed(key())
        assert await deleting is ErrorCode.NONE


@scenario
async def test_after_its_deadline_the_request_is_told_so_and_the_log_begins_there() -> None:
    async with stage() as here:
        here.hold()
        assert await here.delete(4, timeout_s=0) is ErrorCode.REQUEST_TIMED_OUT
        assert here.leader.partition().log.log_start_offset == 4
        here.release()
        await until(lambda: here.starts == [4, 4])
        assert await here.delete(4, timeout_s=0) is ErrorCode.NONE


@scenario
async def test_a_leader_that_leads_no_more_cannot_tell() -> None:
    async with stage() as here:
        here.hold()
        resigned, failed = here.delete(4), here.delete(4)
        await until(lambda: len(here.low_watermarks._waits.get(key(), ())) == 2)
        here.leader.led.resign(key())
        assert await resigned is ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert await failed is ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert await here.delete(4) is ErrorCode.NOT_LEADER_OR_FOLLOWER


@scenario
async def test_a_leader_whose_files_fail_meanwhile_confirms_nothing() -> None:  # D2
    async with stage() as here:
        here.hold()
        deleting = here.delete(4)
        await until(lambda: here.starts == [4, 0])
        here.leader.partition().fail(StorageError("broken"))
        here.leader.led.changed(key())
        assert await deleting is ErrorCode.NOT_LEADER_OR_FOLLOWER
