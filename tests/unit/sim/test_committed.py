"""What a leader of a cluster shows beside all that is committed."""

import pytest

from fencelog.types import Offset
from fencelog.wire.batch import read_header
from fencelog_sim.monitors.committed import CommittedLogs, ShownOffsets
from fencelog_sim.monitors.ledger import Ledger
from tests.unit.sim.files import DATA, data


@pytest.mark.parametrize(
    ("last_stable", "is_compacted", "is_told"),
    [(2, True, False), (3, True, False), (4, True, True), (1, True, True), (3, False, True)],
)
def test_a_compacted_log_need_not_know_transactions_whose_batches_are_deleted(
    last_stable: int, is_compacted: bool, is_told: bool
) -> None:  # E10
    committed = CommittedLogs()
    ledger = committed._ledgers[DATA] = Ledger()
    committed._ends[DATA] = 5
    for producer_id, offset in ((8, 1), (9, 3)):
        header = read_header(data(producer_id, txn=True))._replace(base_offset=Offset(offset))
        assert ledger.data(header) is None
    shown = ShownOffsets(2, last_stable, 5, is_compacted=is_compacted)
    told = [*committed.shown_problems(DATA, shown)]
    expected = [f"the last stable offset is {last_stable}, expected 2 (E10)"]
    assert told == (expected if is_told else [])
