"""Copy a topic exactly once: copy_exactly_once.py ADDRESS SOURCE TARGET GROUP NAME.

Output and offsets are one transaction, and the transaction names the group's member: whoever slept
through a rebalance is refused. One NAME for each process.
"""

import sys
from contextlib import suppress

from kafka import KafkaConsumer, KafkaProducer
from kafka.errors import KafkaError
from kafka.structs import OffsetAndMetadata

address, source, target, group, name = sys.argv[1:]


def begin_anew():
    """A producer; whatever the one before had open is aborted."""
    made = KafkaProducer(bootstrap_servers=address, transactional_id=f"{group}-{name}")
    made.init_transactions()
    return made


def copy(polled):
    """One transaction."""
    producer.begin_transaction()
    for messages in polled.values():
        for message in messages:
            producer.send(target, key=message.key, value=message.value)
    ends = {
        place: OffsetAndMetadata(messages[-1].offset + 1, "", -1)
        for place, messages in polled.items()
    }
    producer.send_offsets_to_transaction(ends, consumer.group_metadata())
    producer.commit_transaction()


producer = begin_anew()
consumer = KafkaConsumer(
    source,
    bootstrap_servers=address,
    group_id=group,
    auto_offset_reset="earliest",
    enable_auto_commit=False,
    isolation_level="read_committed",
)
while True:
    # One poll for each transaction: the records of two may lie on both sides of a rebalance.
    polled = consumer.poll(500, max_records=100)
    if not polled:
        continue
    try:
        copy(polled)
    except KafkaError as error:
        print(f"again, after {error!r}", file=sys.stderr)
        # Not only abort: version 3.0.12 would send refused offsets with the next transaction.
        with suppress(KafkaError):
            producer.abort_transaction()
        with suppress(KafkaError):
            producer.close(1)
        producer = begin_anew()
        for place in consumer.assignment():
            committed = consumer.committed(place)
            if committed is None:
                consumer.seek_to_beginning(place)
            else:
                consumer.seek(place, committed)
