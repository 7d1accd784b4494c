"""What of a history still holds after a power cut that was allowed to lose records."""

from fencelog.check import check
from fencelog.check.history import Event, Recorder
from fencelog_sim.surviving import surviving

LOST_AT = 5.0


class Clients:
    """Writes a history, at the times that a test says."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.at = 0.0

    def recorder(self, process: str) -> Recorder:
        return Recorder(process, now=lambda: self.at, write=self.events.append)

    def send(self, at: float, value: str, offset: int) -> None:
        self.at = at
        invocation = self.recorder(f"w{value}").invoke([["send", "t/0", value]], transactional=True)
        invocation.ok([["send", "t/0", value, offset]])

    def read_in_the_end(self, rows: list[tuple[int, str]]) -> None:
        self.at = 9.0
        final = self.recorder("final")
        final.invoke([["poll", {}]]).ok([["poll", {"t/0": [list(row) for row in rows]}]])
        end = {"log_start": 0, "last_stable": 9, "high_watermark": 9, "log_end": 9}
        final.end({"t/0": end})

    def kinds(self, lost_at: float | None) -> set[str]:
        return {each.kind for each in check(surviving(self.events, lost_at)).problems}


def test_what_was_acknowledged_before_the_power_cut_may_be_gone_and_nothing_else() -> None:
    clients = Clients()
    clients.send(1.0, "a", 0)
    clients.send(2.0, "b", 1)
    clients.read_in_the_end([(1, "b")])
    assert "lost-write" in clients.kinds(None)
    assert clients.kinds(1.5) == set()
    assert "lost-write" in clients.kinds(0.5)


def test_an_offset_may_be_given_again_after_the_power_cut() -> None:
    clients = Clients()
    clients.send(1.0, "a", 0)
    clients.send(7.0, "b", 0)
    clients.read_in_the_end([(0, "b")])
    assert "inconsistent-offset" in clients.kinds(None)
    assert clients.kinds(LOST_AT) == set()


def test_what_was_noted_before_the_power_cut_says_so() -> None:
    clients = Clients()
    for at in (1.0, 7.0):
        clients.at = at
        clients.recorder("w").note(what="granted")
    noted = surviving(clients.events, LOST_AT)
    assert [each.get("may_be_lost", False) for each in noted] == [True, False]


def test_what_is_there_twice_is_a_duplicate_whenever_it_was_sent() -> None:
    clients = Clients()
    clients.send(1.0, "a", 0)
    clients.read_in_the_end([(0, "a"), (1, "a")])
    assert clients.kinds(LOST_AT) == {"duplicate"}
