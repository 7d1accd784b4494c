"""The proof of every byte: what is done to the files, what a start makes of it, what it may make.

A start has three ways to be right. It serves, and then everything means what it meant when the log
ended there; or it refuses the partition, or the whole directory, naming the file. Anything else is
a problem: another exception, less than was promised, or the same with another meaning.
"""

from collections.abc import Iterator
from random import Random
from typing import NamedTuple

from fencelog.errors import CorruptionError
from fencelog.log import layout
from fencelog.ports import Disk
from fencelog.storage.clean_stop import is_side_file
from fencelog.storage.directory import DataDirectory
from fencelog.storage.partition_store import PartitionStore
from fencelog.types import LeaderEpoch
from fencelog_sim.world.clocks import SimRandom
from fencelog_sim.world.disk import SimDisk
from tests.proofs._bytes_history import PARTITION, STOPS, Left, base_of, disk_of
from tests.proofs._bytes_meaning import Meaning, disagreement, meaning_of
from tests.support.storage import DIRECTORY, TOPIC_ID

CUT, FLIP = "cut", "flip"
REFUSED, OFFLINE, SHORTER, REBUILT, SAME, MOVED = OUTCOMES = (
    "start refused",
    "partition offline",
    "log cut",
    "rebuilt",
    "means the same",
    "moved in a gap",
)
_OUTSIDE_CRC = (*range(8), *range(12, 16))
"""Where base offset and leader epoch stand in a batch."""
_MAY_CONTRADICT = (layout.PARTITION_METADATA, layout.LEADER_EPOCH_CHECKPOINT)
"""Files of a partition that do not follow from its log, or are a oracle against it."""


