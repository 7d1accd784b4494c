"""The producer: loads the flights in transactions, by a stock client or, into streams, by ours.

Every sixth transaction is sent twice: first with marked rows and aborted, then committed. What a
fault makes fail (the broker is killed) is retried as a user would.
"""

import argparse
import json
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from fencelog_demo.data import flights
from fencelog_demo.events import write_event
from fencelog_demo.loader import Loader, Row
from fencelog_demo.settings import PARTITIONS
from fencelog_demo.stream_loader import StreamLoader

TRANSACTIONS = 60
ABORT_EACH = 6


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What to load, where, and how fast."""

    bootstrap_server: str
    folder: Path
    every: int
    seconds: float
    streams: bool
    """Topics of several partitions are streams."""


def rows(every: int) -> list[Row]:
    """The share's flights in the order of ``time_hour``, keyed by carrier."""
    table = flights(every).drop_columns(["time_hour"])
    result = []
    for flight in table.to_pylist():
        value = json.dumps({**flight, "outcome": "commit"}).encode()
        result.append((flight["carrier"].encode(), value))
    return result


def chunks(everything: Sequence[Row]) -> Iterator[Sequence[Row]]:
    """Cut the rows into the demo's number of transactions."""
    size = max(1, -(-len(everything) // TRANSACTIONS))
    for start in range(0, len(everything), size):
        yield everything[start : start + size]


def run(settings: Settings) -> None:
    """Create the topics and load everything at the given pace; log the progress."""
    kind = StreamLoader if settings.streams else Loader
    loader = kind(settings.bootstrap_server, settings.folder)
    write_event(settings.folder, "topics-created", topics=PARTITIONS)
    everything = rows(settings.every)
    begun = time.monotonic()
    sent = 0
    for number, chunk in enumerate(chunks(everything)):
        if number % ABORT_EACH == 1:
            loader.send_and_abort(chunk)
        loader.load(chunk)
        sent += len(chunk)
        facts = {"rows": sent, "aborted": loader.aborted_rows, "retries": loader.retries}
        write_event(settings.folder, "produced", **facts)
        due = begun + settings.seconds * sent / len(everything)
        time.sleep(max(0.0, due - time.monotonic()))
    write_event(settings.folder, "all-produced", rows=sent, aborted=loader.aborted_rows)


def main(arguments: list[str] | None = None) -> int:
    """Load the flights; the exit status says whether all of them are committed."""
    parser = argparse.ArgumentParser(prog="producer", description=__doc__)
    parser.add_argument("--bootstrap-server", required=True)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=0.0)
    parser.add_argument("--streams", action="store_true")
    options = parser.parse_args(arguments)
    run(Settings(**vars(options)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
