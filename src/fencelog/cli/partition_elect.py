"""``fencelog partition elect``: an operator's election, with what it may lose."""

from typing import TYPE_CHECKING

from fencelog.cli.options import INDEXES, whole_number
from fencelog.cli.output import Row, UsageError
from fencelog.errors import ErrorCode, RequestError
from fencelog.types import TopicPartition

if TYPE_CHECKING:
    from fencelog.client.blocking import Client
    from fencelog.client.model import PartitionDescription, ReplicaEnds

ELECTED_COLUMNS = ("topic", "partition", "leader", "problem")
COLUMNS = ("broker", "log_end_offset", "high_watermark", "last_epoch", "in_sync", "problem")


def named(text: str) -> TopicPartition:
    """Return the partition of ``TOPIC/INDEX``. Raises UsageError."""
    topic, _, index = text.rpartition("/")
    if not topic or not (index.isascii() and index.isdigit()):
        raise UsageError(f"{text}: expected a topic and a partition, such as orders/0")
    return TopicPartition(topic, whole_number(index, f"{topic}/{index}", INDEXES))


def described(client: "Client", name: TopicPartition) -> "PartitionDescription":
    """Return who holds and leads the partition. Raises UsageError and RequestError."""
    (topic,) = client.topics([name.topic])
    for each in topic.partitions:
        if each.partition == name.partition:
            return each
    raise UsageError(f"{name.topic} has partitions 0 to {len(topic.partitions) - 1}")


def rows(partition: "PartitionDescription", ends: "list[ReplicaEnds]") -> list[Row]:
    """Return a row for each replica."""
    return [
        {
            "broker": each.broker,
            "log_end_offset": each.log_end_offset,
            "high_watermark": each.high_watermark,
            "last_epoch": each.last_epoch,
            "in_sync": each.broker in partition.in_sync,
            "problem": each.problem,
        }
        for each in ends
    ]


def elect(client: "Client", name: TopicPartition, broker: int | None) -> str:
    """Elect this broker, or the first replica; return who leads.

    Who leads already need not be elected, as with Kafka's tool. Raises RequestError.
    """
    try:
        client.elect_leader(name, broker)
    except RequestError as error:
        found = described(client, name)
        if error.code is ErrorCode.ELECTION_NOT_NEEDED and broker in {None, found.leader}:
            return f"{_led(name, found)} already"
        raise
    return _led(name, described(client, name))


def elect_all(client: "Client") -> list[Row]:
    """Elect the first replica of every partition; return a row for each that it did not lead.

    Raises RequestError.
    """
    found = client.elect_preferred_leaders()
    topics = client.topics(sorted({each.topic for each in found})) if found else []
    known = {
        TopicPartition(topic.name, each.partition): each
        for topic in topics
        for each in topic.partitions
    }
    return [_elected(name, known[name], refused) for name, refused in sorted(found.items())]


def _elected(
    name: TopicPartition, partition: "PartitionDescription", refused: RequestError | None
) -> Row:
    # Who described the partition may not have seen the election yet.
    leader = partition.replicas[0] if refused is None else partition.leader
    return {
        "topic": name.topic,
        "partition": name.partition,
        "leader": leader,
        "problem": None if refused is None else refused.text,
    }


def needless(
    name: TopicPartition, broker: int, partition: "PartitionDescription", ends: "list[ReplicaEnds]"
) -> str | None:
    """Return why the election of this broker would be refused; None if it need not be.

    Nobody is elected who may lack records while a replica is live that has them all. A live
    eligible replica is not seen here: clients are not told which ones are.
    """
    if partition.leader == broker:
        return f"{_led(name, partition)} already: nobody needs to be elected"
    place = f"{name.topic}/{name.partition}"
    refused = f"broker {broker} would be refused"
    if partition.leader >= 0:
        return f"{_led(name, partition)} and has all that is committed: {refused}"
    for each in ends:
        if each.broker in partition.in_sync and each.log_end_offset is not None:
            return f"broker {each.broker} is in sync and is going to lead {place}: {refused}"
    return None


def _led(name: TopicPartition, partition: "PartitionDescription") -> str:
    return (
        f"broker {partition.leader} leads {name.topic}/{name.partition} in leader epoch "
        f"{partition.leader_epoch}"
    )


def loss(name: TopicPartition, broker: int, ends: "list[ReplicaEnds]") -> list[str]:
    """Return what is lost if this broker is elected, as far as the replicas have answered."""
    silent = [each.broker for each in ends if each.log_end_offset is None]
    chosen = next((each for each in ends if each.broker == broker), None)
    lines = []
    if chosen is None:
        raise UsageError(f"--broker {broker}: it has no replica of {name}")
    if chosen.log_end_offset is None or chosen.last_epoch is None:
        raise UsageError(f"--broker {broker}: it does not answer: {chosen.problem}")
    place = (chosen.last_epoch, chosen.log_end_offset)
    for each in ends:
        if each.log_end_offset is None or each.last_epoch is None or each is chosen:
            continue
        if (each.last_epoch, each.log_end_offset) > place:
            lines.append(
                f"broker {each.broker} has more: it ends at offset {each.log_end_offset} in leader "
                f"epoch {each.last_epoch}, broker {broker} at {place[1]} in {place[0]}; what only "
                "the former has is lost"
            )
    known = max(each.high_watermark or 0 for each in ends)
    if known > chosen.log_end_offset:
        lines.append(
            f"offsets {chosen.log_end_offset} to {known - 1} are committed: they are lost, and new "
            "records get them"
        )
    lines += [f"what only broker {each} has is lost: it does not answer" for each in silent]
    return lines or [f"no replica that answers has more than broker {broker}"]
