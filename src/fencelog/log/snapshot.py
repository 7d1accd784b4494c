"""The producer snapshot: Kafka's file format, followed by what Kafka leaves out.

Kafka's part (version 1) has the last batch of each producer only. With it alone, a retry of an
earlier batch in flight would be refused as out of order after a restart, which is fatal to some
clients. So Kafka's entries are followed by the rest of each window, the sequence that must come
next, and the highest producer id ever seen; and, where there are any, by the owners, the seal, and
the newest leader epochs. Kafka's tools check the CRC over the whole file and stop reading after the
number of entries that it gives; a reader that knows no seals stops after the owners, and one that
knows no epochs after the seal.
"""

from struct import Struct
from struct import error as struct_error
from typing import NamedTuple

from crc32c import crc32c

from fencelog.errors import CorruptionError
from fencelog.log.ownership import Owner, StoredOwner
from fencelog.log.producers import WINDOW_BATCHES, Producers, ProducerState, StoredBatch
from fencelog.log.values import EpochStart
from fencelog.types import (
    NO_PRODUCER_ID,
    CoordinatorEpoch,
    Offset,
    ProducerEpoch,
    ProducerId,
    TimestampMs,
)
from fencelog.wire.batch import SEQUENCE_MODULUS
from fencelog.wire.control import OwnershipRecord, ownership_batch, read_control

_VERSION = 1
_HEAD = Struct(">hI")
_COUNT = Struct(">i")
_ENTRY = Struct(">qhiqiqiq")
_TRAILER_MAGIC = b"FLw1"
_TRAILER = Struct(">4sq")
_WINDOW = Struct(">qib")
_BATCH = Struct(">iiqqq")
_OWNERS_MAGIC = b"FLo1"
_OWNERS = Struct(">4si")
_OWNER = Struct(">qi")  # where its newest record is, bytes of that batch, which follows
_SEAL_MAGIC = b"FLs1"
_SEAL = Struct(">4sq")
_EPOCHS_MAGIC = b"FLe1"
_EPOCHS = Struct(">4si")
_EPOCH = Struct(">iq")


class Snapshot(NamedTuple):
    """What follows from the batches below an offset, apart from indexes.

    ``epochs`` are the newest leader epochs below it: as many as a log needs of those whose records
    were deleted (``LeaderEpochs.before``).
    """

    producers: Producers
    highest_producer_id: ProducerId
    owners: tuple[StoredOwner, ...] = ()
    sealed_at: Offset | None = None
    epochs: tuple[EpochStart, ...] = ()


def encode_snapshot(snapshot: Snapshot) -> bytes:
    """Return the content of a ``.snapshot`` file."""
    producers, highest_producer_id, owners, sealed_at, epochs = snapshot
    parts = [_COUNT.pack(len(producers))]
    parts += [_entry(producer_id, state) for producer_id, state in producers.items()]
    parts.append(_TRAILER.pack(_TRAILER_MAGIC, highest_producer_id))
    for producer_id, state in producers.items():
        parts.append(_WINDOW.pack(producer_id, state.next_sequence, len(state.batches)))
        parts += [_BATCH.pack(*batch) for batch in state.batches]
    if owners:
        parts.append(_OWNERS.pack(_OWNERS_MAGIC, len(owners)))
        for owner in owners:
            parts.append(_OWNER.pack(owner.newest, owner.size))
            parts.append(bytes(ownership_batch(owner.record(), 0)))
    if sealed_at is not None:
        parts.append(_SEAL.pack(_SEAL_MAGIC, sealed_at))
    if epochs:
        parts.append(_EPOCHS.pack(_EPOCHS_MAGIC, len(epochs)))
        parts += [_EPOCH.pack(*each) for each in epochs]
    body = b"".join(parts)
    return _HEAD.pack(_VERSION, crc32c(body)) + body


def _entry(producer_id: ProducerId, state: ProducerState) -> bytes:
    last_offset, offset_delta = -1, 0
    if state.batches:
        last = state.batches[-1]
        last_offset, offset_delta = last.last_offset, last.last_offset - last.base_offset
    return _ENTRY.pack(
        producer_id,
        state.epoch,
        state.last_sequence,
        last_offset,
        offset_delta,
        state.last_timestamp,
        state.coordinator_epoch,
        state.open_offset,
    )


