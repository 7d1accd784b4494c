"""EtcdMetadata on a real etcd: what its contract with other stores does not say."""

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from fencelog.adapters.etcd.members import Tls, User
from fencelog.adapters.etcd_metadata import EtcdMetadata
from fencelog.errors import StorageError, UnknownOutcomeError
from fencelog.ports import COMMIT_BYTES_MAX, COMMIT_KEYS_MAX, MetadataWrite
from tests.clients.install import NotInstalled
from tests.support.etcd import Certificates, Etcd, certificates
from tests.support.etcd_fixtures import etcd_or_skip

NAME, PASSWORD = "orders", "of-orders"
QUOTA_BYTES = 200_000
WRITES_MAX = 5_000


def run(etcd: Etcd, scenario: Callable[[EtcdMetadata], Awaitable[None]]) -> None:
    async def main() -> None:
        store = await EtcdMetadata.open(etcd.url(f"c{secrets.token_hex(4)}"))
        try:
            await scenario(store)
        finally:
            await store.close()

    asyncio.run(main())


def test_two_clusters_in_one_etcd_do_not_see_each_other(etcd: Etcd) -> None:
    async def scenario(store: EtcdMetadata) -> None:
        other = await EtcdMetadata.open(etcd.url(f"{store._root[:-1]}x"))
        snapshot = await store.snapshot("")
        watch = store.watch("", snapshot.revision)
        await other.put("a", b"theirs", expected_version=0)
        await store.put("b", b"ours", expected_version=0)
        assert [each.key for each in await anext(watch)] == ["b"]
        assert [each[0] for each in await store.list("")] == ["b"]
        await other.close()

    run(etcd, scenario)


def test_a_commit_has_the_limits_of_the_port(etcd: Etcd) -> None:
    async def scenario(store: EtcdMetadata) -> None:
        writes = [MetadataWrite(f"{at}", b"1", 0) for at in range(COMMIT_KEYS_MAX)]
        assert await store.commit(writes)
        assert await store.commit([MetadataWrite("large", bytes(COMMIT_BYTES_MAX - 200), 0)])
        before = await store.list("")
        for over in ([*writes, MetadataWrite("a", b"")], [MetadataWrite("a", bytes(1 << 20))]):
            with pytest.raises(StorageError, match="the limits are 128 and 1048576"):
                await store.commit(over)
        with pytest.raises(StorageError, match="a commit of 129 keys"):
            await store.commit(writes, unchanged={"b": 0})
        assert await store.list("") == before

    run(etcd, scenario)


def test_many_keys_are_read_in_pages_as_of_one_revision(etcd: Etcd) -> None:
    async def scenario(store: EtcdMetadata) -> None:
        keys = [f"t/{at:04}" for at in range(1100)]
        for at in range(0, len(keys), 100):
            assert await store.commit([MetadataWrite(key, b"", 0) for key in keys[at : at + 100]])
        snapshot = await store.snapshot("t/")
        assert [cell[0] for cell in snapshot.cells] == keys
        assert snapshot.revision == max(cell[2] for cell in snapshot.cells)

    run(etcd, scenario)


def test_a_full_etcd_refuses_writes_and_says_what_to_do() -> None:
    with etcd_or_skip(options=[f"--quota-backend-bytes={QUOTA_BYTES}"]) as small:

        async def scenario(store: EtcdMetadata) -> None:
            async def fill() -> None:
                for at in range(WRITES_MAX):  # etcd counts what it has written to its file
                    await store.put(f"{at}", bytes(10_000), expected_version=0)

            with pytest.raises(StorageError, match="database space exceeded; compact") as raised:
                await fill()
            assert not isinstance(raised.value, UnknownOutcomeError)
            kept = await store.list("")
            assert 0 < len(kept) < WRITES_MAX
            with pytest.raises(StorageError, match="alarm disarm"):
                await store.put("a", b"", expected_version=0)

        run(small, scenario)


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    """An authority and a certificate for both sides."""
    try:
        return certificates(tmp_path_factory.mktemp("certificates"))
    except NotInstalled as missing:
        pytest.skip(str(missing))


