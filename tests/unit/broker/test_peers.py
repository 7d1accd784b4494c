"""Connections between brokers, and what one asks of another's leaders, over real sockets."""

import asyncio
from pathlib import Path

import pytest

from fencelog.broker.coordinators.leaders import Verified
from fencelog.broker.coordinators.outcomes import OpenOn
from fencelog.broker.handlers import peers
from fencelog.broker.metadata.catalog import GROUP_TOPIC, TRANSACTION_TOPIC
from fencelog.broker.peers.identity import Lane, connection_number, lane_of
from fencelog.coordination.controller.model import NO_LEADER, PartitionState
from fencelog.coordination.outcome import TransactionOutcome
from fencelog.coordination.ownership.model import NO_FENCE, OwnAnswer
from fencelog.coordination.transaction.state import ClientVersion, ProducerIdAndEpoch
from fencelog.errors import (
    ErrorCode,
    NotCoordinatorError,
    NotLeaderError,
    RequestError,
)
from fencelog.log.ownership import Owner
from fencelog.types import (
    CoordinatorEpoch,
    LeaderEpoch,
    ProducerEpoch,
    ProducerId,
    TopicId,
    TopicPartition,
)
from fencelog.wire.message import Message
from fencelog.wire.messages.broker_attach import BrokerAttachRequest, BrokerAttachResponse
from fencelog.wire.messages.broker_hello import BrokerHelloRequest, BrokerHelloResponse
from fencelog.wire.messages.broker_outcomes import BrokerOutcomesRequest, BrokerOutcomesResponse
from fencelog.wire.messages.broker_own_commits import (
    BrokerOwnCommitsRequest,
    BrokerOwnCommitsResponse,
)
from fencelog.wire.messages.broker_own_partition import (
    BrokerOwnPartitionRequest,
    BrokerOwnPartitionResponse,
)
from fencelog.wire.messages.broker_own_producers import (
    BrokerOwnProducersRequest,
    BrokerOwnProducersResponse,
)
from fencelog.wire.messages.broker_proof import BrokerProofRequest, BrokerProofResponse
from fencelog.wire.messages.broker_sever import BrokerSeverRequest, BrokerSeverResponse
from fencelog.wire.messages.broker_verify import BrokerVerifyRequest, BrokerVerifyResponse
from fencelog.wire.messages.broker_write_markers import (
    BrokerWriteMarkersRequest,
    BrokerWriteMarkersResponse,
)
from tests.support.brokers import (
    ASKED,
    ASKING,
    HERE,
    THERE,
    Target,
    begun,
    remote_leaders,
    topic_of,
)
from tests.support.log import marker
from tests.support.node import Peer, World, until
from tests.support.transactions import ID, Producer, partition_of

NAME, OTHER = TopicPartition("t", 0), TopicPartition("t", 1)
ASKED_OF_LEADERS = [
    (BrokerWriteMarkersRequest(), BrokerWriteMarkersResponse),
    (BrokerVerifyRequest(), BrokerVerifyResponse),
    (BrokerOutcomesRequest(), BrokerOutcomesResponse),
    (BrokerOwnPartitionRequest(), BrokerOwnPartitionResponse),
    (BrokerOwnCommitsRequest(), BrokerOwnCommitsResponse),
    (BrokerOwnProducersRequest(), BrokerOwnProducersResponse),
    (BrokerSeverRequest(), BrokerSeverResponse),
    (BrokerAttachRequest(), BrokerAttachResponse),
]


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def identity(producer: Producer) -> ProducerIdAndEpoch:
    return ProducerIdAndEpoch(ProducerId(producer.producer_id), ProducerEpoch(producer.epoch))


# -- the proof ---------------------------------------------------------------------------------


@pytest.mark.parametrize(("request_", "response"), ASKED_OF_LEADERS)
async def test_what_no_broker_has_proven_to_ask_is_refused(
    world: World, request_: Message, response: type[Message]
) -> None:
    async with world.node() as node, Peer.of(node) as peer:
        Target(node)
        answer = await peer.ask(request_, 0, response)
        assert getattr(answer, "error_code") == ErrorCode.CLUSTER_AUTHORIZATION_FAILED  # noqa: B009


