"""The driver's transaction as tests use it, on whatever broker."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from fencelog.client.blocking import Client
from fencelog.client.driver_transaction import DriverTransaction
from fencelog.errors import FencedError
from fencelog.spark.driver_commit import commit as by_driver
from fencelog.spark.driver_commit import ledger_topic
from fencelog.spark.driver_commit.encode import stage
from fencelog.spark.driver_commit.staged import Staged
from fencelog.spark.identity import BatchIdentity
from fencelog.spark.options import SinkOptions, sink_options
from fencelog.types import TopicPartition
from tests.support.waiting import wait_until

ROLES = (("value", "value"),)
TAKEN_OVER = "a newer run of this query has taken over, run 2 since"


class Sink:
    """A topic of two partitions, an app, and batches of it."""

    def __init__(self, client: Client, servers: str, topic: str, folder: Path) -> None:
        """Create the topics and the staging folder."""
        self.client, self.servers, self.topic, self.folder = client, servers, topic, folder
        self.options = self.with_options()
        client.create_topic(topic, 2)
        ledger_topic.ensure(client)
        (folder / "fencelog-staging").mkdir()

    def with_options(self, *, streaming: bool = True, **more: str) -> SinkOptions:
        """Options of a write to the topic."""
        given = {
            "kafka.bootstrap.servers": self.servers,
            "topic": self.topic,
            "checkpointLocation": str(self.folder),
        }
        return sink_options({**given, **more}, {}, streaming=streaming)

    def batch(self, version: int, run: str = "1", query: str = "query") -> BatchIdentity:
        """Who writes batch ``version``."""
        return BatchIdentity(
            app=f"app of {self.topic}", query_id=query, run_id=run, version=version, host="h"
        )

    def stage(self, identity: BatchIdentity, *values: str) -> Staged:
        """One task's part."""
        rows = pa.RecordBatch.from_arrays([pa.array(values, pa.string())], names=["value"])
        return stage(self.options, identity, ROLES, iter([rows]))

    def commit(self, *messages: Staged, fingerprint: bytes = b"f") -> None:
        """The driver's part."""
        by_driver.commit(self.options, messages, fingerprint=fingerprint)

    def write(self, identity: BatchIdentity, *values: str) -> None:
        """Both."""
        self.commit(self.stage(identity, *values))

    @property
    def values(self) -> list[str]:
        """Every committed value, sorted; a commit is seen once its markers are written."""
        wait_until(
            lambda: not self.client.list_transactions(states=["PrepareCommit", "PrepareAbort"]),
            what="decided transactions are marked",
        )
        partitions = [TopicPartition(self.topic, number) for number in (0, 1)]
        ends = self.client.offsets(partitions, "latest", "transactional")
        return sorted(
            (record.value or b"").decode()
            for each in partitions
            if ends[each]
            for record in self.client.fetch(each, 0, ends[each])
        )

    @property
    def files(self) -> list[Path]:
        """All staged files."""
        return [each for each in self.folder.rglob("*") if each.is_file()]


def interrupted(monkeypatch: pytest.MonkeyPatch, step: str, happens: Callable[[], None]) -> None:
    """Let something happen once, before a step of the next transaction that writes rows.

    ``step``: ``add``, ``send`` or ``commit``; ``begin``: before the next transaction of any kind.
    """
    left = [happens]
    begin = DriverTransaction.begin

    async def late_begin(*given: Any) -> DriverTransaction:
        if left:
            await asyncio.to_thread(left.pop())
        return await begin(*given)

    if step == "begin":
        monkeypatch.setattr(DriverTransaction, "begin", late_begin)
        return
    write = by_driver._Commit._write

    def hooked(self: Any, transaction: DriverTransaction, *arguments: Any) -> None:
        real = getattr(transaction, step)

        async def late(*given: Any) -> Any:
            if left:
                await asyncio.to_thread(left.pop())
            return await real(*given)

        if arguments[0]:
            monkeypatch.setattr(transaction, step, late)
        write(self, transaction, *arguments)

    monkeypatch.setattr(by_driver._Commit, "_write", hooked)


def zombie_interrupts(sink: Sink, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    """A zombie commits within the newer run's transaction: it stops, the newer one goes on (V2)."""
    sink.write(sink.batch(0), "a")
    zombie = sink.stage(sink.batch(1), "zombie")

    def interrupt() -> None:
        with pytest.raises(FencedError, match=TAKEN_OVER):
            sink.commit(zombie)

    interrupted(monkeypatch, step, interrupt)
    sink.write(sink.batch(1, run="2"), "b")
    assert sink.values == ["a", "b"]


def zombie_was_stopped(sink: Sink, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    """A newer run commits within a zombie's transaction, which then writes nothing (V2)."""
    sink.write(sink.batch(0), "a")
    interrupted(monkeypatch, step, lambda: sink.write(sink.batch(1, run="2"), "b"))
    with pytest.raises(FencedError, match=TAKEN_OVER):
        sink.write(sink.batch(1), "zombie")
    assert sink.values == ["a", "b"]
    sink.write(sink.batch(2, run="2"), "c")
    assert sink.values == ["a", "b", "c"]
