"""A cluster has one identity, and a data directory belongs to one cluster."""

import asyncio
import json
from random import Random

import pytest

from fencelog.broker.metadata.cluster_birth import ClusterIdentity, cluster_identity
from fencelog.errors import CorruptionError, FencedError
from fencelog.ports import MetadataWrite
from fencelog_sim.world.clocks import SimRandom
from fencelog_sim.world.gate import Lost
from fencelog_sim.world.metadata import SimMetadata, SimStore
from tests.support.cluster_metadata import in_virtual_time


async def asked(
    session: SimMetadata,
    seed: int = 0,
    *,
    directory: str | None = None,
    secret: bytes | None = None,
) -> ClusterIdentity:
    return await cluster_identity(
        session, SimRandom(Random(seed)), directory_cluster_id=directory, secret=secret
    )


@pytest.mark.parametrize("lost", [None, Lost(False), Lost(True), Lost(True, after_s=1.0)])
def test_brokers_that_start_together_agree(lost: Lost | None) -> None:
    async def main() -> None:
        store = SimStore()
        sessions = [store.session() for _ in range(3)]
        for each in sessions:
            answers = [lost]
            each.lose = lambda _verb, _key, left=answers: left.pop() if left else None  # type: ignore[misc]
            each.delay = lambda _verb, _key, _size: asyncio.sleep(0.001)
        async with asyncio.TaskGroup() as tasks:
            asking = [tasks.create_task(asked(each, n)) for n, each in enumerate(sessions)]
        found = {each.result() for each in asking}
        assert len(found) == 1
        (identity,) = found
        assert len(identity.secret) == 32
        await asyncio.sleep(5)
        assert await asked(sessions[0], 9) == identity
        assert set(json.loads(store.values["cluster"][0])) == {"id", "secret"}

    in_virtual_time(main)


def test_a_directory_belongs_to_one_cluster() -> None:
    async def main() -> None:
        store = SimStore()
        with pytest.raises(FencedError, match="belongs to cluster old, and the metadata store has"):
            await asked(store.session(), directory="old")
        assert store.values == {}
        identity = await asked(store.session())
        assert await asked(store.session(), directory=identity.cluster_id) == identity
        with pytest.raises(FencedError, match=f"cluster old, .* cluster {identity.cluster_id}"):
            await asked(store.session(), directory="old")

    in_virtual_time(main)


def test_a_secret_that_was_given_is_the_cluster_s() -> None:
    async def main() -> None:
        store = SimStore()
        identity = await asked(store.session(), secret=b"given")
        assert identity.secret == b"given"
        assert await asked(store.session()) == identity
        assert await asked(store.session(), secret=b"given") == identity
        with pytest.raises(FencedError, match="another secret"):
            await asked(store.session(), secret=b"other")

    in_virtual_time(main)


@pytest.mark.parametrize(
    "value", [b"\xff", b"[]", b"{}", b'{"id": "a", "secret": "xyz"}', b'{"id": "a", "secret": ""}']
)
def test_an_identity_that_cannot_be_read_is_damage(value: bytes) -> None:
    async def main() -> None:
        store = SimStore()
        store.commit([MetadataWrite("cluster", value)])
        with pytest.raises(CorruptionError, match="metadata key cluster"):
            await asked(store.session())

    in_virtual_time(main)
