"""A topic copied by bytewax. ``python bytewax_copy.py OPTIONS-AS-JSON FOLDER``.

The folder keeps its recovery store: a run that follows resumes from the last snapshot.
"""

import json
import sys
from datetime import timedelta
from pathlib import Path

import bytewax.operators as op
from bytewax.connectors.kafka import KafkaSink, KafkaSinkMessage, KafkaSource
from bytewax.dataflow import Dataflow
from bytewax.recovery import RecoveryConfig, init_db_dir
from bytewax.run import cli_main

options = json.loads(sys.argv[1])
brokers = [options["bootstrap"]]
flow = Dataflow("copy")
source = op.input("in", flow, KafkaSource(brokers, [options["source"]], batch_size=20))
copies = op.map("copy", source, lambda record: KafkaSinkMessage(record.key, record.value))
op.output("out", copies, KafkaSink(brokers, options["target"]))

if __name__ == "__main__":
    folder = Path(sys.argv[2])
    if not folder.exists():
        folder.mkdir()
        init_db_dir(folder, 1)
    recovery = RecoveryConfig(str(folder), backup_interval=timedelta(0))
    cli_main(flow, epoch_interval=timedelta(milliseconds=200), recovery_config=recovery)
