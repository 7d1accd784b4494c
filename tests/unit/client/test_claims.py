"""A claim against a broker that answers what the test wants: renewals, attaching, the end."""

import asyncio
import threading
import time
from collections.abc import Callable, Iterator

import pytest

import fencelog
import fencelog.aio
from fencelog.client.blocking import Client
from fencelog.client.claim import Claim as ClaimCore
from fencelog.client.cluster import Cluster, ClusterOptions
from fencelog.client.grants import ClaimOptions
from fencelog.errors import (
    ClaimRefusedError,
    ErrorCode,
    FencelogError,
    OwnershipLostError,
    RequestError,
)
from fencelog.types import TopicPartition
from fencelog.wire.api_versions import ApiKey
from fencelog.wire.messages.api_versions import ApiVersionsResponse
from fencelog.wire.messages.attach_owner import AttachOwnerResponse
from fencelog.wire.messages.init_producer_id import InitProducerIdResponse
from fencelog.wire.messages.own import OwnedResource, OwnRequest, OwnResponse
from fencelog.wire.messages.release_ownership import ReleaseOwnershipResponse
from fencelog.wire.messages.renew_ownership import RenewOwnershipResponse
from tests.support.waiting import wait_until
from tests.unit.client.fake_broker import Answer, FakeBroker

PLACE = TopicPartition("t", 0)
LEASE_S = 0.9
"""So short that a renewal is sent at once, and that the end of a lease can be waited for."""


class Owner(FakeBroker):
    """Grants each claim with the next epoch, unless the script says otherwise."""

    def __init__(self) -> None:
        super().__init__()
        self.claims: list[OwnRequest] = []
        self.claimed_at: list[float] = []
        self.renewal: Callable[[], Answer] = lambda: RenewOwnershipResponse(lease_ms=900)

    def _answer(self, api_key: int, version: int, body: memoryview) -> Answer:
        if api_key == ApiKey.OWN:
            self.claimed_at.append(time.monotonic())
            self.claims.append(OwnRequest.read(body, version))
        if self.script[api_key]:
            return super()._answer(api_key, version, body)
        match api_key:
            case ApiKey.OWN:
                epoch = len(self.claims)
                owned = [
                    OwnedResource(resource=each.resource, generation=1, epoch=epoch)
                    for each in self.claims[-1].resources
                ]
                return OwnResponse(session=f"s{epoch}", lease_ms=900, resources=owned)
            case ApiKey.ATTACH_OWNER:
                return AttachOwnerResponse(lease_ms=900)
            case ApiKey.RENEW_OWNERSHIP:
                return self.renewal()
            case ApiKey.RELEASE_OWNERSHIP:
                return ReleaseOwnershipResponse()
        return super()._answer(api_key, version, body)


@pytest.fixture
def owner() -> Iterator[Owner]:
    with Owner() as started:
        yield started


@pytest.fixture
def log(owner: Owner) -> Iterator[Client]:
    with fencelog.connect(owner.address, api_timeout_s=5) as client:
        yield client


def test_each_connection_of_a_claim_attaches_before_anything_else(
    owner: Owner, log: Client
) -> None:  # O7
    owner.next(ApiKey.INIT_PRODUCER_ID, InitProducerIdResponse(producer_id=5))
    with log.own("t/0", lease_s=30.0) as claim:
        before = len(owner.conversations)
        with claim.producer() as producer:
            producer.send("t", b"a", partition=0)
    said = owner.conversations[before:]
    assert [each[:2] for each in said] == [[ApiKey.API_VERSIONS, ApiKey.ATTACH_OWNER]]
    assert said[0][-1] == ApiKey.PRODUCE
    assert ApiKey.PRODUCE not in owner.conversations[0]


def test_a_claim_that_ends_is_released_on_the_connection_it_came_on(
    owner: Owner, log: Client
) -> None:
    claim = log.own("t/0", lease_s=30.0)
    claim.release()
    claim.release()
    (home,) = (each for each in owner.conversations if ApiKey.OWN in each)
    assert home == [ApiKey.API_VERSIONS, ApiKey.OWN, ApiKey.RELEASE_OWNERSHIP]
    assert not claim.lost.is_set()
    with pytest.raises(OwnershipLostError, match="it was released"):
        claim.check()


