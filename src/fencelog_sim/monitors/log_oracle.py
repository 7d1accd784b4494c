"""The log oracle at the simulated disk: it reads every byte that is appended to a log.

It knows only files. It checks each batch by its place, its checksum, its producer and its
transaction, the coordinators' logs included (``coordinator_model``). After a crash each log must be
a prefix of what was appended that holds everything promised (E15), whatever recovery did to its
files.
"""

from collections.abc import Callable, Sequence
from zlib import crc32

from fencelog.coordination.shard import LogRecord
from fencelog.errors import CorruptionError, WireError
from fencelog.log import layout
from fencelog.types import NO_PRODUCER_ID, TopicPartition
from fencelog.wire.batch import HEADER_BYTES, BatchHeader, check_crc, read_header
from fencelog.wire.control import Control, Marker, OwnershipRecord, Seal, read_control
from fencelog.wire.records import read_records
from fencelog_sim.monitors.compacted import Batch, Swap, SwapChecker
from fencelog_sim.monitors.coordinator_model import Coordinators, Place
from fencelog_sim.monitors.ledger import Ledger
from fencelog_sim.monitors.observed_log import LogOracle

_METADATA = f"{layout.PARTITION_METADATA}.tmp"
VIOLATIONS_MAX = 40

ReadFile = Callable[[str], bytes | None]
LiveOffsets = Callable[[TopicPartition], tuple[int, int, bool, bool] | None]
"""Log start and high watermark of a partition that is open, and whether its start knew no more
than the batches that are there."""


