"""A key-value store with a topic as its commit log: one process at a time serves a partition.

    python store.py -b localhost:9092 store/0

It waits until nobody else owns ``store/0``, replays it, and takes commands on stdin: ``put KEY
VALUE``, ``get KEY``, ``snapshot``. A second process with the same arguments stands by, and takes
over when the first one ends, dies or is silent for a lease.
"""

import argparse
import signal
import sys

from snapshots import NewerOwnerError, Snapshots

import fencelog
from fencelog.errors import OwnershipLostError
from fencelog.types import TopicPartition


class Store:
    """The entries of one partition, as its owner has them."""

    def __init__(self, claim, resource, snapshots):
        self.claim, self.resource, self.snapshots = claim, resource, snapshots
        topic, _, number = resource.rpartition("/")
        self.partition = TopicPartition(topic, int(number))
        self.producer = claim.producer()
        self.entries, self.next_offset = {}, 0

    def replay(self):
        """Apply all that was stored before: below the fence offset nothing can be added."""
        if self.snapshots is not None:
            snapshot, _ = self.snapshots.load()
            self.entries, self.next_offset = snapshot["entries"], snapshot["next_offset"]
        fence = self.claim.fence_offset(self.resource)
        for record in self.claim.fetch(self.partition, self.next_offset, fence):
            self.entries[record.key.decode()] = record.value.decode()
        self.next_offset = fence

    def put(self, key, value):
        """Append first, then apply. Raises OwnershipLostError where another one owns it."""
        topic, number = self.partition
        self.producer.send(topic, value.encode(), key=key.encode(), partition=number)
        for delivery in self.producer.flush():
            self.next_offset = delivery.base_offset + delivery.count
        self.entries[key] = value

    def get(self, key):
        """An answer is an effect outside the log, so it is given within the lease only."""
        with self.claim.guard():
            return self.entries.get(key, "")

    def snapshot(self):
        """The object store compares the token."""
        self.snapshots.put(self.claim.token(self.resource), self.next_offset, self.entries)


def serve(store):
    """Answer each line of stdin with one line."""
    for line in sys.stdin:
        match line.split():
            case ["put", key, value]:
                store.put(key, value)
                print(f"stored {key}", flush=True)
            case ["get", key]:
                print(store.get(key), flush=True)
            case ["snapshot"] if store.snapshots is not None:
                store.snapshot()
                print(f"snapshot up to {store.next_offset}", flush=True)
            case _:
                print(f"unknown: {line.strip()}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("-b", "--bootstrap-server", default="localhost:9092")
    parser.add_argument("--lease-s", type=float, default=10.0)
    parser.add_argument(
        "--bucket", help="where to keep snapshots; AWS_ENDPOINT_URL names the store"
    )
    parser.add_argument("resource", help="the partition to serve, TOPIC/NUMBER")
    options = parser.parse_args()
    snapshots = None
    if options.bucket:
        import boto3

        snapshots = Snapshots(boto3.client("s3"), options.bucket, options.resource)
    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, lambda *_: sys.exit())  # so that the claim is released
    with (
        fencelog.connect(options.bootstrap_server) as log,
        log.own(options.resource, wait=True, lease_s=options.lease_s) as claim,
    ):
        store = Store(claim, options.resource, snapshots)
        store.replay()
        print(f"serving {options.resource}, {len(store.entries)} keys", flush=True)
        serve(store)


if __name__ == "__main__":
    try:
        main()
    except (OwnershipLostError, NewerOwnerError) as error:
        sys.exit(str(error))
