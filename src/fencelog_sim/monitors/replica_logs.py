"""What the replicas of a partition have on their hosts' disks, read from the bytes of the files."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from struct import Struct
from typing import NamedTuple

from fencelog.errors import WireError
from fencelog.log.layout import LOG, RECOVERY_POINT_CHECKPOINT, decode_offsets
from fencelog.types import Buffer, Offset, TopicPartition
from fencelog.wire.batch import HEADER_BYTES, LENGTH_END, check_crc, read_header
from fencelog_sim.world.disk_image import Directory, Inode
from fencelog_sim.world.host import BrokerHost

LENGTH_AT = 8
_LENGTH = Struct(">i")


class StoredBatch(NamedTuple):
    """One batch; the CRC stands for all bytes but the offset and the epoch."""

    base_offset: int
    next_offset: int
    leader_epoch: int
    crc: int


class _Read(NamedTuple):
    """The batches of a file, and where each of them ends."""

    batches: list[StoredBatch]
    ends: list[int]


def whole_batches(data: Buffer, position: int = 0) -> Iterator[tuple[StoredBatch, int]]:
    """Yield the whole batches from a position on, each with the position of its end."""
    while position + HEADER_BYTES <= len(data):
        try:
            header = read_header(data, position)
        except WireError:
            return
        end = position + LENGTH_END + header.length
        if header.length <= 0 or end > len(data):
            return
        following = header.base_offset + header.last_offset_delta + 1
        yield StoredBatch(header.base_offset, following, header.leader_epoch, header.crc), end
        position = end


def ends_in_batch(frame: bytes) -> bool:
    """Whether the last bytes of a message are a whole batch."""
    for position in range(len(frame) - HEADER_BYTES + 1):
        (length,) = _LENGTH.unpack_from(frame, position + LENGTH_AT)
        if position + LENGTH_END + length == len(frame) and check_crc(memoryview(frame)[position:]):
            return True
    return False


class ReplicaLogs:
    """Reads the logs of all hosts, of each file only what it has not read yet."""

    def __init__(self) -> None:
        """Nothing is read."""
        self._files: dict[Inode, _Read] = {}

    def batches(
        self, host: BrokerHost, name: str, *, since: int = 0, synced: bool = False
    ) -> list[StoredBatch]:
        """Return the batches of a partition's directory on one host, in order of the files.

        Those at ``since`` and after it; if ``synced``, only what a loss of power would leave.
        """
        found: list[StoredBatch] = []
        for file in _log_files(host, name):
            read = self._read(file)
            first = bisect_left(read.batches, since, key=lambda each: each.base_offset)
            last = bisect_right(read.ends, file.synced) if synced else len(read.ends)
            found += read.batches[first:last]
        return found

    def contents(self, host: BrokerHost, name: str, *, since: int) -> list[memoryview]:
        """Return the bytes of the batches from an offset on, in order of the files."""
        found: list[memoryview] = []
        for file in _log_files(host, name):
            read, data = self._read(file), memoryview(bytes(file.data))
            first = bisect_left(read.batches, since, key=lambda each: each.base_offset)
            starts = [0, *read.ends]
            found += [data[starts[n] : read.ends[n]] for n in range(first, len(read.ends))]
        return found

    def difference(
        self, host: BrokerHost, name: str, committed: Sequence[StoredBatch], begin: int, end: int
    ) -> str | None:
        """Return where a host's log is not what is committed in a range; None where it is."""
        start = max(begin, self.start(host, name))  # below is what was deleted
        wanted = _between(committed, start, end)
        found = _between(self.batches(host, name, since=begin), start, end)
        if wanted == found:
            return None
        pairs = zip([*wanted, None], [*found, None], strict=False)
        first = next(((w, f) for w, f in pairs if w != f), (None, None))
        return f"committed is {first[0]}, it has {first[1]}"

    def has_files(self, host: BrokerHost, name: str) -> bool:
        """Whether a host has a directory of this name."""
        return name in host.disk.image.root.names

    def start(self, host: BrokerHost, name: str) -> int:
        """Return where a log begins on a host: at its first segment; 0 without one."""
        return min(_bases(host, name), default=0)

    def point_problem(self, host: BrokerHost, name: TopicPartition) -> str | None:
        """Say where the stored recovery point is above what a log has: a start trusts it (F7)."""
        file = host.disk.image.root.stable.get(RECOVERY_POINT_CHECKPOINT)
        if not isinstance(file, Inode):
            return None
        point = decode_offsets(bytes(file.data).decode("ascii")).get(name, Offset(0))
        ends = [each.next_offset for each in self.batches(host, str(name))]
        # The newest segment may have no batch.
        end = max([*ends, *_bases(host, str(name))], default=0)
        return f"it is cut to {end}, its recovery point is {point}" if point > end else None

    def _read(self, file: Inode) -> _Read:
        read = self._files.get(file)
        if read is None or not _is_unchanged(read, file):
            read = self._files[file] = _Read([], [])
        position = read.ends[-1] if read.ends else 0
        for batch, end in whole_batches(file.data, position):
            read.batches.append(batch)
            read.ends.append(end)
        return read


def _between(batches: Sequence[StoredBatch], start: int, end: int) -> list[StoredBatch]:
    return [each for each in batches if each.base_offset >= start and each.next_offset <= end]


def _bases(host: BrokerHost, name: str) -> list[int]:
    directory = host.disk.image.root.names.get(name)
    names = directory.names if isinstance(directory, Directory) else {}
    return [int(each.removesuffix(LOG)) for each in names if each.endswith(LOG)]


def _log_files(host: BrokerHost, name: str) -> Sequence[Inode]:
    directory = host.disk.image.root.names.get(name)
    if not isinstance(directory, Directory):
        return ()
    return [
        file
        for each, file in sorted(directory.names.items())
        if each.endswith(LOG) and isinstance(file, Inode)
    ]


def _is_unchanged(read: _Read, file: Inode) -> bool:
    """Whether what was read is still there: a truncated file may have grown again."""
    if not read.ends:
        return True
    start = read.ends[-2] if len(read.ends) > 1 else 0
    last = next(whole_batches(file.data, start), None)
    return last == (read.batches[-1], read.ends[-1])