class LogOracles:
    """The logs of one broker over all of its processes."""

    def __init__(self, read: ReadFile, offsets: LiveOffsets, now_ms: Callable[[], int]) -> None:
        """``read`` gives the content of a file, ``offsets`` asks the live broker."""
        self._read = read
        self._offsets = offsets
        self._now_ms = now_ms
        self.latest_ms = 0
        """The highest time that the broker's clock has shown."""
        self.logs: dict[str, LogOracle] = {}
        """By directory."""
        self.coordinators = Coordinators(self)
        self.serving = False
        self.weakened = False
        """``os`` mode has lost what was not synced: one log may have what another has lost, so the
        coordinators' logs no longer explain the markers and batches of the others."""
        self.violations: list[str] = []
        self.appends = 0
        self.batches = 0
        self.swaps = 0

    def of(self, partition: TopicPartition) -> LogOracle | None:
        """Return what was seen of a partition's files; None: it has none."""
        return self.logs.get(layout.directory_name(partition))

    # -- what happens at the disk --------------------------------------------------------------

    def wrote(self, path: str, position: int, data: bytes) -> None:
        """Bytes were appended to a file."""
        self.latest_ms = max(self.latest_ms, self._now_ms())
        directory, _, file = path.rpartition("/")
        if file.endswith(layout.LOG):
            parsed = layout.parse_file_name(file)
            if parsed is not None:
                self.appends += 1
                self._append(self._log(directory), parsed[0], position, data)
        elif file == _METADATA:
            self._named(directory, data)

    def _named(self, directory: str, data: bytes) -> None:
        """A partition's directory is given to a topic: another topic's log is another log."""
        try:
            topic_id = layout.decode_partition_metadata(data.decode("ascii", "replace"))
        except CorruptionError:
            return  # half a write
        log = self.logs.get(directory)
        if log is not None and log.topic_id not in {None, topic_id}:
            log = None
        if log is None:
            log = self.logs[directory] = LogOracle(_partition_of(directory), topic_id)
        log.topic_id = topic_id

    def _log(self, directory: str) -> LogOracle:
        log = self.logs.get(directory)
        if log is None:
            log = self.logs[directory] = LogOracle(_partition_of(directory), None)
        return log

    def _append(self, log: LogOracle, segment: int, position: int, data: bytes) -> None:
        if log.stale:
            self.reconcile(log, before=(segment, position))
        self.stands(log, log.end)
        if segment != log.segment or not log.batches:
            if segment != log.end:
                self.report(log.name, f"file {segment} begins where the log ends at {log.end} (D3)")
            log.segment, log.size = segment, 0
        if position != log.size:
            self.report(
                log.name, f"bytes appended at {position} of {segment}, expected {log.size} (D2)"
            )
            log.size = position
        first = len(log.batches)
        view, at = memoryview(data), 0
        while len(data) - at >= HEADER_BYTES:
            try:
                header = read_header(view, at)
            except WireError as error:
                self.report(log.name, f"no batch at {position + at} of {segment}: {error} (D3)")
                break
            if header.size > len(data) - at:
                break  # the rest of a write that failed
            if not check_crc(view[at : at + header.size]):
                self.report(log.name, f"offset {header.base_offset}: wrong CRC (D3)")
            self._take(log, _batch(log, segment, position + at, header, view[at:]))
            at += header.size
        log.size = position + at
        # A write that failed may have brought one marker of a group and not the next.
        if at == len(data) and len(log.batches) > first:
            self._judge_group(log, first)

    # -- batches -------------------------------------------------------------------------------

    def _take(self, log: LogOracle, batch: Batch) -> None:
        """Check a new batch and apply it."""
        self.batches += 1
        header = batch.header
        where = f"offset {header.base_offset}"
        if header.base_offset != log.end:
            self.report(log.name, f"{where} where {log.end} is due (F1, D3)")
        if header.leader_epoch < log.leader_epoch:
            self.report(
                log.name,
                f"{where}: leader epoch {header.leader_epoch} after {log.leader_epoch} (D3)",
            )
        log.batches.append(batch)
        log.leader_epoch = max(log.leader_epoch, header.leader_epoch)
        log.end = header.next_offset
        if batch.records:
            problems = self._coordinate(log, batch)
            self._report_all(log, where, [] if self.weakened else problems)
        if batch.seal is not None:
            self._report_all(log, where, [log.ledger.seal(header)])
        elif not header.is_control:
            self._report_all(log, where, [log.ledger.behind_seal(header)])
        if header.producer_id < 0:
            return
        if batch.marker is not None:
            problem = self._explained(
                self.coordinators.check(log.name, header, batch.marker, serving=self.serving)
            )
            self._report_all(log, where, [problem, log.ledger.marker(header, batch.marker)])
            self.coordinators.end(log.name, header.producer_id, commit=batch.marker.commit)
        elif not header.is_control:
            opens = header.is_transactional and header.producer_id not in log.ledger.open
            problem = self.coordinators.check_begin(log.name, header) if opens else None
            problem = self._explained(problem)
            self._report_all(log, where, [problem, log.ledger.data(header)])
            self.coordinators.shared.written_by.add(header.producer_id)

    def _explained(self, problem: str | None) -> str | None:
        return None if self.weakened else problem

    def _coordinate(self, log: LogOracle, batch: Batch) -> list[str]:
        try:
            return self.coordinators.take(log.name, batch.records)
        except CorruptionError as error:
            return [str(error)]

    def _judge_group(self, log: LogOracle, first: int) -> None:
        """All markers of a versioned transaction must be in the append that has one (V6)."""
        for batch in log.batches[first:]:
            if batch.marker is None or not batch.marker.drops_state:
                continue
            producer_id = batch.header.producer_id
            for other in self.coordinators.siblings(producer_id, log.name):
                if other in log.ledger.open:
                    offset = batch.header.base_offset
                    log.apart = (
                        offset,
                        f"the marker of producer {producer_id} at {offset} is appended without "
                        f"that of {other} (V6)",
                    )

    def stands(self, log: LogOracle, high_watermark: int) -> None:
        """All below an offset was appended without a failure: what is apart there stays so."""
        if log.apart is not None and log.apart[0] < high_watermark:
            self.report(log.name, log.apart[1])
            log.apart = None

    # -- compaction ----------------------------------------------------------------------------

    def renamed(self, path: str) -> None:
        """A file has this name now: compaction says by it what the file stands for."""
        directory, _, file = path.rpartition("/")
        base = layout.parse_swap_name(file)
        log = self.logs.get(directory)
        if base is None or log is None or log.stale:
            return
        data = self._read(path) or b""
        new: list[Batch] = []
        view, at = memoryview(data), 0
        while at < len(data):
            header = read_header(view, at)
            if not check_crc(view[at : at + header.size]):
                self.report(log.name, f"offset {header.base_offset}: wrong CRC (D3)")
            new.append(_batch(log, base, at, header, view[at:]))
            at += header.size
        end = new[-1].header.next_offset
        old = [each for each in log.batches if base <= each.segment < end]
        swap = Swap(base, end, old, new)
        offsets = self._offsets(log.name)
        if offsets is not None:
            self._judge_swap(log, swap, offsets[1], data)
        self.swaps += 1
        log.compacted = True
        log.swaps.append(swap)
        log.put(swap.new, base, end)

    def removed(self, path: str) -> None:
        """A file was removed; if it was a compacted one before its swap, compaction gave it up."""
        directory, _, file = path.rpartition("/")
        base = layout.parse_swap_name(file)
        log = self.logs.get(directory)
        if base is None or log is None or log.stale or not log.swaps:
            return
        swap = log.swaps.pop()
        assert swap.base == base, (swap.base, base)
        log.put(swap.old, swap.base, swap.end)

    def _judge_swap(self, log: LogOracle, swap: Swap, high_watermark: int, data: bytes) -> None:
        contents: dict[int, bytes | None] = {}

        def read_old(batch: Batch) -> bytes | None:
            if batch.segment not in contents:
                contents[batch.segment] = self._read(log.path_of(batch.segment))
            content = contents[batch.segment]
            if content is None:
                return None
            return content[batch.position : batch.position + batch.header.size]

        def read_new(batch: Batch) -> bytes:
            return data[batch.position : batch.position + batch.header.size]

        checker = SwapChecker(
            log.batches,
            log.ledger,
            log.ledger.last_stable_offset(high_watermark, log.log_start),
            max(self.latest_ms, self._now_ms()),
            read_old,
            read_new,
        )
        for problem in checker.problems(swap):
            self.report(log.name, problem)

    def _settle_swaps(self, log: LogOracle) -> None:
        """After a crash each file is the compacted one, or what it was made of."""
        swaps, log.swaps = log.swaps, []
        settled: list[Swap] = []
        for swap in reversed(swaps):
            if any(each.base <= swap.base < each.end for each in settled):
                continue
            content = self._read(log.path_of(swap.base))
            if content is None or _is(content, swap.new):
                settled.append(swap)
            else:
                log.put(swap.old, swap.base, swap.end)

    # -- after a crash -------------------------------------------------------------------------

    def crashed(self) -> None:
        """The broker's process has ended: no log is known to be what it was."""
        self.serving = False
        self.coordinators.shared.asked.clear()
        for log in self.logs.values():
            log.stale = True

    def reconcile(self, log: LogOracle, before: tuple[int, int] | None = None) -> bool:
        """Read what recovery has left of a log, and continue from there.

        ``before``: the bytes of this file from this position on were appended since. Returns
        whether ``recall`` has to look from where on the broker knows the log.
        """
        log.stale = False
        log.apart = None
        offsets = self._offsets(log.name)
        if offsets is not None:
            # Stored before it is visible: a crash may come between.
            log.log_start = max(log.log_start, offsets[0])
        self._settle_swaps(log)
        kept, lost = self._survivors(log, before)
        end, size = lost[0].header.base_offset if lost else log.end, 0
        if kept:
            last = kept[-1]
            end, size = last.header.next_offset, last.position + last.header.size
        if end < log.promised:
            self.report(
                log.name,
                f"ends at {end} after a crash, though {log.promised} was promised (D1, E15)",
            )
        self._check_rest(log, kept, size, before)
        log.promised = min(log.promised, end)
        deleted = log.batches[: len(log.batches) - len(kept) - len(lost)]
        is_rebuilt, knows_deleted = (True, False) if offsets is None else offsets[2:]
        log.knows_less = not is_rebuilt and (log.knows_less or (log.compacted and bool(lost)))
        if lost:
            self._rebuild(log, [*deleted, *kept])
        if is_rebuilt and (log.compacted or (deleted and not knows_deleted)):
            self._remember(log, kept[0].segment if kept else end)
        log.end = end
        log.segment, log.size = (kept[-1].segment, size) if kept else (end, 0)
        return not log.knows_less and (knows_deleted or not is_rebuilt)

    def recall(self, log: LogOracle, differs: Callable[[], bool]) -> None:
        """Find from where on the broker's state knows a log, which it loaded from a stored one.

        Kafka keeps the state of producers whose batches retention has deleted, and so do snapshots
        and checkpoints, until a start has to read the log itself and finds no snapshot where it
        begins. The next one may find a checkpoint from before that start again, or a snapshot that
        it wrote. Nothing else than what one of the starts knew is accepted, and it holds until the
        broker ends.
        """
        at_first = log.memory
        for memory in sorted(log.memories - {at_first}) if differs() else ():
            self._remember(log, memory)
            if not differs():
                return
        if log.memory != at_first:
            self._remember(log, at_first)

    def _remember(self, log: LogOracle, memory: int) -> None:
        """Let the broker's state tell of the files from this one on."""
        batches = [*log.forgotten, *log.batches]
        log.memory = memory
        log.memories.add(memory)
        log.forgotten = [each for each in batches if each.segment < memory]
        self._rebuild(log, [each for each in batches if each.segment >= memory])

    def _survivors(
        self, log: LogOracle, before: tuple[int, int] | None
    ) -> tuple[list[Batch], list[Batch]]:
        """The batches that are there, and those behind them that are not."""
        kept: list[Batch] = []
        segment, data = -1, b""
        for number, batch in enumerate(log.batches):
            if batch.segment != segment:
                segment = batch.segment
                content = self._read(log.path_of(segment))
                if content is None and not kept and self._was_deleted(log, segment):
                    continue
                data = content or b""
                if before is not None and before[0] == segment:
                    data = data[: before[1]]
            elif not kept and not data:
                continue  # of a deleted segment
            end = batch.position + batch.header.size
            if len(data) < end or crc32(data[batch.position : end]) != batch.digest:
                return kept, log.batches[number:]
            kept.append(batch)
        return kept, []

    @staticmethod
    def _was_deleted(log: LogOracle, segment: int) -> bool:
        later = (each.segment for each in log.batches if each.segment > segment)
        return next(later, log.end) <= log.log_start

    def _check_rest(
        self, log: LogOracle, kept: list[Batch], size: int, before: tuple[int, int] | None
    ) -> None:
        """After what survived, nothing may follow that was never appended."""
        segments = {each.segment for each in log.batches if each.segment >= log.log_start}
        last = kept[-1].segment if kept else -1
        for segment in sorted({each for each in segments if each >= last}):
            content = self._read(log.path_of(segment)) or b""
            if before is not None and segment >= before[0]:
                content = content[: before[1]] if segment == before[0] else b""
            expected = size if segment == last else 0
            if len(content) > expected:
                self.report(
                    log.name,
                    f"after a crash {len(content)} bytes in file {segment}, of which only "
                    f"{expected} are as they were appended (E15)",
                )

    def _rebuild(self, log: LogOracle, kept: list[Batch]) -> None:
        """Derive everything anew from the remaining batches; they were checked before."""
        log.rebuilt += 1
        log.batches = kept
        log.ledger = Ledger()
        log.leader_epoch = -1
        if log.is_internal:
            self.coordinators.forget(log.name)
        for batch in kept:
            header = batch.header
            log.leader_epoch = max(log.leader_epoch, header.leader_epoch)
            if batch.records:
                self._coordinate(log, batch)
            if batch.seal is not None:
                log.ledger.seal(header)
            if header.producer_id < 0:
                continue
            if batch.marker is not None:
                log.ledger.marker(header, batch.marker)
                self.coordinators.end(log.name, header.producer_id, commit=batch.marker.commit)
            elif not header.is_control:
                log.ledger.data(header)

    # -- questions of the coordinator model -----------------------------------------------------

    def is_open(self, producer_id: int, partition: TopicPartition) -> bool:
        """Whether the producer has data there without a marker after it."""
        log = self.of(partition)
        return log is not None and not log.stale and producer_id in log.ledger.open

    def seal_problem(self, partition: TopicPartition, offset: int) -> str | None:
        """Return why the log has no committed seal at an offset, None if it has."""
        log = self.of(partition)
        if log is None:
            return "there is no log"
        if log.ledger.sealed_at != offset:
            return f"the seal of its log is at {log.ledger.sealed_at}"
        offsets = self._offsets(partition)
        high_watermark = log.promised if offsets is None else offsets[1]
        return None if high_watermark > offset else f"it is committed up to {high_watermark}"

    def last_marker(self, producer_id: int, partition: TopicPartition) -> int | None:
        """Offset of the producer's last marker there."""
        log = self.of(partition)
        return None if log is None or log.stale else log.ledger.marked.get(producer_id)

    def is_committed(self, place: Place) -> bool:
        """Whether the high watermark covers a record, as far as is known."""
        offsets = self._offsets(place.log)
        return offsets is None or offsets[1] > place.offset

    # -- violations ----------------------------------------------------------------------------

    def report(self, name: TopicPartition, problem: str) -> None:
        """Keep the violations of a log, up to a number."""
        if len(self.violations) < VIOLATIONS_MAX:
            self.violations.append(f"{name}: {problem}")

    def _report_all(self, log: LogOracle, where: str, problems: Sequence[str | None]) -> None:
        for problem in problems:
            if problem is not None:
                self.report(log.name, f"{where}: {problem}")


def _is(content: bytes, batches: Sequence[Batch]) -> bool:
    """Whether a file holds these batches and nothing else."""
    last = batches[-1]
    return len(content) == last.position + last.header.size and all(
        crc32(content[each.position : each.position + each.header.size]) == each.digest
        for each in batches
    )


def _partition_of(directory: str) -> TopicPartition:
    partition = layout.parse_directory_name(directory)
    assert partition is not None, directory
    return partition


def _batch(
    log: LogOracle, segment: int, position: int, header: BatchHeader, data: memoryview
) -> Batch:
    """The batch at the beginning of ``data``."""
    data = data[: header.size]
    control: Control | None = None
    records: tuple[tuple[int, LogRecord], ...] = ()
    if header.is_control:
        control = read_control(data)
    elif log.is_internal:
        writer = header.producer_id if header.is_transactional else NO_PRODUCER_ID
        records = tuple(
            (each.offset, LogRecord(each.key or b"", each.value, writer))
            for each in read_records(data)
        )
    marker = control if isinstance(control, Marker) else None
    owner = control if isinstance(control, OwnershipRecord) else None
    ending = control if isinstance(control, Seal) else None
    return Batch(segment, position, header, crc32(data), marker, records, owner, ending)
