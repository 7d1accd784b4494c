"""A writer or a reader in the proof of streams: a process that may be killed at any moment.

A writer notes each write before and after it, in a file of its own: what was begun and has no end
may be stored or not. A reader of the group copies each batch of events in one transaction with
their position; it notes nothing, because what it has done is in the copy.
"""

import asyncio
import json
import random
import signal
import sys
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TextIO

import fencelog.aio
from fencelog.client.asynchronous import Client, Producer
from fencelog.client.streams.group_reader import GroupReader
from fencelog.errors import FencelogError, RequestError

STREAM, COPY, GROUP = "events", "copied", "copiers"
KEYS = 40
ABORT_SHARE = 0.1
LEASE_S, WINDOW_S = 2.0, 0.3
BATCH_EVENTS = 200
RETRY_S = 0.05
REQUEST_TIMEOUT_S = 5.0


@dataclass(frozen=True, kw_only=True)
class Options:
    """What a process does. ``name`` is new for each one."""

    role: str
    name: str
    bootstrap: str
    history: str
    seed: int
    transactional_id: str | None = None
    record_bytes: int = 1000
    records: int = 50
    """Of one write."""

    def to_json(self) -> str:
        """For the command line."""
        return json.dumps(asdict(self))


class Writer:
    """Writes until it is told to stop, or killed."""

    def __init__(self, options: Options, history: TextIO, stopping: asyncio.Event) -> None:
        """Nothing is open yet."""
        self._options, self._history, self._stopping = options, history, stopping
        self._random = random.Random(options.seed)
        self._filler = b"." * options.record_bytes
        self._values = self._labels = 0

    async def run(self) -> None:
        """Write with one producer after the other: the next one follows a failure."""
        while not self._stopping.is_set():
            try:
                async with await connect(self._options) as log:
                    transactional_id = self._options.transactional_id
                    producer = await log.producer(
                        transactional_id=transactional_id, transaction_timeout_ms=10_000
                    )
                    self._labels += 1
                    async with producer:
                        while not self._stopping.is_set():
                            await self._write(producer)
            except FencelogError as error:
                self._refused(error)
                await asyncio.sleep(RETRY_S)

    async def _write(self, producer: Producer) -> None:
        """Write a few records of a few keys; raises FencelogError if what became of it is open."""
        pairs = []
        keys = [f"k{self._random.randrange(KEYS)}" for _ in range(3)]
        for _ in range(self._random.randint(1, self._options.records)):
            self._values += 1
            pairs.append((self._random.choice(keys), f"{self._options.name}-{self._values}"))
        label = f"{self._options.name}/{self._labels}"
        self._note(what="write", number=self._values, producer=label, records=pairs)
        is_aborted = False
        is_transaction = self._options.transactional_id is not None
        if is_transaction:
            await producer.begin()
        for key, value in pairs:
            record = b"%b %b" % (value.encode(), self._filler)
            await producer.send(STREAM, record, key=key.encode())
        placed = [
            [each.partition.partition, each.base_offset, each.count]
            for each in await producer.flush()
        ]
        if is_transaction:
            is_aborted = self._random.random() < ABORT_SHARE
            await (producer.abort() if is_aborted else producer.commit())
        outcome = "failed" if is_aborted else "ok"
        placed = [] if is_aborted else placed
        self._note(what="wrote", number=self._values, outcome=outcome, placed=placed)

    def _refused(self, error: Exception) -> None:
        code = error.code.name if isinstance(error, RequestError) else ""
        self._note(what="refused", code=code, error=str(error))

    def _note(self, **fields: Any) -> None:
        note = {"type": "meta", "process": self._options.name, "time": time.monotonic(), **fields}
        self._history.write(json.dumps(note) + "\n")
        self._history.flush()


async def copy(options: Options, stopping: asyncio.Event) -> None:
    """Copy as a reader of the group, which joins again after each failure."""
    while not stopping.is_set():
        try:
            async with await connect(options) as log:
                group = log.reader_group(GROUP, STREAM)
                async with group.reader(options.name, lease_s=LEASE_S, window_s=WINDOW_S) as reader:
                    await _copy_batches(reader, stopping)
        except FencelogError:
            await asyncio.sleep(RETRY_S)


async def _copy_batches(reader: GroupReader, stopping: asyncio.Event) -> None:
    async for batch in reader.batches(BATCH_EVENTS):
        async with reader.transaction() as transaction:
            for event in batch.events:
                value, _, _ = (event.value or b"").partition(b" ")
                await transaction.send(COPY, value, key=event.key)
        if stopping.is_set():
            return


async def connect(options: Options) -> Client:
    """Connect with a timeout that a kill of the broker does not make long."""
    return await fencelog.aio.connect(options.bootstrap, request_timeout_s=REQUEST_TIMEOUT_S)


async def main(options: Options, history: TextIO) -> None:
    """Do what the role says until SIGTERM."""
    stopping = asyncio.Event()
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopping.set)
    if options.role == "reader":
        # A reader without events to come waits: it is told by a cancellation.
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
        await copy(options, stopping)
        return
    await Writer(options, history, stopping).run()


if __name__ == "__main__":
    given = Options(**json.loads(sys.argv[1]))
    with suppress(asyncio.CancelledError), Path(given.history).open("a", encoding="ascii") as notes:
        asyncio.run(main(given, notes))