def test_who_waits_for_a_claim_whose_connection_is_lost_is_told_that_it_was_released(
    owner: Owner,
) -> None:  # O7
    async def scenario() -> None:
        async with await fencelog.aio.connect(owner.address) as log:
            claim = await log.own("t/0", lease_s=30.0).__aenter__()
            assert claim._home is not None
            claim._home.close()
            waiting = asyncio.create_task(claim.check())
            await asyncio.sleep(0)
            assert not waiting.done()
            await claim.release()
            with pytest.raises(OwnershipLostError, match="it was released"):
                await asyncio.wait_for(waiting, 10)

    asyncio.run(scenario())


def test_a_claim_of_what_is_being_granted_is_made_again(owner: Owner, log: Client) -> None:  # O9
    busy = OwnResponse(error_code=ErrorCode.CLAIM_IN_PROGRESS)
    owner.next(ApiKey.OWN, busy, busy)
    with log.own("t/0", lease_s=30.0) as claim:
        assert claim.epoch == 3


def test_a_waiting_claim_is_repeated_on_its_connection_with_its_id_and_tells_its_place(
    owner: Owner, log: Client
) -> None:  # O10
    owner.next(
        ApiKey.OWN,
        *(OwnResponse(error_code=ErrorCode.CLAIM_WAITING, place=place) for place in (2, 2, 0)),
    )
    places: list[int] = []
    with log.own("t/0", wait=True, lease_s=30.0, on_waiting=places.append):
        assert places == [2, 0]
    assert len({each.claim_id for each in owner.claims} - {""}) == 1
    assert all(each.wait_ms > 0 for each in owner.claims), "without a wait it would sever"
    assert [each.count(ApiKey.OWN) for each in owner.conversations if ApiKey.OWN in each] == [4]


def test_a_wait_ends_at_its_time(owner: Owner, log: Client) -> None:
    waiting = OwnResponse(error_code=ErrorCode.CLAIM_WAITING, place=1)
    owner.script[ApiKey.OWN] = [lambda _version, _body: waiting] * 100_000
    with pytest.raises(ClaimRefusedError, match=r"still waiting after 0.05 s, 1 claims before"):
        log.own("t/0", wait=0.05)
    assert all(each.wait_ms > 0 for each in owner.claims)


def test_a_lost_connection_claims_again_with_what_was_held_and_goes_on(
    owner: Owner, log: Client
) -> None:  # O5
    owner.next(ApiKey.INIT_PRODUCER_ID, InitProducerIdResponse(producer_id=5))
    owner.next(ApiKey.RENEW_OWNERSHIP, None)
    with log.own("t/0", lease_s=LEASE_S) as claim, claim.producer() as producer:
        wait_until(lambda: claim.epoch == 2, what="another grant")
        with claim.guard():
            producer.send("t", b"a", partition=0)
            assert len(producer.flush()) == 1
        assert not claim.lost.is_set()
    again = owner.claims[1].resources[0]
    assert (again.generation, again.prev_epoch) == (1, 1)
    assert owner.asked.count(ApiKey.ATTACH_OWNER) == 2, "once for each grant"


@pytest.mark.parametrize("where", ["renewal", "reconnect", "attach"])
def test_a_claim_is_lost_for_good_once_it_is_fenced(owner: Owner, log: Client, where: str) -> None:
    fenced = ErrorCode.OWNER_FENCED
    if where == "renewal":
        owner.next(ApiKey.RENEW_OWNERSHIP, RenewOwnershipResponse(error_code=fenced))
    elif where == "attach":
        owner.next(ApiKey.ATTACH_OWNER, AttachOwnerResponse(error_code=fenced))
    claim = log.own("t/0", lease_s=LEASE_S)
    told: list[OwnershipLostError] = []
    claim.on_lost(told.append)
    if where == "reconnect":
        owner.next(ApiKey.RENEW_OWNERSHIP, None)
        owner.next(ApiKey.OWN, OwnResponse(error_code=fenced))
    elif where == "attach":
        with pytest.raises(OwnershipLostError):
            claim.producer()
    assert claim.lost.wait(10)
    wait_until(lambda: told, what="the callback")
    with pytest.raises(OwnershipLostError), claim.guard():
        raise AssertionError("the block of a lost claim does not run")
    with pytest.raises(OwnershipLostError):
        claim.producer()
    with pytest.raises(OwnershipLostError):
        list(claim.fetch(PLACE, 0, 1))
    claim.on_lost(told.append)
    wait_until(lambda: len(told) == 2, what="the callback of one that came late")
    assert len(owner.claims) == (2 if where == "reconnect" else 1)
    claim.release()
    assert ApiKey.RELEASE_OWNERSHIP not in owner.asked


