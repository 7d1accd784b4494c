"""The contract of MetadataStore for watches and leases; every adapter's is in ``conftest``."""

import asyncio
from collections.abc import AsyncIterator, Sequence

import pytest

from fencelog.errors import HistoryLostError
from fencelog.ports import MetadataChange, MetadataStore, MetadataWrite
from tests.support.metadata_stores import ALL, Open, forget_history, run

LONG_S = 600.0
Watch = AsyncIterator[Sequence[MetadataChange]]


async def told(watch: Watch) -> list[tuple[str, bytes | None]]:
    """Keys and values of the next commit that a watch yields."""
    return [(each.key, each.value) for each in await anext(watch)]


def test_a_watch_yields_each_commit_after_a_snapshot_once_whole_and_in_order(
    open_store: Open,
) -> None:
    async def scenario(store: MetadataStore) -> None:
        await store.put("t/before", b"0", expected_version=0)
        snapshot = await store.snapshot("t/")
        watch = store.watch("t/", snapshot.revision)
        first = await store.put("t/a", b"1", expected_version=0)
        assert first is not None
        assert await store.commit(
            [
                MetadataWrite("t/a", b"2", first),
                MetadataWrite("t/before", None),
                MetadataWrite("t/nowhere", None),
                MetadataWrite("other", b"4"),
            ]
        )
        await store.put("other2", b"5", expected_version=0)
        second = await store.get("t/a")
        assert second is not None
        assert await store.delete("t/a", expected_version=second[1])
        assert await anext(watch) == [MetadataChange("t/a", b"1", first)]
        both = sorted(await anext(watch))
        assert both == [("t/a", b"2", second[1]), ("t/before", None, second[1])]
        (gone,) = await anext(watch)
        assert gone[:2] == ("t/a", None)
        assert gone.version > second[1]

    run(open_store, scenario)


def test_a_snapshot_has_the_cells_of_its_prefix_and_what_came_before_its_revision(
    open_store: Open,
) -> None:
    async def scenario(store: MetadataStore) -> None:
        version = await store.put("t/a", b"1", expected_version=0)
        await store.put("u", b"1", expected_version=0)
        old = await store.snapshot("t/")
        assert list(old.cells) == [("t/a", b"1", version)]
        await store.put("t/b", b"2", expected_version=0)
        await store.put("t/c", b"3", expected_version=0)
        new = await store.snapshot("t/")
        assert [key for key, _, _ in new.cells] == ["t/a", "t/b", "t/c"]
        late, early = store.watch("t/", new.revision), store.watch("t/", old.revision)
        await store.put("t/d", b"4", expected_version=0)
        assert await told(late) == [("t/d", b"4")]
        assert [await told(early) for _ in range(3)] == [
            [("t/b", b"2")],
            [("t/c", b"3")],
            [("t/d", b"4")],
        ]

    run(open_store, scenario)


def test_a_watch_that_waits_is_told_of_a_commit(open_store: Open) -> None:
    async def scenario(store: MetadataStore) -> None:
        snapshot = await store.snapshot("")
        waiting = [
            asyncio.ensure_future(told(store.watch(prefix, snapshot.revision)))
            for prefix in ("", "a", "b")
        ]
        await asyncio.sleep(0)
        await store.put("a", b"1", expected_version=0)
        assert await waiting[0] == await waiting[1] == [("a", b"1")]
        assert not waiting[2].done()
        await store.put("b", b"2", expected_version=0)
        assert await waiting[2] == [("b", b"2")]

    run(open_store, scenario)


def test_a_conflict_and_a_key_that_was_not_there_are_told_to_nobody(open_store: Open) -> None:
    async def scenario(store: MetadataStore) -> None:
        snapshot = await store.snapshot("")
        watch = store.watch("", snapshot.revision)
        assert await store.put("a", b"1", expected_version=9) is None
        assert not await store.commit([MetadataWrite("a", b"1")], unchanged={"b": 9})
        await store.commit([MetadataWrite("a", None)])
        await store.put("b", b"2", expected_version=0)
        assert await told(watch) == [("b", b"2")]

    run(open_store, scenario)


def test_a_watch_ends_with_its_store_and_one_that_is_cancelled_does_no_harm(
    open_store: Open,
) -> None:
    async def scenario(store: MetadataStore) -> None:
        snapshot = await store.snapshot("")

        async def read() -> list[Sequence[MetadataChange]]:
            return [changes async for changes in store.watch("", snapshot.revision)]

        reading, cancelled = asyncio.ensure_future(read()), asyncio.ensure_future(read())
        await asyncio.sleep(0)
        cancelled.cancel()
        await store.put("a", b"1", expected_version=0)
        await told(store.watch("", snapshot.revision))
        await asyncio.sleep(0)
        await store.close()
        assert [[each.key for each in changes] for changes in await reading] in ([["a"]], [])

    run(open_store, scenario)