@pytest.fixture(scope="module")
def guarded(keys: Certificates) -> Iterator[Etcd]:
    """An etcd with TLS on both sides, and users."""
    with etcd_or_skip(tls=keys, options=["--auth-token-ttl=1"]) as etcd:
        etcd.members[0].enable_users(NAME, PASSWORD, f"{NAME}/")
        yield etcd


async def opened(
    etcd: Etcd,
    tls: Tls | None,
    user: User | None = None,
    *,
    name: str = NAME,
    deadline_s: float = 1.0,
) -> EtcdMetadata:
    return await EtcdMetadata.open(etcd.url(name), tls=tls, user=user, deadline_s=deadline_s)


def test_tls_and_a_user_whose_token_is_renewed(guarded: Etcd, keys: Certificates) -> None:
    (member,) = guarded.members

    async def main() -> None:
        tls, user = Tls(keys.ca, keys.cert, keys.key), User(NAME, PASSWORD)
        store = await opened(guarded, tls, user, deadline_s=10.0)
        version = await store.put("a", b"1", expected_version=0)
        assert version
        lease = await store.grant(30.0)
        watch = store.watch("", version)
        # etcd keeps such tokens in memory.
        await asyncio.to_thread(member.kill)
        member.start()
        assert await store.get("a") == (b"1", version)
        assert await store.put("b", b"2", expected_version=0)
        assert await store.renew(lease)
        assert [each.key for each in await anext(watch)] == ["b"]
        await store.revoke(lease)
        await store.close()

    asyncio.run(main())


@pytest.mark.parametrize(
    ("user", "name", "said"),
    [
        (None, NAME, "permission denied"),  # the user is its certificate's
        (User(NAME, "wrong"), NAME, "authentication failed.*correct metadata.user"),
        (User(NAME, PASSWORD), "payments", "permission denied; grant metadata.user"),
    ],
)
def test_who_may_not_is_told_so(
    guarded: Etcd, keys: Certificates, user: User | None, name: str, said: str
) -> None:
    async def main() -> None:
        with pytest.raises(StorageError, match=said):
            await opened(guarded, Tls(keys.ca, keys.cert, keys.key), user, name=name)

    asyncio.run(main())


def test_users_may_be_enabled_while_a_broker_runs() -> None:
    with etcd_or_skip() as etcd:

        async def main() -> None:
            store = await opened(etcd, None, User(NAME, PASSWORD))
            other = await opened(etcd, None)
            await asyncio.to_thread(etcd.members[0].enable_users, NAME, PASSWORD, f"{NAME}/")
            assert await store.put("a", b"1", expected_version=0)
            with pytest.raises(StorageError, match=r"etcd wants a user: set metadata\.user"):
                await other.put("b", b"1", expected_version=0)
            await store.close()
            await other.close()

        asyncio.run(main())


def test_tls_without_our_own_certificate_or_their_authority_is_refused(
    guarded: Etcd, keys: Certificates, tmp_path: Path
) -> None:
    async def main() -> None:
        other = certificates(tmp_path)
        for tls in (None, Tls(keys.ca), Tls(other.ca, keys.cert, keys.key)):
            with pytest.raises(StorageError, match=guarded.members[0].endpoint):
                await opened(guarded, tls)
        with pytest.raises(StorageError, match=r"TLS file .*none.pem: No such file"):
            await opened(guarded, Tls(tmp_path / "none.pem"))

    asyncio.run(main())


def test_a_watch_of_what_may_not_be_read_is_refused(guarded: Etcd, keys: Certificates) -> None:
    async def main() -> None:
        tls, user = Tls(keys.ca, keys.cert, keys.key), User(NAME, PASSWORD)
        store = await opened(guarded, tls, user, deadline_s=5.0)
        store._root = "payments/"
        with pytest.raises(StorageError, match="permission denied"):
            await anext(store.watch("", 1))
        await store.close()

    asyncio.run(main())
