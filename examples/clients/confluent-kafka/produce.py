"""Write greetings: produce.py ADDRESS TOPIC COUNT."""

import sys

from confluent_kafka import Producer

address, topic, count = sys.argv[1:]
producer = Producer({"bootstrap.servers": address, "enable.idempotence": True})
for number in range(int(count)):
    producer.produce(topic, f"hello {number}", key=f"{number}")
    producer.poll(0)
assert producer.flush(30) == 0, "not all were acknowledged"
print(f"wrote {count}")
