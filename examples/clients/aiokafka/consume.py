"""Read as a member of a group, and remember how far: consume.py ADDRESS TOPIC GROUP COUNT."""

import asyncio
import sys

from aiokafka import AIOKafkaConsumer


async def main(address, topic, group, count):
    """Read so many."""
    consumer = AIOKafkaConsumer(
        topic, bootstrap_servers=address, group_id=group, auto_offset_reset="earliest"
    )
    async with consumer:
        for _ in range(int(count)):
            print((await consumer.getone()).value.decode())


asyncio.run(main(*sys.argv[1:]))