async def test_a_single_broker_knows_no_requests_of_brokers(world: World) -> None:
    async with world.node() as node, Peer.of(node) as peer:
        with pytest.raises(asyncio.IncompleteReadError):
            await peer.ask(BrokerSeverRequest(), 0, BrokerSeverResponse)


@pytest.mark.parametrize(
    "changed", [{"secret": bytes(32)}, {"cluster_id": "another"}], ids=["secret", "cluster"]
)
async def test_who_is_not_of_the_cluster_gets_no_connection(
    world: World, changed: dict[str, object]
) -> None:
    async with world.node() as node:
        target = Target(node)
        peers = target.opener(ASKING._replace(**changed))
        with pytest.raises(RequestError) as refused:
            await peers.connection(THERE, Lane.LEADERS)
        assert refused.value.code is ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        assert target.incoming._proven == {}
        peers.close()


async def test_a_broker_that_does_not_know_the_secret_is_asked_nothing(world: World) -> None:
    async with world.node() as node:
        target = Target(node)
        target.incoming._identity = ASKED._replace(secret=bytes(32))
        # It lets everybody in, and cannot answer with a proof.
        target.incoming.prove = lambda on, message: BrokerProofResponse(proof=bytes(32))  # type: ignore[method-assign, assignment]
        peers = target.opener()
        with pytest.raises(RequestError, match="does not know the cluster's secret"):
            await peers.connection(THERE, Lane.LEADERS)
        peers.close()


async def test_a_proof_is_good_for_one_connection(world: World) -> None:
    async with world.node() as node, Peer.of(node) as peer:
        Target(node)
        hello = BrokerHelloRequest(
            cluster_id=ASKING.cluster_id,
            node_id=HERE,
            incarnation=ASKING.incarnation,
            target_node_id=THERE,
            target_incarnation=ASKED.incarnation,
            connection=3,
            nonce=bytes(32),
        )
        assert (await peer.ask(hello, 0, BrokerHelloResponse)).error_code == 0
        for _ in range(2):  # the second one without a hello
            answer = await peer.ask(BrokerProofRequest(proof=bytes(32)), 0, BrokerProofResponse)
            assert answer.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
            assert answer.proof == b""


# -- newer and older connections ---------------------------------------------------------------


def test_the_number_of_a_connection_tells_its_lane() -> None:
    numbers = [connection_number(count, lane) for count in range(1, 4) for lane in Lane]
    assert numbers == sorted(set(numbers))
    assert [lane_of(each) for each in numbers] == [*Lane] * 3


async def test_a_newer_connection_ends_what_the_older_one_of_its_lane_has_asked(
    world: World,
) -> None:  # E14, E17
    async with world.node() as node:
        target = Target(node)
        peers = target.opener()
        older = await peers.connection(THERE, Lane.LEADERS)
        fetches = await peers.connection(THERE, Lane.FETCHES)
        began, ended = asyncio.Event(), asyncio.Event()

        async def waits() -> None:
            began.set()
            try:
                await asyncio.Event().wait()
            finally:
                ended.set()

        (on,) = [c for c, peer in target.incoming._proven.items() if peer.lane is Lane.LEADERS]
        target.incoming.begin(on, waits())
        await began.wait()
        peers._peers[THERE].connections.clear()  # abandoned, and not closed
        newer = await peers.connection(THERE, Lane.LEADERS)
        assert newer is not older
        assert ended.is_set() or not target.incoming._work.get(on)
        await asyncio.wait_for(older.wait_closed(), 10)
        await asyncio.wait_for(ended.wait(), 10)
        assert not fetches.closed
        peers.close()


async def test_a_later_life_of_a_broker_ends_the_connections_of_the_earlier(world: World) -> None:
    async with world.node() as node:
        target = Target(node)
        earlier = target.opener()
        connections = [await earlier.connection(THERE, lane) for lane in Lane]
        later = target.opener(ASKING._replace(incarnation="later"))
        await later.connection(THERE, Lane.LEADERS)
        for each in connections:
            await asyncio.wait_for(each.wait_closed(), 10)
        with pytest.raises(RequestError, match="has taken the place"):
            await earlier.connection(THERE, Lane.LEADERS)
        earlier.close()
        later.close()


