"""The contract of MetadataStore for values and versions; every adapter's is in ``conftest``."""

import asyncio

import pytest

from fencelog.errors import StorageError
from fencelog.ports import MetadataStore, MetadataWrite
from tests.support.metadata_stores import ONE_PROCESS, Open, fill, run


def test_a_missing_key_has_no_value(open_store: Open) -> None:
    async def scenario(store: MetadataStore) -> None:
        assert await store.get("a") is None
        assert await store.list("") == []

    run(open_store, scenario)


def test_what_was_put_is_got_with_its_version(open_store: Open) -> None:
    async def scenario(store: MetadataStore) -> None:
        first = await store.put("a", b"\x00one", expected_version=0)
        assert first is not None
        assert await store.get("a") == (b"\x00one", first)
        second = await store.put("a", b"", expected_version=first)
        assert second is not None
        assert second > first
        assert await store.get("a") == (b"", second)

    run(open_store, scenario)


def test_a_put_that_expects_another_version_loses_and_changes_nothing(open_store: Open) -> None:
    async def scenario(store: MetadataStore) -> None:
        first = await store.put("a", b"one", expected_version=0)
        assert first is not None
        assert await store.put("a", b"two", expected_version=0) is None
        assert await store.put("a", b"two", expected_version=first + 7) is None
        assert await store.put("b", b"two", expected_version=3) is None
        assert await store.list("") == [("a", b"one", first)]

    run(open_store, scenario)


def test_delete_needs_the_version(open_store: Open) -> None:
    async def scenario(store: MetadataStore) -> None:
        version = await store.put("a", b"one", expected_version=0)
        assert version is not None
        assert not await store.delete("a", expected_version=version + 1)
        assert await store.delete("a", expected_version=version)
        assert not await store.delete("a", expected_version=version)
        assert await store.get("a") is None

    run(open_store, scenario)


def test_a_cell_made_again_has_a_version_that_the_old_one_never_had(open_store: Open) -> None:
    async def scenario(store: MetadataStore) -> None:
        old = await store.put("a", b"one", expected_version=0)
        assert old is not None
        await store.delete("a", expected_version=old)
        new = await store.put("a", b"two", expected_version=0)
        assert new is not None
        assert await store.put("a", b"zombie", expected_version=old) is None
        assert await store.get("a") == (b"two", new)

    run(open_store, scenario)


def test_list_takes_the_prefix_literally_and_in_key_order(open_store: Open) -> None:
    async def scenario(store: MetadataStore) -> None:
        for key in ("topic/b", "topic/a", "topic_c", "topic%", "x", "topic/ä"):
            await store.put(key, key.encode(), expected_version=0)
        assert [key for key, _, _ in await store.list("topic/")] == [
            "topic/a",
            "topic/b",
            "topic/ä",
        ]
        assert [key for key, _, _ in await store.list("topic_")] == ["topic_c"]
        assert len(await store.list("")) == 6

    run(open_store, scenario)


def test_concurrent_puts_of_one_version_have_one_winner(open_store: Open) -> None:
    async def scenario(store: MetadataStore) -> None:
        async with asyncio.TaskGroup() as tasks:
            puts = [
                tasks.create_task(store.put("a", bytes([i]), expected_version=0)) for i in range(8)
            ]
        assert sum(put.result() is not None for put in puts) == 1

    run(open_store, scenario)


def test_cells_survive_a_close(open_store: Open) -> None:
    async def write(store: MetadataStore) -> None:
        await store.put("a", b"one", expected_version=0)

    async def read(store: MetadataStore) -> None:
        found = await store.get("a")
        assert found is not None
        assert found[0] == b"one"

    run(open_store, write)
    run(open_store, read)


def test_a_second_close_does_nothing(open_store: Open) -> None:
    async def scenario(store: MetadataStore) -> None:
        await store.close()

    run(open_store, scenario)


@pytest.mark.parametrize("open_store", ONE_PROCESS, indirect=True)
def test_concurrent_operations_take_effect_in_the_order_of_the_calls(open_store: Open) -> None:
    async def scenario(store: MetadataStore) -> None:
        async with asyncio.TaskGroup() as tasks:
            put = tasks.create_task(store.put("a", b"one", expected_version=0))
            got = tasks.create_task(store.get("a"))
            listed = tasks.create_task(store.list("a"))
            late = tasks.create_task(store.put("a", b"two", expected_version=0))
        assert got.result() == (b"one", put.result())
        assert listed.result() == [("a", b"one", put.result())]
        assert late.result() is None

    run(open_store, scenario)


