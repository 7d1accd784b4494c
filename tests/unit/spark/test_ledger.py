"""The ledger of a broker without versioned transactions: its records, and the verdicts."""

from dataclasses import replace

import pytest

from fencelog.errors import ErrorCode
from fencelog.spark.driver_commit.ledger import (
    RUNS_MAX,
    AppState,
    Committed,
    Driver,
    Judgement,
    LedgerScan,
    Refuse,
    Register,
    Replay,
    Run,
    Write,
    batch_record,
    driver_record,
    judge,
)
from fencelog.spark.identity import BatchIdentity
from fencelog.wire.control import marker_batch
from fencelog.wire.records import RecordToWrite, build_batch

RUNS = (Run(run_id="old", since_ms=1, host="a"), Run(run_id="new", since_ms=2, host="b"))
STATE = AppState(
    driver=Driver(query_id="query", runs=RUNS),
    committed=Committed(query_id="query", run_id="new", version=4, fingerprint=b"f", at_ms=3),
)


def batch(
    version: int, *, run: str = "new", query: str = "query", allow_gaps: bool = False
) -> BatchIdentity:
    return BatchIdentity(
        app="app", query_id=query, run_id=run, version=version, host="h", allow_gaps=allow_gaps
    )


def verdict(
    identity: BatchIdentity, state: AppState = STATE, *, takeover: bool = False
) -> Judgement:
    return judge(state, identity, b"f", takeover=takeover, now_ms=9)


def test_the_next_batch_of_the_newest_run_is_written() -> None:  # V3
    assert verdict(batch(5)) == Write()


def test_a_batch_that_is_there_is_not_written_again_by_any_run_that_is_not_older() -> None:  # V3
    assert verdict(batch(4)) == verdict(batch(4, run="newer")) == Replay("new")


def test_a_new_run_registers_before_it_writes_and_all_others_are_older() -> None:  # V2
    registered = verdict(batch(5, run="newer"))
    newer = Run(run_id="newer", since_ms=9, host="h")
    assert registered == Register(Driver(query_id="query", runs=(*RUNS, newer)))
    after = replace(STATE, driver=registered.driver)
    assert verdict(batch(5, run="newer"), after) == Write()
    for older in ("old", "new"):
        assert verdict(batch(5, run=older), after) == Refuse(ErrorCode.RUN_FENCED)


def test_an_older_run_may_write_nothing_not_even_what_is_there() -> None:  # V2
    for version in (3, 4, 5):
        assert verdict(batch(version, run="old")) == Refuse(ErrorCode.RUN_FENCED)


@pytest.mark.parametrize(
    ("version", "code"), [(3, ErrorCode.STALE_VERSION), (6, ErrorCode.VERSION_GAP)]
)
@pytest.mark.parametrize("run", ["new", "newer"])
def test_the_checkpoint_has_to_go_on_where_the_ledger_ends(
    version: int, code: ErrorCode, run: str
) -> None:  # V3
    assert verdict(batch(version, run=run)) == Refuse(code)


def test_another_fingerprint_of_the_last_batch_is_a_conflict() -> None:  # V3
    found = judge(STATE, batch(4), b"other", takeover=False, now_ms=9)
    assert found == Refuse(ErrorCode.VERSION_CONFLICT)


def test_a_batch_job_may_leave_numbers_out() -> None:  # V3
    assert verdict(batch(9, allow_gaps=True)) == Write()


def test_an_app_begins_at_any_batch() -> None:  # V3
    assert isinstance(verdict(batch(7), AppState()), Register)


def test_another_query_needs_to_take_over_and_then_numbers_anew() -> None:  # V4
    other = batch(0, run="theirs", query="other")
    assert verdict(other) == Refuse(ErrorCode.APP_IN_USE)
    taken = verdict(other, takeover=True)
    assert isinstance(taken, Register)
    after = replace(STATE, driver=taken.driver)
    assert verdict(other, after) == Write()
    assert verdict(batch(5), after) == Refuse(ErrorCode.APP_IN_USE)
    assert verdict(batch(5), after, takeover=True) == Refuse(ErrorCode.RUN_FENCED)


def test_the_list_of_runs_is_bounded_and_keeps_the_newest() -> None:
    many = tuple(Run(run_id=str(number), since_ms=0, host="") for number in range(RUNS_MAX))
    state = AppState(driver=Driver(query_id="query", runs=many))
    registered = verdict(batch(0), state)
    assert isinstance(registered, Register)
    assert len(registered.driver.runs) == RUNS_MAX
    assert registered.driver.newest.run_id == "new"


# --- the records


class Topic:
    """Batches of the ledger, one after the other."""

    def __init__(self) -> None:
        self.content = bytearray()

    def write(self, producer: int, *records: RecordToWrite, transactional: bool = True) -> None:
        self.content += build_batch(
            records,
            producer_id=producer,
            producer_epoch=0,
            base_sequence=0,
            transactional=transactional,
        )

    def end(self, producer: int, *, commit: bool) -> None:
        self.content += marker_batch(
            producer, 0, commit=commit, coordinator_epoch=0, timestamp_ms=0
        )

    def scan(self, app: str = "app") -> LedgerScan:
        scan = LedgerScan(app)
        scan.feed(memoryview(self.content))
        return scan


@pytest.fixture
def topic() -> Topic:
    return Topic()


def record(version: int, app: str = "app") -> RecordToWrite:
    return batch_record(replace(batch(version), app=app), b"f", 3)


DRIVER = driver_record("app", Driver(query_id="query", runs=RUNS), 2)


def test_what_is_written_is_read(topic: Topic) -> None:
    topic.write(1, DRIVER)
    topic.end(1, commit=True)
    topic.write(1, record(4))
    topic.end(1, commit=True)
    assert topic.scan().state == STATE


def test_only_a_commit_marker_makes_a_record_count(topic: Topic) -> None:  # E10
    topic.write(1, record(4))
    topic.end(1, commit=True)
    topic.write(1, record(5))
    topic.end(1, commit=False)
    topic.write(1, record(6))
    scan = topic.scan()
    assert scan.state.committed is not None
    assert scan.state.committed.version == 4
    assert not scan.is_settled
    topic.end(1, commit=False)
    assert topic.scan().is_settled


def test_a_transaction_of_another_app_holds_nothing_back(topic: Topic) -> None:
    topic.write(2, record(7, app="other"))
    topic.write(1, record(4))
    topic.end(1, commit=True)
    scan = topic.scan()
    assert scan.is_settled
    assert scan.state == replace(STATE, driver=None)


def test_a_marker_may_come_in_a_later_fetch(topic: Topic) -> None:
    topic.write(1, record(4))
    scan = topic.scan()
    later = Topic()
    later.end(1, commit=True)
    scan.feed(memoryview(later.content))
    assert scan.state.committed == STATE.committed


def test_what_others_write_there_does_not_count(topic: Topic) -> None:
    topic.write(1, record(4), transactional=False)
    topic.write(2, RecordToWrite(b"key", b"\xff", 0), RecordToWrite(None, None, 0))
    topic.end(2, commit=True)
    assert topic.scan().state == AppState()
