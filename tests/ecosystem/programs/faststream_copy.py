"""A topic copied by FastStream. ``python faststream_copy.py OPTIONS-AS-JSON FOLDER``."""

import asyncio
import json
import sys

from faststream import AckPolicy, FastStream
from faststream.confluent import KafkaBroker

options = json.loads(sys.argv[1])
broker = KafkaBroker(options["bootstrap"], acks="all", enable_idempotence=True)


@broker.subscriber(
    options["source"],
    group_id=options["group"],
    auto_offset_reset="earliest",
    ack_policy=AckPolicy.NACK_ON_ERROR,
    session_timeout_ms=options["session_timeout_ms"],
)
@broker.publisher(options["target"])
async def copy(value: int) -> int:
    """The answer is published before the offset is committed."""
    return value


if __name__ == "__main__":
    asyncio.run(FastStream(broker).run())
