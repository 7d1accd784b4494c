"""Which readers are declared offline, by what the broker tells of their claims."""

import asyncio
from collections.abc import AsyncIterator, Sequence

import pytest

from fencelog.client.cluster import Cluster, ClusterOptions
from fencelog.client.model import OwnershipDescription
from fencelog.client.ownership import Ownership
from fencelog.client.streams import liveness
from fencelog.client.streams.liveness import Liveness
from fencelog.coordination.reader_group.state import GroupState, Reader


def claim(name: str, state: str, epoch: int) -> OwnershipDescription:
    return OwnershipDescription(
        group="c", resource=name, state=state, generation=epoch, epoch=epoch
    )


def declared(
    monkeypatch: pytest.MonkeyPatch,
    state: GroupState,
    told: Sequence[OwnershipDescription],
    told_later: Sequence[OwnershipDescription] = (),
) -> list[tuple[str, int]]:
    """Return who is declared offline by ``me`` in several times the grace.

    ``told_later``: what the broker tells while the first one is declared.
    """
    found: list[tuple[str, int]] = []
    is_declared = asyncio.Event()

    async def watch(*_: object) -> AsyncIterator[Sequence[OwnershipDescription]]:
        yield told
        await is_declared.wait()
        yield told_later
        await asyncio.Event().wait()

    async def declare(name: str, incarnation: int) -> None:
        found.append((name, incarnation))
        is_declared.set()
        await asyncio.sleep(0.01)

    async def main() -> None:
        cluster = Cluster(ClusterOptions(bootstrap_servers="localhost:1"))
        live = Liveness(cluster, "c", "me", lambda: state, declare)
        tasks = [asyncio.create_task(each) for each in (live.watch(), live.declare_dead())]
        await asyncio.wait(tasks, timeout=0.1)
        assert not any(each.done() for each in tasks), tasks
        for each in tasks:
            each.cancel()
        await asyncio.wait(tasks)

    monkeypatch.setattr(liveness, "GRACE_S", 0.01)
    monkeypatch.setattr(Ownership, "watch", watch)
    asyncio.run(main())
    return found


def test_a_reader_whose_claim_has_ended_is_declared_offline(
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # R9
    state = GroupState(readers={"me": Reader(1, {}), "r": Reader(3, {})})
    assert ("r", 3) in declared(monkeypatch, state, [claim("r", "free", 3)])
    assert declared(monkeypatch, state, [claim("r", "held", 3)]) == []


def test_a_reader_that_has_joined_anew_is_not_taken_for_the_one_that_has_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # R9: the state tells of its new incarnation before the watch tells of its new claim.
    state = GroupState(readers={"me": Reader(1, {}), "r": Reader(4, {})})
    assert declared(monkeypatch, state, [claim("r", "free", 3)]) == []


def test_a_reader_that_claims_again_while_another_is_declared_is_not_declared(
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # R9
    state = GroupState(readers={"me": Reader(1, {}), "r": Reader(3, {}), "s": Reader(2, {})})
    told = [claim("s", "free", 2), claim("r", "free", 3)]
    held = [claim("r", "held", 4)]
    assert {name for name, _ in declared(monkeypatch, state, told, held)} == {"s"}
