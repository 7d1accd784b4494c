"""The product's sink with places to die at: a subclass of the tests', no switch in the product.

A plan names points (``writing``: rows are taken, few acknowledged; ``written``: all acknowledged;
``committing``: nothing decided yet; ``committed``: decided, Spark does not know) and what happens
there. Reaching one is announced by a file, so that a test kills at that very place.

Where the driver commits (a broker without versioned transactions) ``writing`` and ``written`` are
before and after a task's staging, and there are three more points between ``committing`` and
``committed``: ``sending`` (one record batch is acknowledged, the others are not sent), ``ending``
(all are, before EndTxn) and ``ended`` (EndTxn is answered). Every other batch is staged in files.
"""

import json
import os
import signal
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from fencelog.client.batches import EncodedBatch
from fencelog.client.driver_transaction import DriverTransaction
from fencelog.spark.driver_commit import encode
from fencelog.spark.driver_commit.ledger import LEDGER
from fencelog.spark.pyspark_api import DataSourceStreamArrowWriter
from fencelog.spark.source import FencelogDataSource
from tests.support.waiting import wait_until

FORMAT = "fencelog-with-faults"
WAIT_S = 240.0
HELD_S = 600.0
"""A held process is released or killed long before; this is for the one that a test forgot."""


@dataclass(frozen=True, kw_only=True)
class Fault:
    """What happens at a point: ``hold`` until released, or a death of worker or executor."""

    name: str
    point: str
    batch: int
    action: str = "hold"
    partition: int | None = None
    attempt: int | None = None


def plan(*faults: Fault) -> str:
    """The faults as the text of the option ``faults``."""
    return json.dumps([asdict(fault) for fault in faults])


class Announced:
    """The folder in which processes say where they are; the test's end of it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def wait(self, fault: str, deadline_s: float = WAIT_S) -> dict[str, Any]:
        """Return the facts of a process that reached this fault, once one has."""
        file = self.folder / f"{fault}.reached"
        wait_until(file.exists, deadline_s=deadline_s, what=f"fault {fault} reached")
        return json.loads(file.read_text())

    def release(self, fault: str) -> None:
        """Let a held process go on."""
        (self.folder / f"{fault}.released").touch()


class FaultyWriter(DataSourceStreamArrowWriter):
    """Wraps the product's writer; everything is pickled to workers and back."""

    def __init__(self, inner: Any, faults: list[Fault], folder: str):
        self.inner = inner
        self.faults = faults
        self.folder = folder

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        context = TaskContext.get()
        assert context is not None
        where = {
            "batch": int(context.getLocalProperty("streaming.sql.batchId") or -1),
            "partition": context.partitionId(),
            "attempt": context.attemptNumber(),
        }
        inline = 0 if where["batch"] % 2 else encode.INLINE_BYTES_MAX
        with patch.object(encode, "INLINE_BYTES_MAX", inline):
            message = self.inner.write(self._passed(iterator, where))
        self.reach("written", **where)
        return message

    def _passed(self, iterator: Iterator[pa.RecordBatch], where: dict) -> Iterator[pa.RecordBatch]:
        yield from iterator
        self.reach("writing", **where)

    def commit(  # Spark names the parameters
        self,
        messages: list[WriterCommitMessage | None],
        batchId: int,  # noqa: N803
    ) -> None:
        self.reach("committing", batch=batchId)
        with self._in_transaction(batchId):
            self.inner.commit(messages, batchId)
        self.reach("committed", batch=batchId)

    @contextmanager
    def _in_transaction(self, batch: int) -> Iterator[None]:
        """The points of the driver's transaction with the batch's rows."""
        send, commit = DriverTransaction.send, DriverTransaction.commit
        has_rows = False

        async def sending(self_: DriverTransaction, batches: Iterable[EncodedBatch]) -> None:
            nonlocal has_rows
            first, *others = batches
            await send(self_, [first])
            if first.partition != LEDGER:
                has_rows = True
                await acknowledged(self_)
                self.reach("sending", batch=batch)
            await send(self_, others)

        async def ending(self_: DriverTransaction) -> None:
            if not has_rows:  # it only says which run drives the app
                await commit(self_)
                return
            await acknowledged(self_)
            self.reach("ending", batch=batch)
            await commit(self_)
            self.reach("ended", batch=batch)

        async def acknowledged(transaction: DriverTransaction) -> None:
            assert transaction._sender is not None
            await transaction._sender.flush()

        with patch.multiple(DriverTransaction, send=sending, commit=ending):
            yield

    def abort(
        self,
        messages: list[WriterCommitMessage | None],
        batchId: int,  # noqa: N803
    ) -> None:
        self.inner.abort(messages, batchId)

    def reach(self, point: str, batch: int, **where: int) -> None:
        """Do what is planned for this place."""
        for fault in self.faults:
            here = {"partition": fault.partition, "attempt": fault.attempt}
            elsewhere = any(
                wanted is not None and where.get(name) != wanted for name, wanted in here.items()
            )
            if (fault.point, fault.batch) == (point, batch) and not elsewhere:
                self._happen(fault, where)

    def _happen(self, fault: Fault, where: dict[str, int]) -> None:
        reached = Path(self.folder) / f"{fault.name}.reached"
        facts = {"pid": os.getpid(), "parent": os.getppid(), **where}
        written = reached.with_suffix(f".{os.getpid()}")
        written.write_text(json.dumps(facts))
        written.rename(reached)
        match fault.action:
            case "kill-worker":
                os.kill(os.getpid(), signal.SIGKILL)
            case "raise":
                raise RuntimeError(f"fault {fault.name}")
            case "pass":
                return
            case _:
                released = Path(self.folder) / f"{fault.name}.released"
                wait_until(released.exists, deadline_s=HELD_S, what=f"{fault.name} released")


class FaultyBatchWriter(DataSourceArrowWriter):
    """The same points in a batch write of ``foreachBatch``."""

    def __init__(self, points: FaultyWriter, batch: int):
        self.points = points
        self.batch = batch

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return self.points.write(iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        self.points.reach("committing", batch=self.batch)
        self.points.inner.commit(messages)
        self.points.reach("committed", batch=self.batch)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        self.points.inner.abort(messages)


class FaultySource(FencelogDataSource):
    """``format("fencelog-with-faults")``."""

    own_options = ("faults", "faultFolder")

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def streamWriter(  # noqa: N802
        self, schema: StructType, overwrite: bool
    ) -> DataSourceStreamArrowWriter:
        return self._faulty(super().streamWriter(schema, overwrite))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        points = self._faulty(super().writer(schema, overwrite))
        return FaultyBatchWriter(points, int(self.options["batch"]))

    def _faulty(self, inner: Any) -> FaultyWriter:
        faults = [Fault(**each) for each in json.loads(self.options.get("faults", "[]"))]
        return FaultyWriter(inner, faults, self.options["faultFolder"])
