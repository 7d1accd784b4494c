"""Write greetings: produce.py ADDRESS TOPIC COUNT."""

import asyncio
import sys

from aiokafka import AIOKafkaProducer


async def main(address, topic, count):
    """Send all, and wait until all are acknowledged."""
    async with AIOKafkaProducer(bootstrap_servers=address, enable_idempotence=True) as producer:
        for number in range(int(count)):
            await producer.send(topic, f"hello {number}".encode(), f"{number}".encode())
        await producer.flush()
    print(f"wrote {count}")


asyncio.run(main(*sys.argv[1:]))
