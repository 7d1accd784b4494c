"""Copy a topic exactly once: copy_exactly_once.py ADDRESS SOURCE TARGET GROUP NAME.

Output and offsets are one transaction. This client cannot name its member in it, so each input
partition has one transactional id: who is given the partition takes the id, which fences the owner
before, and reads on from what is committed after that. NAME is for your logs.
"""

import asyncio
import sys

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, ConsumerRebalanceListener


class Owner(ConsumerRebalanceListener):
    """Has a producer for each partition that is its own."""

    def __init__(self, address, group, consumer):
        """Own nothing yet."""
        self.address, self.group, self.consumer = address, group, consumer
        self.busy = asyncio.Lock()  # no rebalance in the middle of a transaction
        self.producers = {}

    async def on_partitions_revoked(self, revoked):
        """Give all of them away."""
        async with self.busy:
            for producer in self.producers.values():
                await producer.stop()
            self.producers.clear()

    async def on_partitions_assigned(self, assigned):
        """Fence whoever had them, then read on from what is committed."""
        async with self.busy:
            for place in assigned:
                producer = AIOKafkaProducer(
                    bootstrap_servers=self.address,
                    transactional_id=f"{self.group}-{place.topic}-{place.partition}",
                )
                await producer.start()
                self.producers[place] = producer
                committed = await self.consumer.committed(place)
                if committed is None:
                    await self.consumer.seek_to_beginning(place)
                else:
                    self.consumer.seek(place, committed)


async def main(address, source, target, group, _name):
    """Copy until it is interrupted; what goes wrong ends it, and it may be started again."""
    consumer = AIOKafkaConsumer(
        bootstrap_servers=address,
        group_id=group,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        isolation_level="read_committed",
    )
    owner = Owner(address, group, consumer)
    consumer.subscribe([source], listener=owner)
    async with consumer:
        while True:
            async with owner.busy:
                polled = await consumer.getmany(timeout_ms=200, max_records=100)
                for place, messages in polled.items():
                    producer = owner.producers[place]
                    async with producer.transaction():
                        for message in messages:
                            await producer.send(target, message.value, message.key)
                        ends = {place: messages[-1].offset + 1}
                        await producer.send_offsets_to_transaction(ends, group)


asyncio.run(main(*sys.argv[1:]))
