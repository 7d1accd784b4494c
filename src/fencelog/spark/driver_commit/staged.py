"""What a task hands to the driver: finished record batches, in the message or in a file."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pyspark.sql.datasource import WriterCommitMessage

from fencelog.client.batches import EncodedBatch
from fencelog.errors import FencelogError
from fencelog.spark.identity import BatchIdentity
from fencelog.types import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, NO_SEQUENCE, TopicPartition
from fencelog.wire.batch import check_crc, read_header


@dataclass(frozen=True, slots=True)
class Piece:
    """One record batch: where it goes, and its size in bytes."""

    topic: str
    partition: int
    size: int


@dataclass(frozen=True)
class Staged(WriterCommitMessage):
    """One attempt's rows as record batches, one after the other: in ``data`` or in ``file``."""

    identity: BatchIdentity
    rows: int
    pieces: tuple[Piece, ...]
    data: bytes = b""
    file: str | None = None

    @property
    def size(self) -> int:
        """Bytes of all batches."""
        return sum(piece.size for piece in self.pieces)


def sealed(batch: EncodedBatch) -> memoryview:
    """Give the batch a header without a producer, and its CRC."""
    batch.finish(NO_PRODUCER_ID, NO_PRODUCER_EPOCH, NO_SEQUENCE, transactional=False)
    return batch.buffer


def unsealed(piece: Piece, content: bytearray) -> EncodedBatch:
    """The batch of a piece, whose header is to be written anew, in place.

    Raises FencelogError if its bytes are not those that the task handed over: with another CRC
    the damage would pass for data.
    """
    at = TopicPartition(piece.topic, piece.partition)
    if len(content) != piece.size or not check_crc(content):
        raise FencelogError(f"a staged record batch for {at} is damaged or cut short")
    header = read_header(content)
    return EncodedBatch(
        partition=at,
        buffer=memoryview(content),
        count=header.record_count,
        compression=header.compression,
        base_timestamp=header.base_timestamp,
        max_timestamp=header.max_timestamp,
    )


def partitions(messages: Sequence[Staged]) -> set[TopicPartition]:
    """Where these rows go."""
    return {TopicPartition(piece.topic, piece.partition) for m in messages for piece in m.pieces}


def cut(pieces: Sequence[Piece], data: bytes) -> Iterator[EncodedBatch]:
    """The batches of a message that carries them itself."""
    at = 0
    for piece in pieces:
        yield unsealed(piece, bytearray(data[at : at + piece.size]))
        at += piece.size


def is_too_slow(sent: int, total: int, age_s: float, timeout_s: float) -> bool:
    """Whether the rest will not be sent before the transaction times out, at the rate so far.

    Judged from a quarter of the timeout on, and not before anything is known to be sent: before
    that a rate says little.
    """
    if age_s < timeout_s / 4 or not 0 < sent < total:
        return False
    return age_s * total > timeout_s * sent
