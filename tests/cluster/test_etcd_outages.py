"""EtcdMetadata where etcd is killed, paused, cut to less than a majority, or something else."""

import asyncio
import json
import secrets
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from fencelog.adapters.etcd_metadata import EtcdMetadata
from fencelog.errors import HistoryLostError, StorageError, UnknownOutcomeError
from fencelog.settings.metadata_url import EtcdUrl
from tests.support.etcd import Etcd, free_ports

DEADLINE_S = 60.0
WRITERS = 8


@asynccontextmanager
async def opened(
    etcd: Etcd, name: str = "c", deadline_s: float = 5.0
) -> AsyncIterator[EtcdMetadata]:
    async with asyncio.timeout(DEADLINE_S):
        store = await EtcdMetadata.open(etcd.url(name), deadline_s=deadline_s)
        try:
            yield store
        finally:
            await store.close()


def fresh_name() -> str:
    return f"c{secrets.token_hex(4)}"


async def again(ask: Callable[[], object]) -> object:
    """Ask until the store answers: it is away for a moment."""
    while True:
        try:
            return await ask()  # type: ignore[misc]
        except StorageError:
            await asyncio.sleep(0.02)


class Counting:
    """Writers of one cell; it says how often each has counted."""

    def __init__(self, store: EtcdMetadata) -> None:
        self.store = store
        self.acknowledged = [0] * WRITERS
        self.unknown = 0
        self._counted = asyncio.Event()
        self.stopping = False

    async def write(self, me: int) -> None:
        """Count, each time once, until asked to stop."""
        while not self.stopping:
            await self.count(me, self.acknowledged[me] + 1)
            self.acknowledged[me] += 1
            self._counted.set()

    async def count(self, me: int, number: int) -> None:
        while True:
            try:
                value, version = await self.store.get("counter") or (b"{}", 0)
                counts = json.loads(value)
                if counts.get(str(me), 0) == number:
                    return  # its answer was lost
                assert counts.get(str(me), 0) == number - 1
                counts[str(me)] = number
                if await self.store.put(
                    "counter", json.dumps(counts).encode(), expected_version=version
                ):
                    return
            except UnknownOutcomeError:
                self.unknown += 1
            except StorageError:
                await asyncio.sleep(0.02)

    async def until_more(self, by: int) -> None:
        """Wait until so many more counts are acknowledged."""
        enough = sum(self.acknowledged) + by
        while sum(self.acknowledged) < enough:
            self._counted.clear()
            await self._counted.wait()


def test_writes_through_kills_of_etcd_are_neither_lost_nor_doubled(own_etcd: Etcd) -> None:
    (member,) = own_etcd.members

    async def main() -> None:
        async with opened(own_etcd) as store:
            counting = Counting(store)
            async with asyncio.TaskGroup() as tasks:
                for me in range(WRITERS):
                    tasks.create_task(counting.write(me))
                for _ in range(4):
                    await counting.until_more(20)
                    await asyncio.to_thread(member.kill)
                    member.start()
                await counting.until_more(20)
                counting.stopping = True
            found = await store.get("counter")
            assert found is not None
            assert json.loads(found[0]) == {
                str(me): count for me, count in enumerate(counting.acknowledged)
            }
            assert counting.unknown > 0

    asyncio.run(main())


def test_a_watch_goes_on_after_a_kill_and_misses_nothing(own_etcd: Etcd) -> None:
    (member,) = own_etcd.members

    async def main() -> None:
        async with opened(own_etcd) as store:
            snapshot = await store.snapshot("")
            seen: list[bytes | None] = []

            async def read() -> None:
                async for changes in store.watch("", snapshot.revision):
                    seen.extend(each.value for each in changes)
                    if seen[-1] == b"last":
                        return

            reading = asyncio.create_task(read())
            for life in range(3):
                for at in range(5):
                    await store.put(f"{life}.{at}", b"%d.%d" % (life, at), expected_version=0)
                await asyncio.to_thread(member.kill)
                member.start()
                await again(lambda: store.get(""))
            await store.put("z", b"last", expected_version=0)
            await reading
            assert seen == [*(b"%d.%d" % (x, y) for x in range(3) for y in range(5)), b"last"]

    asyncio.run(main())


def test_a_watch_that_etcd_can_no_longer_continue_says_so(own_etcd: Etcd) -> None:
    (member,) = own_etcd.members

    async def main() -> None:
        async with opened(own_etcd) as store:
            snapshot = await store.snapshot("")
            watch = store.watch("", snapshot.revision)
            await store.put("a", b"1", expected_version=0)
            await anext(watch)
            await asyncio.to_thread(member.kill)
            member.start()
            await asyncio.to_thread(member.wait)
            await again(lambda: store.put("b", b"2", expected_version=0))
            await store.put("c", b"3", expected_version=0)
            await asyncio.to_thread(member.compact)
            with pytest.raises(HistoryLostError):
                await anext(watch)

    asyncio.run(main())


