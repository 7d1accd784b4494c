"""What a recorder writes is what the checker reads."""

from fencelog.check import check
from fencelog.check.history import Event, Recorder, key_of


def test_what_recorders_write_is_a_history() -> None:
    events: list[Event] = []
    clock = iter(range(100))

    def recorder(process: str) -> Recorder:
        return Recorder(process, now=lambda: float(next(clock)), write=events.append)

    key = key_of("t", 0)
    writer, reader, admin = recorder("w"), recorder("final"), recorder("admin")
    sent = writer.invoke([["send", key, 1]], transactional=True)
    sent.committing()
    sent.ok([["send", key, 1, 0], ["commit", "g", {"t/1": 0}]])
    writer.invoke([["send", key, 2]]).failed([["send", key, 2]], "refused")
    writer.invoke([["send", key, 3]]).indeterminate([["send", key, 3]], "timed out")
    admin.fault("kill", until=9.5)
    admin.fault("kill again")
    reader.reset("seek")
    reader.invoke([["poll"]]).ok([["poll", {key: [[0, 1]]}]])
    ends = {"log_start": 0, "last_stable": 3, "high_watermark": 3, "log_end": 3}
    reader.end({key: ends})
    reader.group_end("g", {"t/1": 0})
    verdict = check(events)
    assert verdict.valid, verdict.text()
    assert verdict.remarks == ()
    assert verdict.counts["faults"] == 2
    assert [verdict.counts[each] for each in ("ok", "failed", "indeterminate")] == [2, 1, 1]