class Fault(NamedTuple):
    """A file is cut to ``at`` bytes, or bit ``at`` of it is flipped."""

    path: str
    kind: str
    at: int

    def applied(self, data: bytes) -> bytes:
        """The file as it is found."""
        if self.kind == CUT:
            return data[: self.at]
        damaged = bytearray(data)
        damaged[self.at // 8] ^= 1 << self.at % 8
        return bytes(damaged)


class Outcome(NamedTuple):
    """What came of one fault; ``problem`` where it must not have come so."""

    what: str
    problem: str | None = None


class Started(NamedTuple):
    """A partition in service."""

    store: PartitionStore
    end: int
    meaning: Meaning


def faults(left: Left) -> Iterator[Fault]:
    """Every one that the proof asks for."""
    for path, data in left.files.items():
        is_detectable = left.stop in STOPS[:2] and not left.swapped
        if not (path.endswith((layout.LOG, layout.SWAP)) or is_detectable):
            continue  # neither the recovery point nor a swap makes a difference to it
        yield from (Fault(path, CUT, size) for size in range(len(data)))
        if not path.endswith(layout.LOG):
            yield from (Fault(path, FLIP, bit) for bit in range(8 * len(data)))
    for stored in left.last_batches:
        bits = range(8 * stored.position, 8 * stored.end)
        yield from (Fault(stored.path, FLIP, bit) for bit in bits)


def kind_of(path: str) -> str:
    """In which row of the report a file is counted."""
    name = path.rpartition("/")[2]
    return f"N{name[20:]}" if name[:20].isdigit() else name


async def start(left: Left, disk: Disk) -> Started:
    """As the broker does it. Raises what recovery raises."""
    directory = await DataDirectory.open(disk, SimRandom(Random(0)))
    store, log = await PartitionStore.recover(
        disk,
        DIRECTORY,
        left.config,
        clean=directory.take_clean(PARTITION),
        recovery_point=directory.recovery_point(PARTITION),
        log_start=directory.log_start(PARTITION),
        durability=left.durability,
        topic_id=TOPIC_ID,
        was_compacted=directory.first_dirty(PARTITION) is not None,
        leader_epoch=LeaderEpoch(left.leader_epoch),
    )
    meaning = meaning_of(log)
    assert log.high_watermark == log.log_end_offset, "all that recovery serves is durable"
    assert log.last_stable_offset == meaning.last_stable_offset, "it follows from what is open"
    return Started(store, log.log_end_offset, meaning)


class Checker:
    """Holds what comes of faults in one history against what may."""

    def __init__(self, left: Left) -> None:
        """Nothing was started yet."""
        self._left = left
        self._references: dict[tuple[int, bool, str | None], Meaning] = {}

    async def reference(self, end: int, *, rebuilt: bool, lost: str | None = None) -> Meaning:
        """What a start comes to where nothing is damaged and the log ends at ``end``.

        It is held against what the live broker had in memory then. ``lost``: a file that is not
        there.
        """
        left = self._left
        if (end, rebuilt, lost) not in self._references:
            files = {path: data for path, data in left.files.items() if path != lost}
            if rebuilt:
                files.pop(layout.CLEAN_SHUTDOWN, None)
            whole = await start(left, disk_of(_cut_at(left, files, end)))
            stored = [each.header for each in left.batches if each.header.next_offset <= end]
            live = left.meanings[end]
            if left.swapped and end < left.end:
                # The round that joins segments came after the last append.
                live = live._replace(segments=whole.meaning.segments)
            problem = disagreement(live, whole.meaning, stored)
            assert problem is None, f"{left.name}, {left.stop}, at {end}: {problem}"
            self._references[end, rebuilt, lost] = whole.meaning
        return self._references[end, rebuilt, lost]

    async def check(self, fault: Fault, disk: SimDisk) -> Outcome:
        """Start on a disk that has this fault."""
        left = self._left
        try:
            started = await start(left, disk)
        except CorruptionError as error:
            return _refusal(left, fault, disk, str(error))
        except Exception as error:  # noqa: BLE001 - whatever else comes out is looked for
            return Outcome("crash", f"{type(error).__name__}: {error}")
        await started.store.close(clean=False)
        if _moved_in_gap(left, fault):
            return Outcome(MOVED)
        what = _service(left, disk, started)
        problem = _wrong_end(left, fault, started) or _wrong_bytes(left, disk, started)
        if problem is None:
            rebuilt = what != SAME
            expected = await self.reference(started.end, rebuilt=rebuilt)
            if started.meaning != expected and rebuilt and _tells_of_deleted(left, fault.path):
                expected = await self.reference(started.end, rebuilt=True, lost=fault.path)
            if started.meaning != expected:
                problem = f"ends at {started.end} and means {started.meaning}, not {expected}"
        return Outcome(what, problem)


def _tells_of_deleted(left: Left, path: str) -> bool:
    """Whether a file is the first segment's snapshot: nothing else tells of deleted producers."""
    first = min(each.path for each in left.batches)
    return path == f"{first.removesuffix(layout.LOG)}{layout.SNAPSHOT}"


def _moved_in_gap(left: Left, fault: Fault) -> bool:
    """Whether a batch of a compacted file has moved to where others were: nothing tells of it.

    Base offsets lie outside the CRC, and what was compacted away leaves room on either side.
    """
    path = fault.path.removesuffix(layout.SWAP)
    if path == fault.path or fault.kind != FLIP:
        return False
    batches = [each for each in left.batches if each.path == path]
    byte = fault.at // 8
    hit = next(n for n, each in enumerate(batches) if each.position <= byte < each.end)
    if byte - batches[hit].position >= 8 or hit + 1 == len(batches):
        return False
    header = batches[hit].header
    moved = header.base_offset ^ 1 << (8 * (7 - (byte - batches[hit].position)) + fault.at % 8)
    low = batches[hit - 1].header.next_offset if hit else base_of(path)
    return low <= moved and moved + header.last_offset_delta < batches[hit + 1].header.base_offset


def _service(left: Left, disk: SimDisk, started: Started) -> str:
    if started.end < left.end:
        return SHORTER
    operations = disk.operations or ()
    removed = any(v == "remove" and is_side_file(p.rpartition("/")[2]) for v, p in operations)
    return REBUILT if removed or left.stop != "clean" else SAME


def _refusal(left: Left, fault: Fault, disk: SimDisk, message: str) -> Outcome:
    """A refusal names the file, leaves the log as it is, and comes where damage is only."""
    name = fault.path.rpartition("/")[2]
    if not message.startswith(f"{DIRECTORY}/"):
        named = message.startswith(f"{fault.path}:")
        return Outcome(REFUSED, None if named else f"refuses for another file: {message}")
    problem = None
    if fault.path.endswith((layout.LOG, layout.SWAP)):
        if not ("offset" in message or "position" in message):
            problem = f"names no offset: {message}"
        elif may_end_at(left, fault) is not None:
            problem = f"offline, though only what nobody was promised is missing: {message}"
    elif name not in _MAY_CONTRADICT or name not in message:
        problem = f"offline for a file that does not matter: {message}"
    return Outcome(OFFLINE, problem or _changed(left, fault, disk))


def _changed(left: Left, fault: Fault, disk: SimDisk) -> str | None:
    """What is offline must be there for an operator as it was found."""
    swaps = [path for path in left.files if path.endswith(layout.SWAP)]
    kept = {*left.segments, *swaps}
    if swaps and fault.path not in swaps:
        # What the swap stands for goes first, whatever is found after that.
        kept = {each.path for each in left.batches} - {swaps[0].removesuffix(layout.SWAP)}
    changed = [
        path
        for path, data in left.files.items()
        if path in kept
        and (fault.applied(data) if path == fault.path else data) != _found(disk, path)
    ]
    return f"offline, and changed {changed}" if changed else None


def _found(disk: SimDisk, path: str) -> bytes | None:
    return disk.contents(path) if disk.exists(path) else None


def _wrong_bytes(left: Left, disk: SimDisk, started: Started) -> str | None:
    """Hold what is in the files that are served against what was written."""
    for segment in started.meaning.segments:
        path = f"{DIRECTORY}/{layout.file_name(segment.base_offset, layout.LOG)}"
        written = left.files.get(path + layout.SWAP, left.files[path])
        if disk.contents(path) != written[: segment.size]:
            return f"serves other bytes from {path}"
    return None


def _wrong_end(left: Left, fault: Fault, started: Started) -> str | None:
    if started.end == left.end:
        return None
    if started.end < left.recovery_point:
        return f"serves up to {started.end}, promised are {left.recovery_point}"
    allowed = may_end_at(left, fault)
    if started.end != allowed:
        return f"ends at {started.end}, which is not {allowed}"
    is_torn = fault.kind == FLIP or fault.at not in _ends(left, fault.path)
    return "cut in silence" if is_torn and started.store.truncated is None else None


def may_end_at(left: Left, fault: Fault) -> int | None:
    """Where the log may end with this fault in it; None: the partition has to be offline (D3)."""
    if not fault.path.endswith(layout.LOG):
        return None
    end = _end_of_cut(left, fault) if fault.kind == CUT else _end_of_flip(left, fault)
    return None if end is None or end < left.recovery_point else end


def _ends(left: Left, path: str) -> dict[int, int]:
    """Where batches end in a file, and at what offset; none at 0."""
    here = {each.end: each.header.next_offset for each in left.batches if each.path == path}
    return {0: base_of(path), **here}


def _end_of_cut(left: Left, fault: Fault) -> int | None:
    if left.durability == "fsync" and fault.path != left.segments[-1]:
        return None
    return max(end for position, end in _ends(left, fault.path).items() if position <= fault.at)


def _end_of_flip(left: Left, fault: Fault) -> int | None:
    byte = fault.at // 8
    (hit,) = (each for each in left.last_batches if each.position <= byte < each.end)
    if byte - hit.position in _OUTSIDE_CRC:
        return None
    may_cut = left.durability == "os" or hit == left.last_batches[-1]
    return hit.header.base_offset if may_cut else None


def _cut_at(left: Left, files: dict[str, bytes], end: int) -> dict[str, bytes]:
    """The files of a log that ended between two batches."""
    if end == left.end:
        return files
    kept = dict(files)
    for path in left.segments:
        ends = [position for position, offset in _ends(left, path).items() if offset <= end]
        if ends:
            kept[path] = kept[path][: max(ends)]
        else:
            del kept[path]
    return kept
