"""A broker stores recovery checkpoints while it serves, and a start after a crash uses them."""

import asyncio

import pytest

from fencelog.log.layout import CLEAN_SHUTDOWN, RECOVERY_CHECKPOINT
from tests.support.node import until
from tests.support.restarts import Twin, check, fill
from tests.support.storage import AT_EACH_WRITE


@pytest.mark.parametrize("durability", ["os", "fsync"])
def test_a_start_after_a_crash_continues_from_what_the_run_before_has_stored(
    durability: str,
) -> None:  # E15
    async def scenario() -> None:
        twin = Twin()
        node = twin.node(durability=durability, writeback=AT_EACH_WRITE)
        await node.start()
        await fill(node)
        written = {each.name for each in node.logs.partitions() if each.log.log_end_offset > 0}
        assert len(written) > 2

        def are_stored() -> bool:
            return all(twin.disk.exists(f"{name}/{RECOVERY_CHECKPOINT}") for name in written)

        await until(are_stored, "every log that was written has a checkpoint")
        await node.stop()
        await twin.disk.remove(CLEAN_SHUTDOWN)
        node = twin.node(durability=durability)
        await node.start()
        rebuilt = {each.name for each in node.logs.partitions() if each._store.is_rebuilt}
        assert not rebuilt & written
        assert rebuilt, "what was never written has no checkpoint"
        await check(node)
        await node.stop()

    asyncio.run(scenario())