def test_a_claim_is_lost_before_its_lease_ends_if_no_renewal_is_answered(
    owner: Owner, log: Client
) -> None:  # O10
    answers = threading.Event()

    def silent() -> Answer:
        answers.wait(30)
        return None

    owner.renewal = silent
    owner.script[ApiKey.OWN] = []
    try:
        with log.own("t/0", lease_s=LEASE_S) as claim:
            owner.script[ApiKey.OWN] = [lambda _version, _body: silent()] * 10
            with (
                pytest.raises(OwnershipLostError, match=r"answered within its lease of 0.9 s"),
                claim.guard(),
            ):
                assert claim.lost.wait(10)
            assert claim.epoch == 1
    finally:
        answers.set()


def test_a_lease_is_counted_from_before_the_request_arrives(owner: Owner, log: Client) -> None:
    # O10
    arrived: list[float] = []

    def renew() -> Answer:
        arrived.append(time.monotonic())
        return RenewOwnershipResponse(lease_ms=900)

    owner.renewal = renew
    with log.own("t/0", lease_s=LEASE_S) as claim:
        lease = claim._core.lease
        assert lease.sent_s <= owner.claimed_at[0]
        renewed = wait_until(
            lambda: claim._core.lease if claim._core.lease != lease else None, what="a renewal"
        )
        assert lease.sent_s < renewed.sent_s <= arrived[0]


def test_a_process_that_stood_still_finds_its_lease_over_before_any_timer_runs(
    log: Client,
) -> None:  # O10
    with log.own("t/0", lease_s=LEASE_S) as claim:

        async def stand_still(_: Cluster) -> None:
            time.sleep(LEASE_S)  # noqa: ASYNC251 - as a stopped process does
            await claim._core.check()

        with pytest.raises(OwnershipLostError, match="within its lease"):
            log.run(stand_still)


def test_a_refused_claim_leaves_no_connection_of_its_own(owner: Owner, log: Client) -> None:
    refused = OwnedResource(
        resource="t/0", error_code=ErrorCode.RESOURCE_OWNED, error_message="x has t/0 now"
    )
    owner.next(ApiKey.OWN, OwnResponse(error_code=refused.error_code, resources=[refused]))
    with pytest.raises(ClaimRefusedError, match="x has t/0 now"):
        log.own("t/0", generation=6)
    assert owner.asked.count(ApiKey.OWN) == 1
    assert log.run(open_connections) == 1


