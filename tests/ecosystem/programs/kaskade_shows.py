"""What kaskade's screens show of a cluster, as JSON, and what its forms do.

``python kaskade_shows.py ADDRESS TOPIC NEW``: TOPIC is looked at; NEW is created, changed and
deleted.
"""

import asyncio
import json
import sys
from typing import Any

from kaskade.commands import CreateTopicCommand
from kaskade.deserializers import Deserialization, DeserializerPool
from kaskade.services import ConsumerService, TopicService


async def shown(servers: dict[str, Any], topic: str) -> dict[str, Any]:
    """The rows of a topic: its partitions, its groups and its records."""
    service = TopicService(servers)
    topics = await service.metadata()
    offsets = await service.enrich_offsets(topics)
    groups = service.apply_groups(topics, await service.load_groups())
    assert offsets.successful, offsets
    assert groups.successful, groups
    found = topics[topic]
    text = Deserialization.STRING
    pool = DeserializerPool()
    earliest = {**servers, "auto.offset.reset": "earliest"}
    consumer = ConsumerService(topic, earliest, pool, text, text, page_size=1000)
    records = await consumer.consume()
    await consumer.aclose()
    return {
        "partitions": [(each.id, each.leader, each.low, each.high) for each in found.partitions],
        "replicas": [found.replicas_count(), found.isrs_count()],
        "groups": [(each.id, each.state, each.lag_count()) for each in found.groups],
        "records": sorted((each.partition, each.offset, each.value.decode()) for each in records),
        "configs": service.get_configs(topic),
    }


def changed(servers: dict[str, Any], new: str) -> dict[str, Any]:
    """Create, alter, grow and delete a topic; its settings and its partitions before the end."""
    service = TopicService(servers)
    service.create(CreateTopicCommand(new, 2, 1, 1, "delete", 3600000))
    service.edit(new, {"retention.ms": "7200000"})
    service.add_partitions(new, 3)
    partitions = len(asyncio.run(service.metadata())[new].partitions)
    configs = service.get_configs(new)
    service.delete(new)
    return {
        "partitions": partitions,
        "configs": configs,
        "is_left": new in asyncio.run(service.metadata()),
    }


if __name__ == "__main__":
    servers = {"bootstrap.servers": sys.argv[1]}
    print(
        json.dumps(
            {
                "shown": asyncio.run(shown(servers, sys.argv[2])),
                "changed": changed(servers, sys.argv[3]),
            }
        )
    )
