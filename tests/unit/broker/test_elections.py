"""An operator's elections: what ElectLeaders changes in a cluster, and what it refuses."""

from pathlib import Path

import pytest

from fencelog.broker.metadata.elections import Elections
from fencelog.broker.metadata.placement import ElectionType
from fencelog.coordination.controller.model import NO_LEADER, PartitionState
from fencelog.errors import ErrorCode, RequestError
from fencelog.types import LeaderEpoch, NodeId, Offset
from fencelog.wire.messages.elect_leaders import (
    ElectLeadersRequest,
    ElectLeadersResponse,
    TopicPartitions,
)
from fencelog.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from fencelog_sim.world.metadata import SimStore
from tests.support.cluster_metadata import Host, cluster, in_virtual_time, make_topic
from tests.support.node import Peer, World, batch

ONE, TWO, THREE, GONE = NodeId(1), NodeId(2), NodeId(3), NodeId(4)
ALL = (ONE, TWO, THREE)
WAITING = PartitionState(ALL, NO_LEADER, LeaderEpoch(5), ())
UNCLEAN, PREFERRED = ElectionType.UNCLEAN, ElectionType.PREFERRED


def elections(host: Host) -> Elections:
    return Elections(host.session, host.state, host.feed.min_isr)


def life(host: Host) -> str:
    return host.registration.registration.incarnation


def code(refused: RequestError | None) -> ErrorCode:
    return ErrorCode.NONE if refused is None else refused.code


def test_an_operator_names_who_leads_what_nobody_may_lead() -> None:
    async def main() -> None:
        hosts = await cluster(SimStore(), *ALL)
        topic = await make_topic(hosts[0], "t", [WAITING, WAITING])
        found = elections(hosts[0])
        assert await found.elect(topic.topic_id, 0, UNCLEAN, TWO) is None
        assert await found.elect(topic.topic_id, 1, UNCLEAN, None) is None
        led = {key.partition: each.state for key, each in hosts[0].state.partitions.items()}
        assert led == {
            0: PartitionState(ALL, TWO, LeaderEpoch(6), (TWO,), (), life(hosts[1])),
            1: PartitionState(ALL, ONE, LeaderEpoch(6), (ONE,), (), life(hosts[0])),
        }
        again = await found.elect(topic.topic_id, 0, UNCLEAN, THREE)
        assert code(again) is ErrorCode.ELECTION_NOT_NEEDED

    in_virtual_time(main)


@pytest.mark.parametrize(
    ("kind", "state", "node", "error"),
    [
        (UNCLEAN, WAITING, GONE, ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE),
        (UNCLEAN, WAITING._replace(replicas=(GONE,)), None, "ELIGIBLE_LEADERS_NOT_AVAILABLE"),
        (PREFERRED, WAITING, None, "PREFERRED_LEADER_NOT_AVAILABLE"),
    ],
)
def test_what_cannot_be_elected_stays_as_it_is(
    kind: ElectionType, state: PartitionState, node: NodeId | None, error: str | ErrorCode
) -> None:
    async def main() -> None:
        hosts = await cluster(SimStore(), *ALL)
        topic = await make_topic(hosts[0], "t", [state])
        refused = await elections(hosts[0]).elect(topic.topic_id, 0, kind, node)
        assert code(refused) is (ErrorCode[error] if isinstance(error, str) else error)
        (stored,) = hosts[0].state.partitions.values()
        assert stored.state == state

    in_virtual_time(main)


