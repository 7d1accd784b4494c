"""A group whose stream was deleted and made again: nothing of the earlier one counts."""

import pytest

import fencelog.aio
from fencelog.client.model import DataLossError
from fencelog.client.streams.group_model import ReaderGroupError, StreamMadeAgainError
from fencelog.client.streams.reader_group import ReaderGroup
from fencelog.testing import LocalBroker
from tests.support.reader_groups import next_events, run_with_events, write


async def make_again(log: fencelog.aio.Client, segments: int = 1) -> None:
    """Delete the stream, and make it again with three other events."""
    await log.delete_topic("s")
    await log.create_stream("s", segments)
    await write(log, "s", ["k"], range(100, 103))


@pytest.mark.slow
def test_a_reset_lets_a_group_go_on_in_a_stream_that_was_made_again(
    fencelog_broker: LocalBroker,
) -> None:
    # R10
    async def scenario(log: fencelog.aio.Client, group: ReaderGroup) -> None:
        async with group.reader("r1") as reader:
            assert len(await next_events(reader, 7)) == 7
        await make_again(log)
        async with group.reader("r1") as reader:
            with pytest.raises(DataLossError, match="created again"):
                await next_events(reader)
        await group.reset("earliest")
        async with log.reader_group("g", "s").reader("r1") as reader:
            assert await next_events(reader, 2) == ["k:100", "k:101"]
        async with group.reader("r1") as reader:
            assert await next_events(reader) == ["k:102"]
        await log.split_segment("s", 0)
        await write(log, "s", ["k"], range(103, 105))
        async with group.reader("r1") as reader:
            assert await next_events(reader) == ["k:103", "k:104"]

    run_with_events(fencelog_broker, scenario)


@pytest.mark.slow
def test_a_reader_that_is_online_goes_on_in_the_new_stream_after_a_reset(
    fencelog_broker: LocalBroker,
) -> None:
    # R10
    async def scenario(log: fencelog.aio.Client, group: ReaderGroup) -> None:
        async with group.reader("r1", commit_interval_s=None) as reader:
            assert len(await next_events(reader)) == 10
            await make_again(log, segments=2)
            await group.reset("earliest")
            assert await next_events(reader) == ["k:100", "k:101", "k:102"]

    run_with_events(fencelog_broker, scenario)


@pytest.mark.slow
def test_positions_of_a_stream_that_was_made_again_are_refused(
    fencelog_broker: LocalBroker,
) -> None:
    # R10
    async def scenario(log: fencelog.aio.Client, group: ReaderGroup) -> None:
        await group.create()
        await group.checkpoint("c")
        bounded = log.reader_group("bounded", "s", end={0: 10})
        await bounded.create()
        await make_again(log)
        for refused in (
            group.unread_events(),
            group.unread_bytes(),
            group.reader_offline("r1", {0: 1}),
            log.reader_group("g", "s").create(),
        ):
            with pytest.raises(StreamMadeAgainError, match="reset the group"):
                await refused
        with pytest.raises(ReaderGroupError, match="no checkpoint c of the stream s that was made"):
            await group.reset("c")
        with pytest.raises(ReaderGroupError, match="create it with a cut of the new one"):
            await bounded.reset("earliest")
        await group.reset({0: 2})
        assert await group.unread_events() == 1
        with pytest.raises(ReaderGroupError, match="there is no checkpoint c"):
            await group.drop_checkpoint("c")

    run_with_events(fencelog_broker, scenario)
