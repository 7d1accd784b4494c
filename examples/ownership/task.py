"""A task with a journal: whoever runs its next attempt goes on exactly after what is in there.

    python task.py -b localhost:9092 --attempt 1 journal/0

Each attempt owns the partition with its own number as the generation, so a later one takes over at
once, whether or not the earlier one still runs, and an earlier one is refused for good.
"""

import argparse
import signal
import sys
import time

import fencelog
from fencelog.errors import ClaimRefusedError, OwnershipLostError
from fencelog.types import TopicPartition


def work(step, work_s):
    """Whatever the task does."""
    time.sleep(work_s)
    return step * step


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("-b", "--bootstrap-server", default="localhost:9092")
    parser.add_argument("--attempt", type=int, required=True)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--work-s", type=float, default=0.5)
    parser.add_argument("resource", help="the journal, TOPIC/NUMBER")
    options = parser.parse_args()
    topic, _, number = options.resource.rpartition("/")
    journal = TopicPartition(topic, int(number))
    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, lambda *_: sys.exit())  # so that the claim is released
    with (
        fencelog.connect(options.bootstrap_server) as log,
        log.own(options.resource, generation=options.attempt) as claim,
    ):
        fence = claim.fence_offset(options.resource)
        done = [int(record.key) for record in claim.fetch(journal, 0, fence)]
        print(f"attempt {options.attempt}: {len(done)} steps are done", flush=True)
        with claim.producer() as producer:
            for step in range(len(done) + 1, options.steps + 1):
                result = str(work(step, options.work_s)).encode()
                producer.send(topic, result, key=str(step).encode(), partition=int(number))
                producer.flush()
                print(f"step {step}: {result.decode()}", flush=True)


if __name__ == "__main__":
    try:
        main()
    except (ClaimRefusedError, OwnershipLostError) as error:
        sys.exit(str(error))