async def test_an_earlier_life_that_comes_late_ends_nothing_of_the_registered_one(
    world: World,
) -> None:
    async with world.node() as node:
        target = Target(node)
        target.registered[HERE] = "later"
        later = target.opener(ASKING._replace(incarnation="later"))
        connection = await later.connection(THERE, Lane.LEADERS)
        earlier = target.opener()
        with pytest.raises(RequestError, match="another life of this broker is registered"):
            await earlier.connection(THERE, Lane.LEADERS)
        assert not connection.closed
        # One that follows comes again once its registration is known.
        next_life = target.opener(ASKING._replace(incarnation="next"))
        with pytest.raises(RequestError, match="another life of this broker is registered"):
            await next_life.connection(THERE, Lane.LEADERS)
        target.registered[HERE] = "next"
        await next_life.connection(THERE, Lane.LEADERS)
        await asyncio.wait_for(connection.wait_closed(), 10)
        for each in (earlier, later, next_life):
            each.close()


# -- liveness ----------------------------------------------------------------------------------


async def test_a_broker_that_resets_and_refuses_is_gone(world: World) -> None:
    async with world.node() as node:
        target = Target(node)
        peers = target.opener()
        await peers.connection(THERE, Lane.LEADERS)
        assert target.gone == []
        await node.server.stop(drain_s=0)
        await until(lambda: target.gone, "the broker is reported")
        assert target.gone[0] == target.registration
        peers.close()


async def test_a_broker_that_never_answered_is_not_said_to_be_gone(world: World) -> None:
    async with world.node() as node:
        target = Target(node)
        await node.server.stop(drain_s=0)
        peers = target.opener()
        with pytest.raises(RequestError, match="connection refused"):
            await peers.connection(THERE, Lane.LEADERS)
        await asyncio.sleep(0)
        assert target.gone == []
        peers.close()


async def test_a_broker_that_does_not_answer_twice_is_a_warning_and_once_is_normal(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "fencelog.broker.peers")
    async with world.node() as node:
        target = Target(node)
        await node.server.stop(drain_s=0)
        peers = target.opener()
        await until(lambda: len(caplog.records) > 1, "it is told twice")
        assert [each.levelname for each in caplog.records] == ["INFO", "WARNING"]
        assert "no connection to broker 2" in caplog.text
        peers.close()


async def test_a_connection_that_is_lost_is_opened_again(world: World) -> None:
    async with world.node() as node:
        target = Target(node)
        peers = target.opener()
        first = await peers.connection(THERE, Lane.LEADERS)
        next(iter(target.incoming._proven)).abort()
        await asyncio.wait_for(first.wait_closed(), 10)
        assert not (await peers.connection(THERE, Lane.LEADERS)).closed
        assert target.gone == []
        peers.close()


async def test_a_silent_connection_is_given_up_though_nobody_waits_any_more(world: World) -> None:
    async with world.node() as node:
        target = Target(node)
        began = asyncio.Event()

        async def silent(*claim: object) -> OwnAnswer:
            began.set()
            return await asyncio.get_running_loop().create_future()

        target.local.attach = silent  # type: ignore[method-assign]
        peers = target.opener()
        connection = await peers.connection(THERE, Lane.LEADERS)
        request = BrokerAttachRequest(session="s", epoch=1)
        asked = asyncio.create_task(peers.ask(THERE, request, BrokerAttachResponse, 0.5))
        await began.wait()
        asked.cancel()
        await asyncio.wait([asked])
        assert asked.cancelled()
        await asyncio.wait_for(connection.wait_closed(), 10)
        late = asyncio.create_task(peers.ask(THERE, request, BrokerAttachResponse, 10))
        began.clear()
        await began.wait()
        peers.close()
        with pytest.raises(NotLeaderError):
            await late


# -- leaders elsewhere -------------------------------------------------------------------------


