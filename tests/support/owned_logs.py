"""Logs with ownership records wherever they may stand, written by stock clients and real claims."""

from contextlib import closing
from dataclasses import dataclass

from fencelog.client.blocking import Client
from fencelog.types import TopicPartition
from tests.support.ownership import BlockingClaimant
from tests.support.stock import Confluent, ToSend
from tests.support.waiting import wait_until

COMPACTED = {
    "cleanup.policy": "compact",
    "segment.bytes": "4096",
    "min.cleanable.dirty.ratio": "0.01",
    "delete.retention.ms": "1",
}
KEYS, ROUNDS = 4, 4
NEWEST = b"%d" % (ROUNDS - 1) * 80
"""What each key has in the end."""


@dataclass(frozen=True)
class Written:
    """What a topic's one partition has been given."""

    committed: list[bytes | None]
    everything: list[bytes | None]


def write_owned_log(address: str, topic: str) -> Written:
    """Ownership records first, last, inside transactions that commit and abort, and between.

    Transactions are aborted because their claim ends, by the next one and by its release. Nobody
    owns the partition in the end; the last records are the ends of two claims.
    """
    resource = f"{topic}/0"
    with Client(address) as client:
        client.create_topic(topic, 1)
    written = Written([], [])
    with (
        BlockingClaimant(address) as first,
        BlockingClaimant(address) as second,
        BlockingClaimant(address, group=f"readers of {topic}") as readers,
    ):
        for claimant in (first, second):
            name = claimant.own(resource, name=topic)
            with closing(Confluent().transactional(address, name)) as writer:
                # One aborted transaction of each producer: platformatic forgets all but the last.
                for value in (b"kept", b"aborted"):
                    writer.begin()
                    for part in (b"before", b"after"):
                        writer.send(topic, value + b" " + part)
                        written.everything.append(value + b" " + part)
                        readers.own(resource)
                        readers.release()
                    if value == b"kept":
                        written.committed.extend(written.everything[-2:])
                        writer.commit()
        readers.own(resource)
        second.release()
        Confluent().write(address, topic, [ToSend(b"of nobody")])
        written.everything.append(b"of nobody")
        written.committed.append(b"of nobody")
        readers.release()
    return written


def write_compacted_owned_log(address: str, topic: str) -> None:
    """Ownership records in a log of which compaction leaves little; the cleaner must be quick."""
    place = TopicPartition(topic, 0)
    with Client(address) as client, BlockingClaimant(address) as claimant:
        client.create_topic(topic, 1, configs=COMPACTED)
        for number in range(ROUNDS):
            name = claimant.own(f"{topic}/0", name=topic)
            with client.producer(transactional_id=name, batch_bytes=900) as producer:
                for end in (producer.abort, producer.commit):
                    producer.begin()
                    for key in [*range(KEYS)] * 6:
                        producer.send(topic, b"%d" % number * 80, key=b"%d" % key)
                    end()
            claimant.release()

        def values() -> list[bytes | None]:
            (end,) = client.offsets([place], "latest", isolation="replicated").values()
            return [each.value for each in client.fetch(place, 0, end, isolation="replicated")]

        # The newest segment is not compacted.
        wait_until(lambda: len(values()) < 12 * KEYS, deadline_s=30, what="compaction")
