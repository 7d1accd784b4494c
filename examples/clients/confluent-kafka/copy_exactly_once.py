"""Copy a topic exactly once: copy_exactly_once.py ADDRESS SOURCE TARGET GROUP NAME.

Output and offsets are one transaction, and the transaction names the group's member: whoever slept
through a rebalance is refused. One NAME for each process.
"""

import sys

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaException, Producer, TopicPartition

address, source, target, group, name = sys.argv[1:]
consumer = Consumer(
    {
        "bootstrap.servers": address,
        "group.id": group,
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
        "isolation.level": "read_committed",
    }
)
producer = Producer(
    {
        "bootstrap.servers": address,
        "transactional.id": f"{group}-{name}",
        # Or its group coordinator may never be found again once all brokers were away:
        # confluentinc/librdkafka issue 5511.
        "metadata.recovery.strategy": "none",
    }
)
mine = []


def drop(_consumer, places):
    """What was read of partitions that are given away is another member's now."""
    gone = {place.partition for place in places}
    mine[:] = [message for message in mine if message.partition() not in gone]


def insist(call, *arguments):
    """Call again as long as the broker is away."""
    while True:
        try:
            return call(*arguments)
        except KafkaException as error:
            if not error.args[0].retriable():
                raise


def copy():
    """One transaction."""
    ends = {message.partition(): message.offset() + 1 for message in mine}
    places = [TopicPartition(source, partition, end) for partition, end in ends.items()]
    producer.begin_transaction()
    try:
        for message in mine:
            producer.produce(target, message.value(), message.key())
        insist(producer.send_offsets_to_transaction, places, consumer.consumer_group_metadata())
        insist(producer.commit_transaction)
    except KafkaException as error:
        if not error.args[0].txn_requires_abort():
            raise
        insist(producer.abort_transaction)
        for place in insist(consumer.committed, consumer.assignment()):
            place.offset = place.offset if place.offset >= 0 else OFFSET_BEGINNING
            consumer.seek(place)


insist(producer.init_transactions)
consumer.subscribe([source], on_revoke=drop, on_lost=drop)
while True:
    mine.clear()
    while len(mine) < 100 and (message := consumer.poll(0.2)) is not None:
        if message.error() is None:
            mine.append(message)
    if mine:
        copy()
