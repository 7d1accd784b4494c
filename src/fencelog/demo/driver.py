"""The driver: one Spark application with the demo's two queries.

It runs until it is told to stop (SIGTERM: a clean end) or until a query fails. Exit status 3 means
that a newer run of the same pipeline has fenced this one.
"""

import argparse
import os
import signal
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from fencelog.demo.daemon import FOLDER
from fencelog.demo.events import write_event

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

FENCED = 3
FAILED = 1
FENCE = "RUN_FENCED"
POLL_S = 0.1
SECOND_FAILURE_S = 3.0
REASON_MAX = 4000


def session(folder: Path) -> "SparkSession":
    """A local session whose tasks are retried (S7), made for many short lives."""
    from pyspark.sql import SparkSession

    config = {
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        "spark.python.daemon.module": "fencelog.demo.daemon",
        "spark.python.worker.reuse": "true",
        "spark.driver.memory": "1g",
        # The compiler that warms up fast: no driver of this demo lives for long.
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        "spark.local.dir": str(folder / "spark-local"),
        "spark.sql.warehouse.dir": str(folder / "spark-warehouse"),
        "spark.log.level": "WARN",
        "spark.ui.showConsoleProgress": "false",
    }
    builder = SparkSession.builder.master("local[2,4]").appName("fencelog demo")
    return builder.config(map=config).getOrCreate()


def environment(folder: Path) -> None:
    """What Spark's Java process and Python workers must inherit."""
    os.environ[FOLDER] = str(folder)
    # An absolute path with a space in it would keep Spark from finding Python data sources.
    os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = "python"
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"


def run(options: argparse.Namespace) -> int:
    """Start both queries and wait for the end of them."""
    from fencelog.demo import pipeline

    stop = threading.Event()

    def asked_to_stop(number: int, frame: FrameType | None) -> None:
        stop.set()

    signal.signal(signal.SIGTERM, asked_to_stop)
    spark = session(options.folder)
    write_event(options.folder, "session-ready", pid=os.getpid())
    settings = pipeline.Settings(
        bootstrap_servers=options.bootstrap_server,
        checkpoint=str(options.folder / "checkpoint"),
        announce_to=str(options.folder),
        delivery=options.delivery,
        max_offsets=options.max_offsets,
    )
    queries = pipeline.queries(spark, settings)
    while not stop.wait(POLL_S):
        if not all(query.isActive for query in queries):
            return failed(options.folder, queries)
    for query in queries:
        query.stop()
    spark.stop()
    return 0


def failed(folder: Path, queries: "Sequence[StreamingQuery]") -> int:
    """Log why queries ended, and return the exit status that says so.

    A fence reaches both queries, each when it next asks the broker: the other one gets a moment.
    """
    deadline = time.monotonic() + SECOND_FAILURE_S
    while any(query.isActive for query in queries) and time.monotonic() < deadline:
        time.sleep(POLL_S)
    reasons = {query.name or "": str(query.exception()) for query in queries if not query.isActive}
    status = FENCED if any(FENCE in reason for reason in reasons.values()) else FAILED
    for name, reason in reasons.items():
        fenced = FENCE in reason
        write_event(folder, "query-failed", query=name, fenced=fenced, reason=reason[:REASON_MAX])
        sys.stderr.write(f"{name}: {reason}\n")
    return status


def main(arguments: list[str] | None = None) -> int:
    """Run the pipeline."""
    parser = argparse.ArgumentParser(prog="driver", description=__doc__)
    parser.add_argument("--bootstrap-server", required=True)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--delivery", choices=("exactly-once", "at-least-once"), required=True)
    parser.add_argument("--max-offsets", type=int, required=True)
    options = parser.parse_args(arguments)
    environment(options.folder)
    return run(options)


if __name__ == "__main__":
    status = main()
    sys.stderr.flush()
    # Nothing is left to end in order: a query that failed may hold threads of Spark's gateway.
    os._exit(status)
