"""A client library of Node in a process of its own, asked like the other stock clients.

The process runs ``drivers/serve.mjs`` with one driver; a request is a line of JSON, and so is its
answer. Many may be under way at once.
"""

import base64
import itertools
import json
import subprocess
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from fencelog.client.blocking import Client
from tests.clients.install import node_of
from tests.support.stock import CODECS, Confluent, Fenced, Seen, ToSend

DEADLINE_S = 40.0
LAST = "the last that is read"

_numbers = itertools.count(1)


class ClientError(Exception):
    """What the client library threw."""


def text(value: bytes | None) -> str | None:
    return None if value is None else base64.b64encode(value).decode()


def raw(value: str | None) -> bytes | None:
    return None if value is None else base64.b64decode(value)


def seen(record: Mapping[str, Any]) -> Seen:
    return Seen(
        record["partition"],
        record["offset"],
        raw(record["key"]),
        raw(record["value"]),
        tuple((name, raw(value) or b"") for name, value in record["headers"]),
        record["timestamp"],
    )


class NodeClient:
    """One driver in one process. Also a ``StockClient``."""

    def __init__(self, driver: str, folder: Path, log: Path) -> None:
        """Start it; ``folder`` has the drivers and their ``node_modules``."""
        self.name = driver
        self._log = log.open("wb")
        self._process = subprocess.Popen(
            [node_of(folder), "serve.mjs", driver],
            cwd=folder,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
        )
        self._waiting: dict[int, Future[Any]] = {}
        self._ids = itertools.count(1)
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._read_answers, daemon=True)
        self._thread.start()

    def _read_answers(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            answer = json.loads(line)
            future = self._waiting.pop(answer["id"])
            if error := answer.get("error"):
                kind = Fenced if error["fenced"] else ClientError
                future.set_exception(kind(error["text"]))
            else:
                future.set_result(answer["value"])
        for future in self._waiting.values():
            future.set_exception(ClientError(f"the process of {self.name} is gone"))

    def begin(self, method: str, *args: Any, handle: int | None = None) -> "Future[Any]":
        """Ask, and return the answer to come."""
        number, future = next(self._ids), Future[Any]()
        self._waiting[number] = future
        request = {"id": number, "object": handle, "method": method, "args": args}
        assert self._process.stdin is not None
        with self._lock:
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
        return future

    def ask(self, method: str, *args: Any, handle: int | None = None) -> Any:
        """Ask and wait. Raises Fenced, or ClientError for all else that the library threw."""
        return self.begin(method, *args, handle=handle).result(DEADLINE_S)

    def make(self, kind: str, *args: Any) -> "Held":
        """A producer or a consumer inside the process."""
        return Held(self, self.ask(kind, *args)["object"])

    def codecs(self) -> list[str]:
        """The codecs that this client has on this machine."""
        found: list[str] = self.ask("codecs", CODECS)
        return found

    def write(
        self,
        address: str,
        topic: str,
        records: Sequence[ToSend],
        *,
        codec: str = "none",
        idempotent: bool = False,
    ) -> None:
        """Send all and wait."""
        self.ask("write", address, topic, to_send(records), codec, idempotent)

    def read(self, address: str, topic: str, *, isolation: str = "read_committed") -> list[Seen]:
        """Every record before a last one that is written to each partition for this."""
        with Client(address) as admin:
            partitions = admin.partitions([topic])[topic]
        last = [ToSend(LAST.encode(), partition=number) for number in partitions]
        Confluent().write(address, topic, last)
        group = f"reads-{next(_numbers)}"
        found = self.ask("read", address, topic, isolation, group, LAST, len(partitions))
        return [seen(record) for record in found if raw(record["value"]) != LAST.encode()]

    def transactional(self, address: str, transactional_id: str) -> "NodeWriter":
        """Make one and initialise it."""
        return NodeWriter(self.make("writer", address, transactional_id))

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.wait()
        self._thread.join()
        for pipe in (self._process.stdin, self._process.stdout, self._log):
            assert pipe is not None
            pipe.close()


def to_send(records: Sequence[ToSend]) -> list[dict[str, Any]]:
    """Records as a driver takes them."""
    return [
        {
            "key": text(record.key),
            "value": text(record.value),
            "partition": record.partition,
            "headers": [(name, text(value)) for name, value in record.headers],
            "timestamp": record.timestamp_ms,
        }
        for record in records
    ]


class Held:
    """An object inside the process."""

    def __init__(self, client: NodeClient, handle: int) -> None:
        """Hold it."""
        self.client = client
        self.handle = handle

    def call(self, method: str, *args: Any) -> Any:
        """Call its method and wait."""
        return self.client.ask(method, *args, handle=self.handle)


class NodeWriter:
    """A transactional producer of Node."""

    def __init__(self, held: Held) -> None:
        """Take it over, initialised."""
        self._held = held

    def begin(self) -> None:
        """Begin."""
        self._held.call("begin")

    def send(self, topic: str, value: bytes) -> None:
        """Send and wait."""
        self._held.call("send", topic, text(value))

    def commit(self) -> None:
        """Commit."""
        self._held.call("commit")

    def abort(self) -> None:
        """Abort."""
        self._held.call("abort")

    def close(self) -> None:
        """Let go."""
        self._held.call("close")


class NodeMember:
    """A subscribing consumer of Node."""

    def __init__(self, client: NodeClient, address: str, group: str, topic: str) -> None:
        """Join."""
        self._held = client.make("member", address, group, topic, 3_000, 300)

    def poll(self) -> list[Seen]:
        """What came since the last time."""
        return [seen(record) for record in self._held.call("poll")]

    def assignment(self) -> set[int]:
        """The partitions that it reads now."""
        return set(self._held.call("assignment"))

    def commit(self, offsets: Mapping[int, int]) -> None:
        """Commit, and wait."""
        self._held.call("commit", offsets)

    def committed(self, partition: int) -> int | None:
        """What the group has committed there."""
        found: int | None = self._held.call("committed", partition)
        return found

    def close(self) -> None:
        """Leave the group."""
        self._held.call("close")