def test_the_first_replica_leads_again_at_once_if_it_is_in_sync() -> None:
    async def main() -> None:
        hosts = await cluster(SimStore(), *ALL)
        led = PartitionState(ALL, TWO, LeaderEpoch(3), ALL, (), life(hosts[1]))
        topic = await make_topic(hosts[0], "t", [led])
        found = elections(hosts[2])
        await hosts[2].state.until(lambda: bool(hosts[2].state.partitions))
        assert await found.elect(topic.topic_id, 0, PREFERRED, None) is None
        (stored,) = hosts[2].state.partitions.values()
        assert (stored.state.leader, stored.state.leader_epoch, stored.state.isr) == (1, 4, ALL)
        again = await found.elect(topic.topic_id, 0, PREFERRED, None)
        assert code(again) is ErrorCode.ELECTION_NOT_NEEDED
        missing = await found.elect(topic.topic_id, 1, PREFERRED, None)
        assert code(missing) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    in_virtual_time(main)


def test_nobody_is_elected_over_a_replica_that_has_come_back_unseen() -> None:
    async def main() -> None:
        store = SimStore()
        late, other, third = await cluster(store, *ALL)
        other.kill()
        third.kill()
        del store.values["broker/2"]  # as the controller fences it; its partitions wait
        waiting = PartitionState(ALL, NO_LEADER, LeaderEpoch(5), (TWO,))
        await late.state.start()
        topic = await make_topic(late, "t", [waiting])
        late.session.lateness = lambda: 30.0
        back = await Host(store, 2, life=2).join(controls=False)
        refused = await elections(late).elect(topic.topic_id, 0, UNCLEAN, ONE)
        assert code(refused) in (ErrorCode.REQUEST_TIMED_OUT, ErrorCode.ELECTION_NOT_NEEDED)
        state = PartitionState.decode("k", store.values[f"partition/{topic.topic_id.hex()}/0"][0])
        assert state == waiting
        assert back.node in back.state.brokers

    in_virtual_time(main)


async def elected(peer: Peer, version: int, **request: object) -> dict[tuple[str, int], int]:
    answer = await peer.ask(ElectLeadersRequest(**request), version, ElectLeadersResponse)  # type: ignore[arg-type]
    assert answer.error_code == 0
    return {
        (one.topic, each.partition_id): each.error_code
        for one in answer.replica_election_results
        for each in one.partition_result
    }


async def test_a_single_broker_needs_no_election(tmp_path: Path) -> None:
    async with World(tmp_path).node() as node, Peer.of(node) as peer:
        await peer.create_topic("t", partitions=2)
        asked = [TopicPartitions(topic="t", partitions=[0, 2]), TopicPartitions(topic="u")]
        assert await elected(peer, 2, topic_partitions=asked, election_type=1) == {
            ("t", 0): ErrorCode.ELECTION_NOT_NEEDED,
            ("t", 2): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        }
        for version in (0, 1, 2):
            assert await elected(peer, version, topic_partitions=None) == {}
        unknown = ElectLeadersRequest(election_type=2, topic_partitions=None)
        answer = await peer.ask(unknown, 2, ElectLeadersResponse)
        assert answer.error_code == ErrorCode.INVALID_REQUEST


async def test_a_replica_says_where_it_ends_whoever_leads(tmp_path: Path) -> None:
    async with World(tmp_path).node() as node, Peer.of(node) as peer:
        await peer.create_topic("t")
        await peer.produce("t", batch("a"))
        partition = node.broker.logs.get("t", 0)
        assert partition is not None
        partition.read_error = ErrorCode.NOT_LEADER_OR_FOLLOWER
        partition.log.high_watermark = Offset(0)

        async def end(replica: int, level: int) -> tuple[int, int, int]:
            asked = ListOffsetsPartition(partition_index=0, timestamp=-1)
            request = ListOffsetsRequest(
                replica_id=replica,
                isolation_level=level,
                topics=[ListOffsetsTopic(name="t", partitions=[asked])],
            )
            answer = await peer.ask(request, 4, ListOffsetsResponse)
            (found,) = answer.topics[0].partitions
            return found.error_code, found.offset, found.leader_epoch

        assert (await end(-1, 0))[0] == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert await end(-2, 0) == (0, 0, 0)
        assert await end(-2, 2) == (0, 1, 0)
        assert (await end(-2, 7))[0] == ErrorCode.INVALID_REQUEST
