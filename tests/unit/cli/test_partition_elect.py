"""What `fencelog partition elect` says before anything is changed."""

from collections.abc import Sequence

import pytest

from fencelog.cli.partition_elect import elect_all, needless
from fencelog.client.blocking import Client
from fencelog.client.model import PartitionDescription, ReplicaEnds, TopicDescription
from fencelog.errors import ErrorCode, RequestError
from fencelog.types import TopicId, TopicPartition

NAME = TopicPartition("t", 0)
NAMED = 2
SILENT = ReplicaEnds(broker=1, problem="not live")


def ends(broker: int) -> ReplicaEnds:
    return ReplicaEnds(broker=broker, log_end_offset=3, high_watermark=3, last_epoch=0)


@pytest.mark.parametrize(
    ("leader", "in_sync", "answers", "said"),
    [
        (2, (1, 2), [ends(1), ends(2)], "broker 2 leads t/0 in leader epoch 4 already"),
        (1, (1,), [ends(1), ends(2)], "broker 1 leads t/0 in leader epoch 4 and has all"),
        (-1, (1,), [ends(1), ends(2)], "broker 1 is in sync and is going to lead t/0"),
        (-1, (1,), [SILENT, ends(2)], None),
        (-1, (), [ends(1), ends(2)], None),
    ],
)
def test_an_election_is_needless_while_a_replica_that_has_everything_is_live(
    leader: int, in_sync: tuple[int, ...], answers: list[ReplicaEnds], said: str | None
) -> None:
    partition = PartitionDescription(
        partition=0, leader=leader, leader_epoch=4, replicas=(1, 2), in_sync=in_sync
    )
    reason = needless(NAME, NAMED, partition, answers)
    assert (reason is None) == (said is None)
    if reason is not None and said is not None:
        assert reason.startswith(said)
        assert reason.endswith("would be refused") == (leader != NAMED)


class Answers(Client):
    """Two first replicas did not lead, and one of them still does not."""

    def __init__(self) -> None:
        pass

    def elect_preferred_leaders(self) -> dict[TopicPartition, RequestError | None]:
        code = ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE
        refused = RequestError(code, "broker 2 is not in sync")
        return {TopicPartition("t", 1): refused, TopicPartition("t", 0): None}

    def topics(self, names: Sequence[str] | None = None) -> list[TopicDescription]:
        assert names == ["t"]
        partitions = tuple(
            PartitionDescription(
                partition=each, leader=3, leader_epoch=4, replicas=(each + 1, 3), in_sync=(3,)
            )
            for each in range(3)
        )
        topic_id = TopicId(bytes(16))
        return [
            TopicDescription(name="t", topic_id=topic_id, internal=False, partitions=partitions)
        ]


def test_each_partition_that_its_first_replica_did_not_lead_has_a_row() -> None:
    elected, refused = elect_all(Answers())
    assert elected == {"topic": "t", "partition": 0, "leader": 1, "problem": None}
    assert (refused["partition"], refused["leader"]) == (1, 3)
    assert "broker 2 is not in sync" in str(refused["problem"])
