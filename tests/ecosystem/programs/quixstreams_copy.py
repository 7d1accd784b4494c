"""A topic copied by quixstreams. ``python quixstreams_copy.py OPTIONS-AS-JSON STATE``."""

import json
import sys

from quixstreams import Application

options = json.loads(sys.argv[1])
app = Application(
    broker_address=options["bootstrap"],
    consumer_group=options["group"],
    processing_guarantee="exactly-once",
    auto_offset_reset="earliest",
    commit_interval=0.1,
    state_dir=sys.argv[2],
    consumer_extra_config={"session.timeout.ms": options["session_timeout_ms"]},
    producer_extra_config={
        "transactional.id": options["transactional_id"],
        "transaction.timeout.ms": options["transaction_timeout_ms"],
    },
)
source = app.topic(options["source"], value_deserializer="bytes", key_deserializer="bytes")
target = app.topic(options["target"], value_serializer="bytes", key_serializer="bytes")
app.dataframe(source).to_topic(target, key=lambda value: value)
app.run()