async def test_markers_are_written_by_the_leader_and_reported_once_committed(world: World) -> None:
    async with world.node() as node, Peer.of(node) as peer:
        producer = await begun(peer)
        log = partition_of(node, "t").log
        async with remote_leaders(node) as (_, leaders):
            world.disk.hold("t-0")
            end = [marker(producer.producer_id, producer.epoch, 0, commit=True)]
            result = asyncio.ensure_future(leaders.write_markers(NAME, end))
            await until(lambda: log.log_end_offset == 2, "the leader appends the marker")
            assert not result.done()
            world.disk.release()
            assert await result is True
            assert log.open_transactions() == []


async def test_markers_for_another_leader_epoch_are_to_be_sent_again(world: World) -> None:  # E17
    async with world.node() as node, Peer.of(node) as peer:
        producer = await begun(peer)
        async with remote_leaders(node) as (target, leaders):
            key = (topic_of(node).topic_id, 0)
            target.placement.states[key] = PartitionState((THERE,), THERE, LeaderEpoch(1), (THERE,))
            end = [marker(producer.producer_id, producer.epoch, 0, commit=True)]
            assert await leaders.write_markers(NAME, end) is False
            target.placement.states[key] = PartitionState((THERE,), NO_LEADER, LeaderEpoch(1), ())
            assert await leaders.write_markers(NAME, end) is False
            assert partition_of(node, "t").log.log_end_offset == 1


async def test_what_the_catalog_has_not_heard_of_is_not_deleted(world: World) -> None:  # E17
    async with world.node() as node, Peer.of(node) as peer:
        producer = await begun(peer)
        end = [marker(producer.producer_id, producer.epoch, 0, commit=True)]
        owner = Owner(None, 1, "session", None, "holder", is_live=True)
        async with remote_leaders(node) as (_, leaders):
            topic = node.broker.catalog._topics.pop("t")
            assert await leaders.write_markers(NAME, end) is False
            assert await leaders.own_partition(NAME, owner) is None
            node.broker.catalog._topics["t"] = topic
            await node.broker.controller.delete_topics([topic])
            assert await leaders.write_markers(NAME, end) is True
            assert await leaders.own_partition(NAME, owner) == NO_FENCE


async def test_markers_wait_for_no_leader_that_is_gone(world: World) -> None:
    async with world.node() as node, Peer.of(node) as peer:
        producer = await begun(peer)
        end = [marker(producer.producer_id, producer.epoch, 0, commit=True)]
        async with remote_leaders(node) as (_, leaders):
            await node.server.stop(drain_s=0)
            assert await leaders.write_markers(NAME, end) is False


@pytest.mark.parametrize("version", [*ClientVersion])
async def test_a_coordinator_elsewhere_verifies_with_its_epoch(
    world: World, version: ClientVersion
) -> None:
    async with world.node() as node, Peer.of(node) as peer:
        producer = await begun(peer)
        (loaded,) = node.transactions.loaded()
        async with remote_leaders(node) as (_, leaders):
            found = await leaders.verify(ID, identity(producer), [NAME], version)
            assert found == Verified({NAME: ErrorCode.NONE}, loaded.shard.coordinator_epoch)
            stranger = ProducerIdAndEpoch(ProducerId(999), ProducerEpoch(0))
            found = await leaders.verify(ID, stranger, [NAME], version)
            assert found.errors[NAME] is ErrorCode.INVALID_PRODUCER_ID_MAPPING


async def test_what_a_coordinator_cannot_commit_holds_up_no_markers(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peers, "COMMIT_WAIT_S", 0.2)
    async with world.node() as node, Peer.of(node) as peer:
        producer = await begun(peer)
        async with remote_leaders(node) as (_, leaders):
            world.disk.hold("__transaction_state")  # as where too few replicas are in sync
            verifying = asyncio.ensure_future(
                leaders.verify(ID, identity(producer), [OTHER], ClientVersion.V2)
            )
            await until(lambda: world.disk.waiting, "the coordinator's append waits")
            end = [marker(producer.producer_id, producer.epoch, 0, commit=True)]
            assert await leaders.write_markers(NAME, end)
            with pytest.raises(NotLeaderError, match=r"nothing was committed for 0\.2 s"):
                await verifying
            world.disk.release()