def test_a_version_survives_a_close_and_no_later_one_repeats_it(open_store: Open) -> None:
    versions: list[int | None] = []

    async def write(store: MetadataStore) -> None:
        versions.append(await store.put("a", b"one", expected_version=0))
        await store.delete("a", expected_version=versions[0] or 0)

    async def write_again(store: MetadataStore) -> None:
        versions.append(await store.put("a", b"two", expected_version=0))
        assert await store.get("a") == (b"two", versions[1])

    run(open_store, write)
    run(open_store, write_again)
    first, second = versions
    assert first is not None
    assert second is not None
    assert second > first


def test_a_put_that_fails_is_a_storage_error_and_changes_nothing(open_store: Open) -> None:  # D2
    async def scenario(store: MetadataStore) -> None:
        version = await store.put("a", b"one", expected_version=0)
        assert version is not None
        await fill(store)
        for key, expected in (("a", version), ("b", 0)):
            with pytest.raises(StorageError):
                await store.put(key, bytes(100_000), expected_version=expected)
        assert await store.list("") == [("a", b"one", version)]
        later = await store.put("a", b"two", expected_version=version)
        assert later is not None
        assert later > version

    run(open_store, scenario)


def test_a_commit_applies_all_its_writes(open_store: Open) -> None:
    async def scenario(store: MetadataStore) -> None:
        first = await store.put("a", b"1", expected_version=0)
        assert await store.put("b", b"1", expected_version=0)
        writes = [
            MetadataWrite("a", b"2", first),
            MetadataWrite("b", None),
            MetadataWrite("c", b"3", 0),
            MetadataWrite("d", b"4"),
            MetadataWrite("nowhere", None),
        ]
        assert await store.commit(writes)
        cells = await store.list("")
        assert [(key, value) for key, value, _ in cells] == [("a", b"2"), ("c", b"3"), ("d", b"4")]
        assert all(version > (first or 0) for _, _, version in cells)
        assert await store.put("a", b"5", expected_version=cells[0][2])

    run(open_store, scenario)


@pytest.mark.parametrize(
    "wrong",
    [
        MetadataWrite("a", b"2", 0),
        MetadataWrite("a", b"2", 10**6),
        MetadataWrite("a", None, 10**6),
        MetadataWrite("nowhere", None, 10**6),
        MetadataWrite("nowhere", b"2", 10**6),
    ],
)
def test_a_commit_writes_nothing_where_a_version_is_different(
    open_store: Open, wrong: MetadataWrite
) -> None:
    async def scenario(store: MetadataStore) -> None:
        await store.put("a", b"1", expected_version=0)
        before = await store.list("")
        assert not await store.commit([MetadataWrite("b", b"2", 0), wrong])
        assert await store.list("") == before

    run(open_store, scenario)


def test_a_commit_that_fails_writes_nothing(open_store: Open) -> None:
    async def scenario(store: MetadataStore) -> None:
        await store.put("a", b"1", expected_version=0)
        before = await store.list("")
        await fill(store)
        with pytest.raises(StorageError):
            await store.commit([MetadataWrite("b", b"2"), MetadataWrite("c", bytes(100_000))])
        assert await store.list("") == before

    run(open_store, scenario)


def test_a_commit_compares_keys_that_it_does_not_write(open_store: Open) -> None:
    async def scenario(store: MetadataStore) -> None:
        first = await store.put("a", b"1", expected_version=0)
        assert first is not None
        write = MetadataWrite("b", b"2", 0)
        for unchanged in ({"a": 0}, {"a": first + 1}, {"nowhere": 3}, {"a": first, "c": 7}):
            assert not await store.commit([write], unchanged=unchanged)
        assert await store.list("") == [("a", b"1", first)]
        assert await store.commit([write], unchanged={"a": first, "nowhere": 0})
        assert [cell[:2] for cell in await store.list("")] == [("a", b"1"), ("b", b"2")]
        assert await store.get("a") == (b"1", first)

    run(open_store, scenario)
