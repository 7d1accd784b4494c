"""A partition's log as rows of a history, control records included."""

from collections.abc import Sequence

from fencelog.wire.batch import read_header
from fencelog.wire.control import Marker, OwnershipRecord, read_control
from fencelog.wire.records import read_records

OWNER, MARKER, DATA = "owner", "marker", "data"


def rows_of(batches: Sequence[memoryview], start: int) -> tuple[list[list[object]], int]:
    """Return the rows from ``start`` on, and where the next ones begin.

    ``[offset, "owner", group, epoch, session, is_live, first]``: an ownership record, and where
    it was written first; ``[offset, "marker", producer_id, commit]``;
    ``[offset, "data", producer_id, transactional, value]``, the producer id -1 without one.
    """
    rows: list[list[object]] = []
    for batch in batches:
        header = read_header(batch)
        if header.next_offset <= start:
            continue
        offset = header.base_offset
        control = read_control(batch) if header.is_control else None
        if isinstance(control, OwnershipRecord):
            known = [control.group, control.epoch, control.session, control.is_live]
            rows.append([offset, OWNER, *known, control.offset])
        elif isinstance(control, Marker):
            rows.append([offset, MARKER, header.producer_id, control.commit])
        elif not header.is_control:
            rows += [
                [
                    each.offset,
                    DATA,
                    header.producer_id,
                    header.is_transactional,
                    (each.value or b"").decode(),
                ]
                for each in read_records(batch)
                if each.offset >= start
            ]
        start = header.next_offset
    return rows, start
