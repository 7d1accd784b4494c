"""What `fencelog partition elect` says before anything is changed."""

import pytest

from fencelog.cli.partition_elect import needless
from fencelog.client.model import PartitionDescription, ReplicaEnds
from fencelog.types import TopicPartition

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
