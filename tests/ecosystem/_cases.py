"""What a framework copies while its members and the broker are killed, and what must come of it."""

from collections import Counter, defaultdict
from collections.abc import Callable

from fencelog.client.blocking import Client
from fencelog.errors import FencelogError
from fencelog.types import TopicPartition
from tests.clients.copying import PARTITIONS, Case, Copier
from tests.support.stock import Confluent

Start = Callable[[str], Copier]


class OneMember(Case):
    """A group of one, killed with a transaction open."""

    def live(self, admin: Client, start: Start) -> None:
        """The life of the member."""
        member = start("first")
        self.feed(admin, member)
        for _ in range(self.open_kills):
            self.kill_open(admin, member)
            self.feed(admin, member)
        member.leave()


class Counted(Case):
    """A copy by the Streams program, whose counts are checked as well."""

    def prepare(self, admin: Client) -> None:
        """Also a topic for the counts."""
        super().prepare(admin)
        admin.create_topic(f"{self.target}-counts", PARTITIONS)

    def copied(self, admin: Client) -> bool:
        """Also the counts, which lag behind: a repartition topic lies between."""
        if not super().copied(admin):
            return False
        return len(read_now(admin, f"{self.target}-counts")) >= len(self.values)

    def check(self) -> None:
        """Each record once in the output, and each digit was counted 1, 2, 3 and so on."""
        super().check()
        totals = Counter(value[-1:] for value in self.values)
        wanted = {digit: list(range(1, total + 1)) for digit, total in totals.items()}
        counts = self._counts()
        wrong = {digit: counts.get(digit) for digit in wanted if counts.get(digit) != wanted[digit]}
        assert not wrong, f"counted otherwise: {wrong}"

    def _counts(self) -> dict[bytes, list[int]]:
        counts: dict[bytes, list[int]] = defaultdict(list)
        for record in Confluent().read(self.address, f"{self.target}-counts"):
            counts[record.key or b""].append(int(record.value or b"0"))
        return counts


class AtLeastOnce(Case):
    """A copy by what does not promise more: nothing may be lost."""

    open_kills = 0
    rounds = 6
    doubled = 0
    """How many records more than once are in the output."""

    def live(self, admin: Client, start: Start) -> None:
        """The life of the member: killed, started again, and alive while the broker is killed."""
        member = start("first")
        self.feed(admin, member)
        member.kill()
        for _ in range(self.rounds):
            self.feed(admin, member)
        member.leave()

    def copied(self, admin: Client) -> bool:
        """By what is in the output: not all of these commit offsets to a group."""
        return len(set(read_now(admin, self.target))) == len(self.values)

    def check(self) -> None:
        """Each record at least once."""
        found = Counter(each.value for each in Confluent().read(self.address, self.target))
        assert set(found) == set(self.values)
        self.doubled = found.total() - len(found)


def read_now(admin: Client, topic: str) -> list[bytes | None]:
    """The committed values of a topic; none while the broker is away."""
    places = [TopicPartition(topic, number) for number in range(PARTITIONS)]
    try:
        ends = admin.offsets(places, "latest")
        return [record.value for at in places for record in admin.fetch(at, 0, ends[at])]
    except FencelogError:
        return []