def decode_snapshot(data: bytes) -> Snapshot:
    """Return the content of a ``.snapshot`` file.

    Reads fencelog's and Kafka's own. Raises CorruptionError.
    """
    try:
        version, crc = _HEAD.unpack_from(data)
        if version != _VERSION:
            raise CorruptionError(f"producer snapshot version {version} is not supported, only 1")
        if crc != crc32c(memoryview(data)[_HEAD.size :]):
            raise CorruptionError("the checksum of the producer snapshot is wrong")
        producers, position = _decode_entries(data, _HEAD.size)
        highest = max(producers, default=NO_PRODUCER_ID)
        owners: tuple[StoredOwner, ...] = ()
        sealed_at: Offset | None = None
        epochs: tuple[EpochStart, ...] = ()
        if data[position : position + len(_TRAILER_MAGIC)] == _TRAILER_MAGIC:
            _, highest = _TRAILER.unpack_from(data, position)
            position = _decode_windows(data, position + _TRAILER.size, producers)
            owners, position = _decode_owners(data, position)
            sealed_at, position = _decode_seal(data, position)
            epochs = _decode_epochs(data, position)
    except struct_error:
        raise CorruptionError(f"producer snapshot of {len(data)} bytes is truncated") from None
    return Snapshot(producers, ProducerId(highest), owners, sealed_at, epochs)


def _decode_entries(data: bytes, position: int) -> tuple[Producers, int]:
    producers = Producers()
    (count,) = _COUNT.unpack_from(data, position)
    position += _COUNT.size
    if not 0 <= count * _ENTRY.size <= len(data) - position:
        raise CorruptionError(f"producer snapshot is too short for its {count} producers")
    for _ in range(count):
        (producer_id, epoch, last_sequence, last_offset, delta, timestamp, coordinator, open_at) = (
            _ENTRY.unpack_from(data, position)
        )
        position += _ENTRY.size
        state = producers[ProducerId(producer_id)] = ProducerState(ProducerEpoch(epoch))
        state.coordinator_epoch = CoordinatorEpoch(coordinator)
        state.open_offset = Offset(open_at)
        if last_sequence >= 0:
            first_sequence = (last_sequence - delta) % SEQUENCE_MODULUS
            state.store(
                StoredBatch(
                    first_sequence,
                    last_sequence,
                    Offset(last_offset - delta),
                    Offset(last_offset),
                    TimestampMs(timestamp),
                )
            )
    return producers, position


def _decode_windows(data: bytes, position: int, producers: Producers) -> int:
    for _ in range(len(producers)):
        producer_id, next_sequence, count = _WINDOW.unpack_from(data, position)
        position += _WINDOW.size
        state = producers.get(ProducerId(producer_id))
        if state is None or not 0 <= count <= WINDOW_BATCHES:
            raise CorruptionError(
                f"producer snapshot has an invalid window of producer {producer_id}"
            )
        state.batches.clear()
        for _ in range(count):
            first, last, base_offset, last_offset, timestamp = _BATCH.unpack_from(data, position)
            position += _BATCH.size
            state.batches.append(
                StoredBatch(
                    first, last, Offset(base_offset), Offset(last_offset), TimestampMs(timestamp)
                )
            )
        state.next_sequence = next_sequence
    return position


def _decode_owners(data: bytes, position: int) -> tuple[tuple[StoredOwner, ...], int]:
    if data[position : position + len(_OWNERS_MAGIC)] != _OWNERS_MAGIC:
        return (), position
    _, count = _OWNERS.unpack_from(data, position)
    position += _OWNERS.size
    owners = []
    for _ in range(count):
        newest, size = _OWNER.unpack_from(data, position)
        position += _OWNER.size
        record = read_control(data[position : position + size])
        if not isinstance(record, OwnershipRecord):
            raise CorruptionError("the snapshot has a damaged ownership record")
        owners.append(StoredOwner(Owner(*record[:-1]), record.offset, Offset(newest), size))
        position += size
    return tuple(owners), position


def _decode_seal(data: bytes, position: int) -> tuple[Offset | None, int]:
    if data[position : position + len(_SEAL_MAGIC)] != _SEAL_MAGIC:
        return None, position
    _, offset = _SEAL.unpack_from(data, position)
    return Offset(offset), position + _SEAL.size


def _decode_epochs(data: bytes, position: int) -> tuple[EpochStart, ...]:
    if data[position : position + len(_EPOCHS_MAGIC)] != _EPOCHS_MAGIC:
        return ()
    _, count = _EPOCHS.unpack_from(data, position)
    position += _EPOCHS.size
    if not 0 <= count * _EPOCH.size <= len(data) - position:
        raise CorruptionError(f"producer snapshot is too short for its {count} leader epochs")
    found = []
    for number in range(count):
        epoch, offset = _EPOCH.unpack_from(data, position + number * _EPOCH.size)
        found.append(EpochStart(epoch, Offset(offset)))
    return tuple(found)
