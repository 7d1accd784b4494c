"""Read as a member of a group, and remember how far: consume.py ADDRESS TOPIC GROUP COUNT."""

import sys

from confluent_kafka import Consumer

address, topic, group, count = sys.argv[1:]
consumer = Consumer(
    {"bootstrap.servers": address, "group.id": group, "auto.offset.reset": "earliest"}
)
consumer.subscribe([topic])
seen = 0
while seen < int(count):
    message = consumer.poll(1.0)
    if message is not None and message.error() is None:
        print(message.value().decode())
        seen += 1
consumer.close()
