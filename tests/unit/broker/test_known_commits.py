"""A commit's outcome is known, also where the store's answer is lost."""

import asyncio

import pytest

from fencelog.broker.metadata.known_commits import commit_known
from fencelog.errors import StorageError, UnknownOutcomeError
from fencelog.ports import MetadataWrite
from fencelog_sim.world.gate import Fault, Lost
from fencelog_sim.world.metadata import SimMetadata, SimStore
from tests.support.cluster_metadata import in_virtual_time

LOST = [Lost(False), Lost(True), Lost(True, after_s=1.0)]


def losing(session: SimMetadata, *answers: Lost | None) -> None:
    """The next answers are lost or not; those after them arrive."""
    rest = list(answers)
    session.lose = lambda _verb, _key: rest.pop(0) if rest else None


@pytest.mark.parametrize("again", [None, *LOST])
@pytest.mark.parametrize("lost", LOST)
def test_a_write_whose_answer_is_lost_is_stored_once(lost: Lost, again: Lost | None) -> None:
    async def main() -> None:
        session = SimStore().session()
        losing(session, lost, again)
        writes = [MetadataWrite("a", b"1", 0), MetadataWrite("b", b"1", 0)]
        snapshot = await session.snapshot("")
        assert await commit_known(session, writes)
        await asyncio.sleep(10)
        watch = session.watch("", snapshot.revision)
        assert [each.key for each in await anext(watch)] == ["a", "b"]
        assert session.store.revision == snapshot.revision + 1

    in_virtual_time(main)


@pytest.mark.parametrize("lost", [None, *LOST])
def test_a_removal_whose_answer_is_lost_is_known(lost: Lost | None) -> None:
    async def main() -> None:
        session = SimStore().session()
        version = await session.put("a", b"1", expected_version=0)
        losing(session, lost)
        assert await commit_known(session, [MetadataWrite("a", None, version)])
        assert await session.get("a") is None

    in_virtual_time(main)


@pytest.mark.parametrize("lost", [None, *LOST])
def test_a_conflict_is_known_where_the_answer_is_lost(lost: Lost | None) -> None:
    async def main() -> None:
        session = SimStore().session()
        await session.put("a", b"theirs", expected_version=0)
        losing(session, lost)
        assert not await commit_known(session, [MetadataWrite("a", b"mine", 0)])
        losing(session, lost)
        compared = {"a": 77}
        assert not await commit_known(session, [MetadataWrite("b", b"1", 0)], unchanged=compared)
        await asyncio.sleep(10)
        assert [key for key, _, _ in await session.list("")] == ["a"]

    in_virtual_time(main)


def test_a_write_that_another_one_took_the_place_of_is_not_taken_for_stored() -> None:
    async def main() -> None:
        store = SimStore()
        session, other = store.session(), store.session()

        def lose(verb: str, key: str) -> Lost:
            store.commit([MetadataWrite("a", b"theirs", 0)])
            session.lose = None
            return Lost(True)

        session.lose = lose
        assert not await commit_known(session, [MetadataWrite("a", b"mine", 0)])
        assert (await other.get("a") or [b""])[0] == b"theirs"

    in_virtual_time(main)


def test_a_failure_is_told_from_an_outcome_that_cannot_be_read() -> None:
    async def main() -> None:
        session = SimStore().session()
        session.gate = lambda verb, _key, _size: Fault() if verb == "commit" else None
        with pytest.raises(StorageError) as failed:
            await commit_known(session, [MetadataWrite("a", b"1", 0)])
        assert not isinstance(failed.value, UnknownOutcomeError)
        session.gate = lambda verb, _key, _size: Fault() if verb == "get" else None
        losing(session, Lost(True))
        with pytest.raises(UnknownOutcomeError, match="a was perhaps stored"):
            await commit_known(session, [MetadataWrite("a", b"1", 0)])

    in_virtual_time(main)


def test_a_failure_after_a_lost_answer_leaves_it_unknown() -> None:
    async def main() -> None:
        session = SimStore().session()
        commits = 0

        def second_fails(verb: str, key: str, size: int) -> Fault | None:
            nonlocal commits
            commits += verb == "commit"
            return Fault() if verb == "commit" and commits == 2 else None

        session.gate = second_fails
        losing(session, Lost(False))
        with pytest.raises(UnknownOutcomeError):
            await commit_known(session, [MetadataWrite("a", b"1", 0)])

    in_virtual_time(main)


@pytest.mark.parametrize("lost", [Lost(False), Lost(True), Lost(True, after_s=1.0)])
def test_the_same_value_of_another_broker_does_not_stand_for_the_whole_commit(lost: Lost) -> None:
    async def main() -> None:
        store = SimStore()
        session = store.session()

        def lose(verb: str, key: str) -> Lost:
            store.commit([MetadataWrite("a", b"1", 0)])
            session.lose = None
            return lost

        session.lose = lose
        writes = [MetadataWrite("a", b"1", 0), MetadataWrite("b", b"1", 0)]
        assert not await commit_known(session, writes)
        await asyncio.sleep(10)
        assert await session.get("b") is None

    in_virtual_time(main)


def test_a_removal_that_another_broker_has_done_does_not_stand_for_the_whole_commit() -> None:
    async def main() -> None:
        store = SimStore()
        session = store.session()
        version = store.commit([MetadataWrite("a", b"1", 0)])

        def lose(verb: str, key: str) -> Lost:
            store.commit([MetadataWrite("a", None, version)])
            session.lose = None
            return Lost(True)

        session.lose = lose
        writes = [MetadataWrite("a", None, version), MetadataWrite("b", b"1", 0)]
        assert not await commit_known(session, writes)

    in_virtual_time(main)