def test_a_write_without_an_answer_is_unknown_and_a_read_goes_to_another_member(
    three_members: Etcd,
) -> None:
    first = three_members.members[0]

    async def main() -> None:
        async with opened(three_members, fresh_name(), deadline_s=3.0) as store:
            first.pause()
            try:
                with pytest.raises(UnknownOutcomeError, match=rf"{first.endpoint}.*may be stored"):
                    await store.put("a", b"1", expected_version=0)
                found = await store.get("a")
                version = await store.put("a", b"2", expected_version=0 if not found else found[1])
                assert version
            finally:
                first.resume()
            assert await store.get("a") == (b"2", version)

    asyncio.run(main())


def test_a_lease_and_a_watch_live_on_while_the_member_in_use_is_paused(three_members: Etcd) -> None:
    first = three_members.members[0]

    async def main() -> None:
        async with opened(three_members, fresh_name()) as store:
            lease = await store.grant(30.0)
            snapshot = await store.snapshot("")
            watch = store.watch("", snapshot.revision)
            reading = asyncio.ensure_future(anext(watch))
            await asyncio.sleep(0)
            first.pause()
            try:
                assert await store.renew(lease)
                assert await store.put("a", b"1", expected_version=0)
                assert [each.key for each in await reading] == ["a"]
            finally:
                first.resume()

    asyncio.run(main())


def test_a_member_that_is_dead_is_passed_over(three_members: Etcd) -> None:
    first = three_members.members[0]

    async def main() -> None:
        async with opened(three_members, fresh_name()) as store:
            assert await store.put("a", b"1", expected_version=0)
            watch = store.watch("", (await store.snapshot("")).revision)
            reading = asyncio.ensure_future(anext(watch))
            await asyncio.sleep(0)
            await asyncio.to_thread(first.kill)
            try:
                await again(lambda: store.put("b", b"1", expected_version=0))
                assert [each.key for each in await reading] == ["b"]
            finally:
                first.start()
                await asyncio.to_thread(first.wait)

    asyncio.run(main())


def test_a_minority_refuses_within_the_deadline_and_serves_again_later(three_members: Etcd) -> None:
    others = three_members.members[1:]

    async def main() -> None:
        async with opened(three_members, fresh_name(), deadline_s=2.0) as store:
            for member in others:
                member.pause()
            try:
                before = time.monotonic()
                with pytest.raises(StorageError, match="etcd at"):
                    await store.put("a", b"1", expected_version=0)
                with pytest.raises(StorageError, match="etcd at"):
                    await store.get("a")
                assert time.monotonic() - before < DEADLINE_S / 2
            finally:
                for member in others:
                    member.resume()
            await again(lambda: store.put("b", b"1", expected_version=0))
            assert await again(lambda: store.get("b"))

    asyncio.run(main())


def test_a_dead_first_endpoint_costs_nothing_but_a_moment(etcd: Etcd) -> None:
    dead = f"127.0.0.1:{free_ports(1)[0]}"

    async def main() -> None:
        url = EtcdUrl((dead, *etcd.url("").endpoints), fresh_name())
        store = await EtcdMetadata.open(url)
        assert await store.put("a", b"1", expected_version=0)
        await store.close()

    asyncio.run(main())


@pytest.mark.parametrize("said", [b"", b"\x00" * 64, b"HTTP/1.1 400 Bad Request\r\n\r\n"])
def test_what_is_no_etcd_is_a_storage_error_with_its_address(said: bytes) -> None:
    async def main() -> None:
        async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(said)
            await reader.read()  # until the other side has closed
            writer.close()
            ended.set()

        ended = asyncio.Event()

        server = await asyncio.start_server(talk, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(StorageError, match=f"127.0.0.1:{port}") as raised:
            await EtcdMetadata.open(EtcdUrl((f"127.0.0.1:{port}",), "c"), deadline_s=1.0)
        assert not isinstance(raised.value, UnknownOutcomeError)
        await ended.wait()
        server.close()

    asyncio.run(main())


def test_a_host_that_nobody_knows_is_a_storage_error() -> None:
    async def main() -> None:
        with pytest.raises(StorageError, match=r"nowhere\.invalid"):
            await EtcdMetadata.open(EtcdUrl(("nowhere.invalid:2379",), "c"), deadline_s=1.0)

    asyncio.run(main())
