"""One partition that this broker follows: what it says to the leader, and what it takes from it."""

from collections import deque
from typing import Protocol

from fencelog.broker.network.time_slices import ITEMS_PER_SLICE, TimeSlices
from fencelog.broker.partitions.partition import Partition
from fencelog.broker.replicas.led import Key
from fencelog.errors import WireError
from fencelog.log.values import Rejected
from fencelog.replication.follower import LocalEnd
from fencelog.replication.session import Position
from fencelog.types import NO_PRODUCER_ID, LeaderEpoch, Offset
from fencelog.wire.batch import HEADER_BYTES, check_crc, read_header


class Owner(Protocol):
    """The stream that a followed partition belongs to."""

    unflushed_bytes: int
    """What came from the leader, of all partitions, and is not durable yet."""

    def follows(self, followed: "Followed") -> bool:
        """Whether the partition is still followed in this way."""
        ...

    def moved(self, followed: "Followed") -> None:
        """More is durable or committed here."""
        ...

    def failed(self, followed: "Followed") -> None:
        """The partition has failed, or was closed."""
        ...


class Followed:
    """A replica while its broker follows one leader in one epoch."""

    __slots__ = (
        "_owner",
        "_unflushed",
        "key",
        "leader_epoch",
        "leaders_start",
        "partition",
        "retries",
    )

    def __init__(
        self, key: Key, partition: Partition, leader_epoch: LeaderEpoch, owner: Owner
    ) -> None:
        """Listen to the partition until ``close``."""
        self.key = key
        self.partition = partition
        self.leader_epoch = leader_epoch
        self.leaders_start = partition.log.log_start_offset
        """The leader's log start, as far as it is known."""
        self.retries = 0
        """How often it was tried again since it has taken an answer."""
        self._unflushed: deque[tuple[Offset, int]] = deque()
        self._owner = owner
        partition.add_reader(self)

    def close(self) -> None:
        """Listen no more."""
        self.partition.remove_reader(self)
        self._flushed(None)

    @property
    def position(self) -> Position:
        """What the leader is told."""
        log = self.partition.log
        return Position(
            self.leader_epoch,
            log.log_end_offset,
            log.last_epoch,
            self.partition.durable_end,
            log.log_start_offset,
        )

    @property
    def may_begin_later(self) -> bool:
        """Whether the log start can be raised towards the leader's: more is committed here (D4)."""
        log = self.partition.log
        return min(self.leaders_start, log.high_watermark) > log.log_start_offset

    @property
    def local_end(self) -> LocalEnd:
        """What a decision about the leader's answer needs."""
        log = self.partition.log
        return LocalEnd(
            self.leader_epoch,
            log.log_start_offset,
            log.log_end_offset,
            log.high_watermark,
            log.last_epoch,
            log.end_of_epoch,
        )

    async def append(self, records: memoryview, time_slices: TimeSlices) -> str | None:
        """Append the leader's batches as they are, up to the first that is not sound.

        Returns why that one was refused, with its offset (D3, F7). Many batches take several time
        slices; the rest of them is dropped if the replica is given up between two.
        """
        place, number = 0, 0
        while place < len(records):
            taken = self._append_one(records, place)
            if isinstance(taken, str):
                return taken
            place += taken
            number += 1
            if number % ITEMS_PER_SLICE == 0:
                await time_slices.next()
                if not self._owner.follows(self):
                    break
        return None

    def _append_one(self, records: memoryview, place: int) -> int | str:
        """Append the batch at ``place``; return its size, or why it was refused."""
        end = self.partition.log.log_end_offset
        try:
            header = read_header(records, place)
        except WireError as error:
            return f"at offset {end}: {error}"
        batch = records[place : place + header.size]
        if len(batch) < header.size or header.size < HEADER_BYTES:
            return f"at offset {end}: {len(batch)} bytes of a batch of {header.size}"
        if not check_crc(batch):
            return f"at offset {header.base_offset}: the checksum does not fit"
        if header.record_count < 0 or header.last_offset_delta < 0:
            return f"at offset {header.base_offset}: a batch of less than nothing"
        appended = self.partition.append_replicated(batch, header)
        if isinstance(appended, Rejected):
            return f"at offset {header.base_offset}: {appended.message}"
        if header.is_control and header.producer_id == NO_PRODUCER_ID:
            # An owner or a seal: others count on it for ever, so each replica syncs it.
            self.partition.sync_appended()
        self._unflushed.append((appended.end_offset, header.size))
        self._owner.unflushed_bytes += header.size
        return header.size

    # -- called by the partition -----------------------------------------------------------------

    def advanced(self) -> bool:
        """Something was written or flushed, or the high watermark has moved."""
        self._flushed(self.partition.durable_end)
        self._owner.moved(self)
        return True

    def _flushed(self, end: Offset | None) -> None:
        """Count what is durable below ``end`` no more; None: all of it."""
        while self._unflushed and (end is None or self._unflushed[0][0] <= end):
            self._owner.unflushed_bytes -= self._unflushed.popleft()[1]

    def interrupted(self) -> None:
        """The log start has moved or files were replaced, or the partition has failed."""
        if self.partition.failure is None:
            self.partition.add_reader(self)
            self._owner.moved(self)
        else:
            self._owner.failed(self)
