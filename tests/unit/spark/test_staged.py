"""Record batches on their way from a task to the driver."""

import pytest

from fencelog.client.batches import EncodedBatch
from fencelog.errors import FencelogError
from fencelog.spark.driver_commit.staged import Piece, cut, is_too_slow, sealed, unsealed
from fencelog.types import TopicPartition
from fencelog.wire.batch import Compression
from fencelog.wire.records import RecordToWrite, build_batch

RECORDS = [RecordToWrite(b"k", b"v" * 50, 100), RecordToWrite(None, b"w" * 50, 90)]
AT = TopicPartition("t", 3)


def encoded(codec: Compression) -> EncodedBatch:
    content = build_batch(RECORDS, compression=codec)
    content[:61] = bytes(61)
    return EncodedBatch(
        partition=AT,
        buffer=memoryview(content),
        count=2,
        compression=codec,
        base_timestamp=100,
        max_timestamp=100,
    )


@pytest.mark.parametrize("codec", list(Compression))
def test_the_driver_s_header_is_the_one_that_a_producer_would_have_written(
    codec: Compression,
) -> None:
    staged = bytearray(sealed(encoded(codec)))
    batch = unsealed(Piece("t", 3, len(staged)), staged)
    batch.finish(7, 2, 40, transactional=True)
    assert batch.partition == AT
    assert batch.count == 2
    assert batch.buffer == build_batch(
        RECORDS,
        producer_id=7,
        producer_epoch=2,
        base_sequence=40,
        compression=codec,
        transactional=True,
    )


def test_a_message_is_cut_where_its_batches_end() -> None:
    one = bytes(sealed(encoded(Compression.NONE)))
    found = list(cut([Piece("t", 3, len(one)), Piece("t", 0, len(one))], one + one))
    assert [batch.partition.partition for batch in found] == [3, 0]


@pytest.mark.parametrize("position", [0, 17, 22, 60, -1])
def test_damage_does_not_get_a_new_checksum(position: int) -> None:
    content = bytearray(sealed(encoded(Compression.NONE)))
    piece = Piece("t", 3, len(content))
    content[position] ^= 1
    if position == 0:
        del content[-1]
    with pytest.raises(FencelogError, match="record batch for t-3 is damaged or cut short"):
        unsealed(piece, content)


@pytest.mark.parametrize(
    ("sent", "age_s", "too_slow"),
    [(10, 29, False), (25, 30, False), (24, 30, True), (-5, 200, False), (100, 119, False)],
)
def test_a_rate_that_ends_after_the_timeout_is_too_slow(
    sent: int, age_s: float, *, too_slow: bool
) -> None:
    assert is_too_slow(sent, 100, age_s, 120) is too_slow
