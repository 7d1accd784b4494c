"""A claimant that writes in a loop, as a process that may be killed or stopped at any moment.

Its history goes line by line into a file of its own, as in ``./dev prove chaos``. It writes what it
is about to do before it does it, so what a zombie has tried is known, too. One that has lost its
claim goes on for a while by every way that it has: its old connections, new ones, its producer.
"""

import argparse
import asyncio
import contextlib
import logging
import random
import time
from pathlib import Path
from typing import Any

from fencelog.check.history import Recorder, key_of
from fencelog.client.cluster import Cluster, ClusterOptions
from fencelog.coordination.ownership.model import NO_EPOCH
from fencelog.wire.messages.own import OwnRequest, OwnResource
from fencelog_sim.workload import Scale
from fencelog_sim.workloads.own import ERRORS
from fencelog_sim.workloads.owned_requests import send_once
from fencelog_sim.workloads.owning import Claim, own
from fencelog_sim.workloads.routes import dial, leader_of
from tests.proofs._chaos_client import HistoryFile, RealStage

KINDS = ("own", "confluent-kafka")
PAUSE_S = 0.005
RETRY_S = 0.02
WAIT_MS = 500
NAME = "takeover"
ZOMBIE_TRIES = 10
CALL_S = 10.0
RECORDS = 3
"""In a transaction of confluent-kafka."""


class Claimant:
    """One process: claims, writes, claims again after a lost connection, and is a zombie last."""

    def __init__(self, stage: RealStage, options: argparse.Namespace) -> None:
        """Own nothing."""
        self._stage = stage
        self._options = options
        self._cluster = Cluster(
            ClusterOptions(
                bootstrap_servers=stage.bootstrap,
                client_id=stage.history.process,
                request_timeout_s=CALL_S,
            )
        )
        self._numbers = 0
        self._held: dict[str, int] = {}

    async def play(self) -> None:
        """Own and write, until somebody else owns."""
        while True:
            claim = await self._claim()
            if claim is None:
                break
            claim.keep()
            self._held = claim.epochs
            write = self._write if self._options.kind == "own" else self._transact
            await write(claim)
            self._stage.history.note(what="lost", session=claim.session)
            await self._haunt(claim)
            await claim.close()
        self._stage.history.note(what="over")

    async def _claim(self) -> Claim | None:
        """Claim; after a lost claim only as its continuation. None: somebody else has it."""
        while True:
            self._numbers += 1
            request = OwnRequest(
                resources=[
                    OwnResource(resource=each, prev_epoch=self._held.get(each, NO_EPOCH))
                    for each in self._options.resources
                ],
                holder=self._stage.history.process,
                session_timeout_ms=self._options.lease_ms,
                transactional_id_name=NAME,
                claim_id=f"{self._stage.history.process}.{self._numbers}",
                wait_ms=WAIT_MS if self._options.waits and not self._held else 0,
            )
            with contextlib.suppress(*ERRORS):
                claim = await own(self._stage, self._cluster, request, lambda: False)
                if claim is not None or self._held:
                    return claim
            await asyncio.sleep(RETRY_S)

    async def _write(self, claim: Claim) -> None:
        """Write record after record on an attached connection, until one is refused."""
        partitions = claim.partitions
        number = 0
        while not claim.control.closed:
            number += 1
            try:
                await claim.write(partitions[number % len(partitions)])
            except ERRORS:
                return
            await asyncio.sleep(PAUSE_S)

    async def _transact(self, claim: Claim) -> None:
        """Commit transaction after transaction with a stock producer, until it is fenced."""
        producer = StockProducer(self._stage, claim)
        with contextlib.suppress(StockError):
            await asyncio.to_thread(producer.begin)
            while not claim.control.closed:
                await asyncio.to_thread(producer.transact)
        producer.zombie()

    async def _haunt(self, claim: Claim) -> None:
        """Write by every way that is left, as one that does not know that it was replaced."""
        for number in range(ZOMBIE_TRIES):
            partition = claim.partitions[number % len(claim.partitions)]
            with contextlib.suppress(*ERRORS):
                await claim.write(partition)
            with contextlib.suppress(*ERRORS):
                address = await leader_of(self._stage, self._cluster, partition)
                connection = await dial(self._stage, address)
                try:
                    value = claim.value()
                    await send_once(self._stage, connection, partition, value, claim.session)
                finally:
                    connection.close()


class StockError(Exception):
    """The stock producer was refused."""


class StockProducer:
    """confluent-kafka under the transactional id of a claim. Runs in a thread."""

    def __init__(self, stage: RealStage, claim: Claim) -> None:
        """Connect lazily."""
        self._stage = stage
        self._claim = claim
        self._producer: Any = None

    def begin(self) -> None:
        """Open the producer. Raises StockError."""
        from confluent_kafka import KafkaException, Producer

        self._producer = Producer(
            {
                "bootstrap.servers": self._stage.bootstrap,
                "transactional.id": self._claim.transactional_id,
                "transaction.timeout.ms": 30_000,
                "linger.ms": 0,
                "log_level": 0,
                "reconnect.backoff.max.ms": 100,
            }
        )
        try:
            self._producer.init_transactions(CALL_S)
        except KafkaException as error:
            self._refused(error)

    def transact(self) -> None:
        """Write a few records over the partitions in one transaction. Raises StockError."""
        from confluent_kafka import KafkaException

        values = []
        try:
            self._producer.begin_transaction()
            for number in range(RECORDS):
                partition = self._claim.partitions[number % len(self._claim.partitions)]
                value = self._claim.value()
                self._note("write", partition=key_of(*partition), value=value)
                values.append(value)
                self._producer.produce(
                    partition.topic, value.encode(), partition=partition.partition
                )
            self._producer.commit_transaction(CALL_S)
        except KafkaException as error:
            self._refused(error)
        self._note("ended", values=values, commit=True)

    def zombie(self) -> None:
        """Try once more, by the same producer and by a new one with the same id."""
        for again in (self.transact, self.begin, self.transact):
            with contextlib.suppress(StockError):
                again()

    def _refused(self, error: Any) -> None:
        code = error.args[0]
        self._note("stock refused", error=code.name(), fatal=bool(code.fatal()))
        raise StockError(code.name()) from None

    def _note(self, what: str, **fields: object) -> None:
        self._stage.history.note(what=what, session=self._claim.session, group=None, **fields)


def main() -> None:
    """Read what to be from the command line, and be it."""
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add("resources", nargs="+")
    add("--kind", required=True, choices=KINDS)
    add("--process", required=True, help="the name in the history")
    add("--bootstrap", required=True)
    add("--history", type=Path, required=True)
    add("--lease-ms", type=int, required=True)
    add("--waits", action="store_true", help="wait for the resources, instead of severing")
    options = parser.parse_args()
    logging.basicConfig(level=logging.WARNING)
    file = HistoryFile(options.history)
    stage = RealStage(
        bootstrap=options.bootstrap,
        random=random.Random(options.process),
        history=Recorder(options.process, now=time.monotonic, write=file.write),
        scale=Scale(),
    )
    asyncio.run(Claimant(stage, options).play())


if __name__ == "__main__":
    main()
