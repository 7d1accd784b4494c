"""Two copiers in one group, killed, frozen and left without a broker: each record exactly once."""

import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from fencelog.client.blocking import Client
from tests.jvm._copiers import GROUP, Copier, Feeder, is_ongoing, places, read_all
from tests.support.broker import BrokerProcess
from tests.support.waiting import wait_until

PARTITIONS = 4
DEADLINE_S = 60.0
SETTINGS = """\
group.initial.rebalance.delay.ms=50
group.min.session.timeout.ms=500
"""


@pytest.fixture
def copying_broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    """A broker that lets sessions be short."""
    with BrokerProcess(tmp_path / "data", settings=SETTINGS) as broker:
        with Client(broker.address) as client:
            for topic in ("in", "out"):
                client.create_topic(topic, PARTITIONS)
        yield broker


@pytest.fixture
def copiers(examples: str, copying_broker: BrokerProcess, tmp_path: Path) -> Iterator[list[Copier]]:
    """Two processes of the printed copier; they are not started yet."""
    found = [Copier(examples, copying_broker.address, name, tmp_path) for name in ("a", "b")]
    yield found
    for copier in found:
        copier.kill()


def stopped_inside_a_transaction(client: Client, copier: Copier, how: signal.Signals) -> None:
    """Send it SIGKILL or SIGSTOP, again and again, until that leaves a transaction of its open."""

    def is_caught() -> bool:
        copier.start()
        if not is_ongoing(client, copier.transactional_id):
            return False
        copier.send(how)
        if how is signal.SIGKILL:
            copier.kill()
        if is_ongoing(client, copier.transactional_id):
            return True
        if how is signal.SIGSTOP:
            copier.send(signal.SIGCONT)
        return False

    what = f"{how.name} inside a transaction"
    wait_until(is_caught, deadline_s=DEADLINE_S, what=what, every_s=0)


def shares(client: Client) -> list[int]:
    """How many partitions each member has."""
    if GROUP not in {each.group for each in client.list_groups()}:
        return []
    return sorted(len(each.partitions) for each in client.describe_group(GROUP).members)


def await_shares(client: Client, copiers: list[Copier], *wanted: int) -> None:
    """Restart members that ended, until these are the members' shares."""

    def holds() -> bool:
        for copier in copiers:
            copier.start()
        return shares(client) == list(wanted)

    wait_until(holds, deadline_s=DEADLINE_S, what=f"shares {wanted}", every_s=0.1)


def test_two_java_members_copy_each_record_once_through_kills_of_both_and_of_the_broker(
    copying_broker: BrokerProcess, copiers: list[Copier]
) -> None:  # E8, E10, E11
    first, second = copiers
    with Client(copying_broker.address) as client:

        def both_commit() -> None:
            await_shares(client, copiers, 2, 2)
            before = [copier.commits for copier in copiers]

            def holds() -> bool:
                await_shares(client, copiers, 2, 2)
                return all(map(int.__lt__, before, [copier.commits for copier in copiers]))

            wait_until(holds, deadline_s=DEADLINE_S, what="commits of both", every_s=0.1)

        with Feeder(copying_broker.address, PARTITIONS) as feeder:
            await_shares(client, [first], 4)
            both_commit()
            stopped_inside_a_transaction(client, first, signal.SIGKILL)
            both_commit()
            copying_broker.restart()
            both_commit()
            # A zombie: it sleeps through the end of its session, and wakes to go on and commit.
            stopped_inside_a_transaction(client, second, signal.SIGSTOP)
            await_shares(client, [first], 4)
            second.send(signal.SIGCONT)
            both_commit()
            stopped_inside_a_transaction(client, second, signal.SIGKILL)
        await_shares(client, copiers, 2, 2)

        def all_is_read() -> bool:
            await_shares(client, copiers, 2, 2)
            ends = client.offsets(places("in", PARTITIONS), "latest")
            return client.committed_offsets(GROUP) == ends

        wait_until(all_is_read, deadline_s=DEADLINE_S, what="the rest", every_s=0.1)
        for copier in copiers:
            copier.end(DEADLINE_S)
            assert copier.said[-1] == "bye", copier.said[-10:]
        copied = read_all(client, places("out", PARTITIONS))
    assert Counter(number for part in copied for number in part) == Counter(range(feeder.written))
    assert second.was_refused, second.said
