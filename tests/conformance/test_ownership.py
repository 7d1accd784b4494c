"""Claims and a broker process that is killed: what was granted is remembered (O3, O4, O10)."""

import asyncio
from pathlib import Path

from fencelog.errors import ErrorCode
from tests.support.broker import BrokerProcess
from tests.support.node import Peer, batch
from tests.support.ownership import Claimant, described


def test_what_was_granted_is_known_after_each_kill(tmp_path: Path) -> None:
    """Each broker is killed right behind its answer; the holder goes on with the next one."""
    asyncio.run(_killed_behind_each_answer(tmp_path / "data"))


async def _killed_behind_each_answer(data: Path) -> None:
    with BrokerProcess(data, durability="fsync") as broker:
        async with Peer.at(broker.host, broker.port) as one:
            await one.create_topic("t")
        for epoch in (1, 2, 3):
            async with Peer.at(broker.host, broker.port) as one:
                claimant = Claimant(one, holder=f"attempt {epoch}")
                granted = await claimant.own(("t/0", epoch, epoch - 1 or -1), lease_ms=60_000)
                assert (granted.error_code, granted.resources[0].epoch) == (0, epoch)
                broker.kill()
            broker.start()
            async with (
                Peer.at(broker.host, broker.port) as back,
                Peer.at(broker.host, broker.port) as other,
            ):
                (state,) = await described(other, "t/0")
                assert (state.state, state.holder) == ("held", f"attempt {epoch}")
                assert state.fence_offset == granted.resources[0].fence_offset
                refused = await other.produce("t", batch("a stranger's"))
                assert refused.error == ErrorCode.TOPIC_AUTHORIZATION_FAILED
                late = await Claimant(other).own(("t/0", 0, epoch + 1))
                assert late.error_code == ErrorCode.OWNER_FENCED
                assert (await claimant.renew(back)).error_code == 0
                assert (await claimant.attach(back)).error_code == 0
                assert (await back.produce("t", batch(f"of attempt {epoch}"))).error == 0