def test_a_watch_of_what_the_store_has_forgotten_is_refused(open_store: Open) -> None:
    async def scenario(store: MetadataStore) -> None:
        snapshot = await store.snapshot("")
        await store.put("a", b"1", expected_version=0)
        await store.put("b", b"2", expected_version=0)
        await forget_history(store)
        await store.put("c", b"3", expected_version=0)
        with pytest.raises(HistoryLostError):
            await anext(store.watch("", snapshot.revision))
        again = await store.snapshot("")
        assert [key for key, _, _ in again.cells] == ["a", "b", "c"]
        watch = store.watch("", again.revision)
        await store.put("d", b"4", expected_version=0)
        assert await told(watch) == [("d", b"4")]

    run(open_store, scenario)


@pytest.mark.parametrize("open_store", ALL, indirect=True)  # etcd has sent it the change by then
def test_a_watch_that_was_not_read_in_time_is_refused(open_store: Open) -> None:
    async def scenario(store: MetadataStore) -> None:
        watch = store.watch("", (await store.snapshot("")).revision)
        await store.put("a", b"1", expected_version=0)
        assert await told(watch) == [("a", b"1")]
        await store.put("b", b"2", expected_version=0)
        await forget_history(store)
        with pytest.raises(HistoryLostError):
            await anext(watch)

    run(open_store, scenario)


# -- leases --------------------------------------------------------------------------------------


def test_the_keys_of_a_revoked_lease_go_in_one_commit(open_store: Open) -> None:
    async def scenario(store: MetadataStore) -> None:
        mine, other = await store.grant(LONG_S), await store.grant(LONG_S)
        assert mine != other
        writes = [
            MetadataWrite("a", b"1", 0, mine),
            MetadataWrite("b", b"1", 0, mine),
            MetadataWrite("c", b"1", 0, other),
            MetadataWrite("d", b"1", 0),
        ]
        assert await store.commit(writes)
        snapshot = await store.snapshot("")
        watch = store.watch("", snapshot.revision)
        await store.revoke(mine)
        changes = await anext(watch)
        assert sorted(each[:2] for each in changes) == [("a", None), ("b", None)]
        assert len({each.version for each in changes}) == 1
        assert changes[0].version > snapshot.revision
        assert [key for key, _, _ in await store.list("")] == ["c", "d"]
        assert not await store.renew(mine)
        assert await store.renew(other)
        await store.revoke(mine)

    run(open_store, scenario)


def test_a_lease_that_is_not_renewed_ends_by_itself(open_store: Open) -> None:
    async def scenario(store: MetadataStore) -> None:
        snapshot = await store.snapshot("")
        watch = store.watch("", snapshot.revision)
        ttl_s = 0.01
        while not await store.commit(
            [MetadataWrite("a", b"1", 0, lease := await store.grant(ttl_s))]
        ):
            ttl_s *= 2  # it ended before the commit
        assert await told(watch) == [("a", b"1")]
        assert await told(watch) == [("a", None)]
        assert await store.get("a") is None
        assert not await store.renew(lease)

    run(open_store, scenario)


def test_nothing_is_written_under_a_lease_that_has_ended(open_store: Open) -> None:
    async def scenario(store: MetadataStore) -> None:
        lease = await store.grant(LONG_S)
        await store.revoke(lease)
        writes = [MetadataWrite("a", b"1", 0, lease), MetadataWrite("b", b"1", 0)]
        assert not await store.commit(writes)
        assert await store.list("") == []

    run(open_store, scenario)


def test_a_key_has_the_lease_of_its_newest_value(open_store: Open) -> None:
    async def scenario(store: MetadataStore) -> None:
        old, new = await store.grant(LONG_S), await store.grant(LONG_S)
        keys = ("kept", "moved", "removed", "taken")
        assert await store.commit(
            [MetadataWrite(key, b"1", 0, None if key == "taken" else old) for key in keys]
        )
        assert await store.commit(
            [
                MetadataWrite("kept", b"2"),
                MetadataWrite("moved", b"2", None, new),
                MetadataWrite("removed", None),
                MetadataWrite("taken", b"2", None, new),
            ]
        )
        await store.put("removed", b"3", expected_version=0)
        await store.revoke(old)
        assert [key for key, _, _ in await store.list("")] == list(keys)
        await store.revoke(new)
        assert [key for key, _, _ in await store.list("")] == ["kept", "removed"]

    run(open_store, scenario)
