"""Who declares dead readers of a group offline, and whom (R9)."""

import asyncio

from fencelog.client.cluster import Cluster, ClusterOptions
from fencelog.client.streams.liveness import Liveness
from fencelog.coordination.reader_group.state import GroupState, Reader


async def test_a_reader_that_claims_again_while_another_is_declared_is_not() -> None:  # R9
    state = GroupState(readers={name: Reader(1, {}) for name in ("a", "b", "me")})
    declared: list[str] = []
    is_declared = asyncio.Event()

    async def declare(name: str, incarnation: int) -> None:
        declared.append(name)
        del liveness._free_since_s["b"]  # its claim is granted meanwhile
        is_declared.set()

    cluster = Cluster(ClusterOptions(bootstrap_servers="127.0.0.1:1"))
    liveness = Liveness(cluster, "claims", "me", lambda: state, declare)
    long_ago = asyncio.get_running_loop().time() - 100
    liveness._free_since_s.update(a=long_ago, b=long_ago)
    watching = asyncio.create_task(liveness.declare_dead())
    await asyncio.wait_for(is_declared.wait(), 10)
    await asyncio.sleep(0)
    assert declared == ["a"]
    assert not watching.done()
    watching.cancel()