async def test_a_coordinator_that_knows_another_topic_of_the_name_verifies_nothing(
    world: World,
) -> None:
    async with world.node() as node, Peer.of(node) as peer:
        producer = await begun(peer)
        async with remote_leaders(node) as (_, leaders):
            leaders._topic_id = lambda name: TopicId(bytes(16))  # type: ignore[method-assign]
            with pytest.raises(NotLeaderError, match="another one"):
                await leaders.verify(ID, identity(producer), [NAME], ClientVersion.V2)


def test_the_verification_of_a_deposed_coordinator_is_stale(world: World) -> None:  # E17
    async def scenario() -> None:
        async with world.node() as node, Peer.of(node) as peer:
            producer = await begun(peer)
            end = [marker(producer.producer_id, producer.epoch, 7, commit=True)]
            assert await node.broker.leaders.write_markers(NAME, end) is True
            log = partition_of(node, "t").log
            of = [
                Verified({}, CoordinatorEpoch(each)).is_stale(log, ProducerId(producer.producer_id))
                for each in (6, 7, 8)
            ]
            assert of == [True, False, False]

    asyncio.run(scenario())


async def test_outcomes_are_those_of_every_shard_as_its_leader_answers(world: World) -> None:
    async with world.node() as node, Peer.of(node) as peer:
        producer = await begun(peer)
        async with remote_leaders(node) as (_, leaders):
            topic = topic_of(node, node.transactions.topic)
            store = node._ports.metadata
            keys = [f"partition/{topic.topic_id.hex()}/{n}" for n in range(topic.partitions)]
            for key in keys:
                state = PartitionState((THERE,), THERE, LeaderEpoch(0), (THERE,))
                assert await store.put(key, state.encode(), expected_version=0)
            asked = [(identity(producer), NAME), (identity(producer), OTHER)]
            outcomes = await leaders.outcomes([*map(_open_on, asked)])
            assert outcomes.of(*asked[0]) is TransactionOutcome.LISTED
            assert outcomes.of(*asked[1]) is TransactionOutcome.ABORT
            # Whoever answered leads no more.
            cell = await store.get(keys[-1])
            assert cell is not None
            moved = PartitionState((THERE,), THERE, LeaderEpoch(1), (THERE,))
            assert await store.put(keys[-1], moved.encode(), expected_version=cell[1])
            with pytest.raises(NotLeaderError, match="has moved"):
                await leaders.outcomes([*map(_open_on, asked)])


def _open_on(asked: tuple[ProducerIdAndEpoch, TopicPartition]) -> OpenOn:
    return OpenOn(*asked)


async def test_of_all_groups_that_are_told_an_owner_later_one_line_is_logged(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    async with world.node() as node, remote_leaders(node) as (_, leaders):
        for number in range(100):
            assert await leaders.own_commits(f"g{number}", {}) is False
        (line,) = (each.getMessage() for each in caplog.records if "owner" in each.getMessage())
        assert line.startswith("cannot tell group g0 its owner now: ")


async def test_owners_are_told_to_logs_groups_and_producers_elsewhere(world: World) -> None:  # O8
    async with world.node() as node, Peer.of(node) as peer:
        await peer.create_topic("t", partitions=2)
        owner = Owner(None, 1, "session", "__fencelog.own/a~1", "holder", is_live=True)
        async with remote_leaders(node) as (_, leaders):
            assert await leaders.own_partition(NAME, owner) == 0
            assert await leaders.own_commits("g", {}) is False  # there is no topic yet
            used: list[tuple[str, int]] = []

            async def open_internal(topic_name: str, index: int) -> None:
                used.append((topic_name, index))
                raise NotCoordinatorError("another broker leads it")

            leaders.open_internal = open_internal
            assert await leaders.own_commits("g", {}) is False
            assert await leaders.own_producers("a", owner) is False
            assert used == [(GROUP_TOPIC, 0), (TRANSACTION_TOPIC, 0)], "a claim may use them first"
            await node.groups.shard_of("g")
            assert await leaders.own_commits("g", {NAME: owner._replace(group="g")}) is True
            assert (await leaders.offsets_partition("g")).topic == GROUP_TOPIC
