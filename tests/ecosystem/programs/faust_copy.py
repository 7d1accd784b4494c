"""A topic copied by faust-streaming. ``python faust_copy.py OPTIONS-AS-JSON STATE``."""

import json
import sys

import faust

options = json.loads(sys.argv[1])
app = faust.App(
    options["group"],
    broker=f"kafka://{options['bootstrap']}",
    processing_guarantee="exactly_once",
    datadir=sys.argv[2],
    web_enabled=False,
    topic_allow_declare=False,
    topic_disable_leader=True,
    broker_commit_every=10,
    broker_commit_interval=0.1,
    broker_session_timeout=options["session_timeout_ms"] / 1000,
    broker_heartbeat_interval=0.5,
    value_serializer="raw",
    key_serializer="raw",
    consumer_auto_offset_reset="earliest",
)
source = app.topic(options["source"], value_type=bytes)
target = app.topic(options["target"], value_type=bytes)


@app.agent(source)
async def copy(stream: faust.StreamT[bytes]) -> None:
    """Write to the partition that it came from.

    faust writes it in the transaction of the output's partition, and commits the offset in that of
    the input's.
    """
    async for event in stream.events():
        await target.send(value=event.value, partition=event.message.partition)


@app.agent(target)
async def know(stream: faust.StreamT[bytes]) -> None:
    """Subscribe to the output too: faust writes outside of transactions what it does not read."""
    async for _ in stream:
        pass


if __name__ == "__main__":
    sys.argv[1:] = ["worker", "--without-web", "-l", "info"]
    app.main()
