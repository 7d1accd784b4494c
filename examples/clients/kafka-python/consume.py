"""Read as a member of a group, and remember how far: consume.py ADDRESS TOPIC GROUP COUNT."""

import sys
from itertools import islice

from kafka import KafkaConsumer

address, topic, group, count = sys.argv[1:]
consumer = KafkaConsumer(
    topic, bootstrap_servers=address, group_id=group, auto_offset_reset="earliest"
)
for message in islice(consumer, int(count)):
    print(message.value.decode())
consumer.close()
