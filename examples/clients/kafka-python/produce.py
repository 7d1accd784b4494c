"""Write greetings: produce.py ADDRESS TOPIC COUNT."""

import sys

from kafka import KafkaProducer

address, topic, count = sys.argv[1:]
producer = KafkaProducer(bootstrap_servers=address, enable_idempotence=True, acks="all")
sent = [
    producer.send(topic, key=f"{number}".encode(), value=f"hello {number}".encode())
    for number in range(int(count))
]
for each in sent:
    each.get(30)
producer.close()
print(f"wrote {count}")
