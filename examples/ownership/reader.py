"""Read a partition that nobody else of the group reads meanwhile, and commit offsets as its owner.

    python reader.py -b localhost:9092 --group etl clicks/0

Start as many as there are partitions, or more: those that own nothing stand by. A reader that was
taken over can commit nothing any more, so its successor's position is never moved.
"""

import argparse
import signal
import sys

import fencelog
from fencelog.errors import OwnershipLostError
from fencelog.types import TopicPartition


def read(claim, partition, start):
    """Print records; what was printed and not committed is printed again by the next owner."""
    for record in claim.fetch(partition, start):
        print(record.offset, record.value.decode(), flush=True)
        claim.commit_offsets({partition: record.offset + 1})


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("-b", "--bootstrap-server", default="localhost:9092")
    parser.add_argument("--lease-s", type=float, default=10.0)
    parser.add_argument("--group", required=True)
    parser.add_argument("resource", help="the partition to read, TOPIC/NUMBER")
    options = parser.parse_args()
    topic, _, number = options.resource.rpartition("/")
    partition = TopicPartition(topic, int(number))
    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, lambda *_: sys.exit())  # so that the claim is released
    with (
        fencelog.connect(options.bootstrap_server) as log,
        log.own(options.resource, group=options.group, wait=True, lease_s=options.lease_s) as claim,
    ):
        # Asked for only now: the one before can commit nothing any more.
        start = claim.committed_offsets().get(partition)
        if start is None:
            start = log.offsets([partition], "earliest")[partition]
        read(claim, partition, start)


if __name__ == "__main__":
    try:
        main()
    except OwnershipLostError as error:
        sys.exit(str(error))
