"""What every stock client is asked to do, and the plain values that go in and come out."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

DEADLINE_S = 10.0
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


class Fenced(Exception):  # noqa: N818 - it names a fact, as the clients' own exceptions do
    """The broker refused this producer because a newer one took its place."""


@dataclass(frozen=True)
class Seen:
    """A record as a consumer saw it."""

    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes], ...]
    timestamp_ms: int


@dataclass(frozen=True)
class ToSend:
    """A record about to be sent."""

    value: bytes
    key: bytes | None = None
    headers: tuple[tuple[str, bytes], ...] = ()
    timestamp_ms: int | None = None
    partition: int = 0


class TransactionalWriter(Protocol):
    """A transactional producer; it has initialised itself when it is made."""

    def begin(self) -> None:
        """Begin a transaction."""

    def send(self, topic: str, value: bytes) -> None:
        """Send to partition 0 and wait for the acknowledgement. Raises Fenced."""

    def commit(self) -> None:
        """Commit. Raises Fenced."""

    def abort(self) -> None:
        """Abort."""

    def close(self) -> None:
        """Let go without committing; safe on a fenced one."""


class StockClient(Protocol):
    """One client library."""

    def write(
        self,
        address: str,
        topic: str,
        records: Sequence[ToSend],
        *,
        codec: str = "none",
        idempotent: bool = False,
    ) -> None:
        """Send all, acks=all, and wait until all are acknowledged."""

    def read(self, address: str, topic: str, *, isolation: str = "read_committed") -> list[Seen]:
        """Every record of the topic up to what the isolation shows now as its end."""

    def transactional(self, address: str, transactional_id: str) -> TransactionalWriter:
        """A producer with this id; the one before it is fenced from now on."""