@pytest.mark.parametrize("how", ["a defect", "a queue", "close"])
def test_a_claim_that_nothing_renews_any_more_is_lost(
    owner: Owner, log: Client, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    claim = log.own("t/0", lease_s=30.0)
    core = claim._core
    told: list[OwnershipLostError] = []
    claim.on_lost(told.append)

    async def fail() -> None:
        raise ZeroDivisionError

    async def disconnect(_: Cluster) -> None:
        assert core._home is not None
        if how == "a defect":
            monkeypatch.setattr(core, "_once", fail)
        core._home.close("the test")

    if how == "a queue":
        owner.next(ApiKey.OWN, OwnResponse(error_code=ErrorCode.CLAIM_WAITING, place=1))
    if how == "close":
        log.close()
    else:
        log.run(disconnect)
    assert claim.lost.wait(10)
    (error,) = wait_until(lambda: told, what="the callback")
    reasons = {"a defect": "ZeroDivisionError", "a queue": "it waits", "close": "client is closed"}
    assert reasons[how] in str(error)
    if how != "close":
        with pytest.raises(OwnershipLostError, match=reasons[how]):
            claim.check()


def test_a_change_before_its_waiter_first_runs_is_seen() -> None:
    async def wait() -> None:
        cluster = Cluster(ClusterOptions(bootstrap_servers="a:1"))
        claim = ClaimCore(cluster, ClaimOptions(resources=("x",)))
        assert repr(claim) == "<claim of x, not granted>"
        waiter = asyncio.create_task(claim.wait_change())
        claim._signal()
        async with asyncio.timeout(10):
            await waiter

    asyncio.run(wait())


async def open_connections(cluster: Cluster) -> int:
    await cluster.reach()
    return sum(not each.closed for each in cluster._connections.values())


def test_a_claim_without_a_group_commits_nothing_and_one_without_an_id_begins_nothing(
    log: Client,
) -> None:
    with log.own("t/0", lease_s=30.0) as claim:
        with pytest.raises(FencelogError, match="no group"):
            claim.commit_offsets({PLACE: 1})
        with pytest.raises(FencelogError, match="no transactional id"):
            claim.producer(transactional=True)


def test_a_claim_shows_what_it_is_of_and_whether_it_is_live(owner: Owner, log: Client) -> None:
    claim = log.own(["t/0", "job"], group="g", lease_s=30.0)
    assert repr(claim) == "<claim of t/0, job in group g, epoch 1, live>"
    claim.release()
    assert repr(claim) == "<claim of t/0, job in group g, epoch 1, released>"
    owner.next(ApiKey.RENEW_OWNERSHIP, RenewOwnershipResponse(error_code=ErrorCode.OWNER_FENCED))
    with log.own("job", lease_s=LEASE_S) as lost:
        assert lost.lost.wait(10)
        assert repr(lost) == "<claim of job, epoch 2, lost>"


def test_ownership_needs_a_broker_that_has_it(owner: Owner) -> None:
    owner.next(ApiKey.API_VERSIONS, ApiVersionsResponse())
    with (
        fencelog.connect(owner.address) as log,
        pytest.raises(RequestError, match="not fencelog") as refused,
    ):
        log.own("t/0")
    assert refused.value.code is ErrorCode.UNSUPPORTED_VERSION


def test_the_block_of_an_asyncio_guard_is_cancelled_when_the_claim_is_lost(owner: Owner) -> None:
    owner.next(ApiKey.RENEW_OWNERSHIP, RenewOwnershipResponse(error_code=ErrorCode.OWNER_FENCED))

    async def hold() -> None:
        async with (
            await fencelog.aio.connect(owner.address) as log,
            log.own("t/0", lease_s=LEASE_S) as claim,
        ):
            with pytest.raises(OwnershipLostError):
                async with claim.guard():
                    await asyncio.sleep(30)
            assert claim.lost.is_set()

    asyncio.run(hold())


def test_a_claim_is_entered_once(owner: Owner) -> None:
    async def hold() -> None:
        async with await fencelog.aio.connect(owner.address) as log:
            claim = log.own("t/0", lease_s=30.0)
            for _ in range(2):
                with pytest.raises(FencelogError, match="entered before"):
                    async with claim, claim:
                        raise AssertionError("it would renew twice")

    asyncio.run(hold())
    assert len(owner.claims) == 1


def test_a_block_that_fails_by_itself_says_why(owner: Owner) -> None:
    async def hold() -> None:
        async with (
            await fencelog.aio.connect(owner.address) as log,
            log.own("t/0", lease_s=30.0) as claim,
        ):
            with pytest.raises(TimeoutError, match="of the block"):
                async with claim.guard():
                    raise TimeoutError("of the block")
            await claim.check()

    asyncio.run(hold())


def test_nobody_is_connected_to_a_wrong_address() -> None:
    with pytest.raises(RequestError) as refused:
        fencelog.connect("127.0.0.1:1")
    assert refused.value.code is ErrorCode.NETWORK_EXCEPTION
    with pytest.raises(ValueError, match="is not an address"):
        fencelog.connect("127.0.0.1:x")
