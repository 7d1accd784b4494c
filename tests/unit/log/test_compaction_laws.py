"""Any history, compacted at any moment, against a plain model (D4)."""

from hypothesis import given, settings
from hypothesis import strategies as st

from fencelog.log.transactions import aborted_between
from fencelog.wire.records import read_records
from tests.unit.log.files import NOW_MS, Files, KeyValue

STEPS = st.one_of(
    st.tuples(
        st.just("write"),
        st.lists(
            st.tuples(st.sampled_from("abc"), st.sampled_from(["1", "2", None])),
            min_size=1,
            max_size=4,
        ),
        st.sampled_from([-1, 7, 8]),
    ),
    st.tuples(st.just("write_in_transaction"), st.sampled_from("abc"), st.sampled_from([7, 8])),
    st.tuples(st.just("end"), st.booleans(), st.sampled_from([7, 8])),
    st.tuples(st.just("roll"), st.none(), st.none()),
    st.tuples(st.just("compact"), st.sampled_from([2, 1000]), st.sampled_from([0, 20])),
)


class Model:
    """What a history has to leave: the newest committed value of each key."""

    def __init__(self) -> None:
        self.files = Files.of(delete_retention_ms=10, segment_bytes=1024)
        self.now_ms = NOW_MS
        self.sequences = {7: 0, 8: 0}
        self.pending: dict[int, list[tuple[int, str, str]]] = {}
        self.newest: dict[str, tuple[int, str | None]] = {}

    def note(self, offset: int, key: str, value: str | None) -> None:
        if key not in self.newest or self.newest[key][0] < offset:
            self.newest[key] = (offset, value)

    def write(self, records: list[KeyValue], who: int) -> None:
        if who in self.pending:
            return
        kind = {} if who < 0 else {"producer_id": who, "sequence": self.sequences[who]}
        base = self.files.write(*records, **kind)
        if who >= 0:
            self.sequences[who] += len(records)
        for position, (key, value) in enumerate(records):
            self.note(base + position, key, value)

    def write_in_transaction(self, key: str, who: int) -> None:
        value = f"t{self.files.log.log_end_offset}"
        offset = self.files.write(
            (key, value), producer_id=who, sequence=self.sequences[who], transactional=True
        )
        self.sequences[who] += 1
        self.pending.setdefault(who, []).append((offset, key, value))

    def end(self, commit: bool, who: int) -> None:
        if who in self.pending:
            self.files.end(who, commit=commit)
            for entry in self.pending.pop(who) if commit else ():
                self.note(*entry)
            self.pending.pop(who, None)

    def roll(self, *_: object) -> None:
        if self.files.log._state.active.size:
            self.files.roll()

    def compact(self, keys_max: int, later_ms: int) -> None:
        self.now_ms += later_ms
        self.files.compact(self.now_ms, keys_max=keys_max)


@given(steps=st.lists(STEPS, max_size=40))
@settings(max_examples=200, deadline=None)
def test_any_history_keeps_the_newest_committed_values_and_brings_none_back(steps) -> None:  # D4
    model = Model()
    for verb, what, who in steps:
        getattr(model, verb)(what, who)
        check(model.files, model.newest, model.pending)


def check(files: Files, newest: dict, pending: dict) -> None:
    rebuilt = files.rebuilt()
    assert rebuilt.log_end_offset == files.log.log_end_offset
    assert rebuilt.last_stable_offset == files.log.last_stable_offset
    assert {p.producer_id: (p.producer_epoch, p.last_sequence) for p in rebuilt.producers()} == {
        p.producer_id: (p.producer_epoch, p.last_sequence) for p in files.log.producers()
    }
    for log in (files.log, rebuilt):
        void = aborted_between(log.aborted, 0, log.log_end_offset)
        seen: dict[str, tuple[int, str | None]] = {}
        for header, batch in files.batches():
            is_void = header.is_transactional and any(
                t.producer_id == header.producer_id
                and t.first_offset <= header.base_offset <= t.last_offset
                for t in void
            )
            is_open = header.is_transactional and any(
                header.base_offset == offset
                for entries in pending.values()
                for offset, *_ in entries
            )
            if header.is_control or is_void or is_open:
                continue
            for record in read_records(batch):
                value = None if record.value is None else record.value.decode()
                seen[record.key.decode()] = (record.offset, value)
        for key, (offset, value) in newest.items():
            # A tombstone may be gone; nothing older may stand in its place.
            assert seen.get(key, (offset, None)) == (offset, value), (key, seen, newest)
        assert seen.keys() <= newest.keys()
