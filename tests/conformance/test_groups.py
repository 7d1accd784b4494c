"""Groups of the three stock clients, unmodified."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fencelog.client.blocking import Client
from tests.support.broker import BrokerProcess
from tests.support.stock import CLIENTS, DEADLINE_S, Confluent, ToSend
from tests.support.stock.members import MEMBERS, WRITERS, AioWorker, Refused, Worker, polled_until

Make = Callable[..., Any]
PARTITIONS = 4
ALL = set(range(PARTITIONS))


@pytest.fixture(scope="module")
def group_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A broker that does not wait three seconds for more members."""
    folder = tmp_path_factory.mktemp("groups")
    with BrokerProcess(
        folder / "data",
        settings=f"group.initial.rebalance.delay.ms=50\nnum.partitions={PARTITIONS}\n",
    ) as process:
        yield process


@pytest.fixture(params=list(MEMBERS))
def client(request: pytest.FixtureRequest) -> str:
    """Each of the three client libraries."""
    return str(request.param)


@pytest.fixture
def make(
    group_broker: BrokerProcess, topic: str, fresh_name: Callable[[str], str]
) -> Iterator[Make]:
    """Makes members of one group on one topic with four partitions; all are closed at the end."""
    group = fresh_name("group")
    made: list[Any] = []
    with Client(group_broker.address) as admin:
        admin.create_topic(topic, PARTITIONS)

    def member(name: str, **how: Any) -> Any:
        made.append(MEMBERS[name](group_broker.address, group, topic, **how))
        return made[-1]

    member.group = group  # type: ignore[attr-defined]
    yield member
    for each in made:
        each.close()


def shared(*members: Any) -> Callable[[], bool]:
    """Whether all partitions are shared out, evenly."""

    def holds() -> bool:
        shares = [each.assignment() for each in members]
        even = all(len(share) == PARTITIONS // len(members) for share in shares)
        return even and set().union(*shares) == ALL

    return holds


def write(address: str, topic: str, count: int) -> list[bytes]:
    """Records over all partitions; their values."""
    values = [b"%d" % number for number in range(count)]
    sent = [ToSend(value, partition=at % PARTITIONS) for at, value in enumerate(values)]
    Confluent().write(address, topic, sent)
    return values


def test_partitions_are_shared_out_and_taken_over(
    make: Make, client: str, topic: str, group_broker: BrokerProcess
) -> None:
    values = write(group_broker.address, topic, 40)
    first = make(client)
    came: list[Any] = []
    came += polled_until(lambda: first.assignment() == ALL, first)
    while len(came) < 40:
        came += first.poll()
    assert sorted(each.value for each in came) == sorted(values)
    first.commit(dict.fromkeys(ALL, 10))
    second = make(client)
    assert (
        polled_until(shared(first, second), first, second) == []
    )  # no member reads anything twice
    second.close()
    assert polled_until(lambda: first.assignment() == ALL, first) == []
    assert [first.committed(partition) for partition in sorted(ALL)] == [10] * PARTITIONS


def test_a_member_begins_where_its_group_has_committed_and_seeks_where_it_likes(
    make: Make, client: str, topic: str, group_broker: BrokerProcess
) -> None:
    write(group_broker.address, topic, 20)
    first = make(client)
    polled_until(lambda: first.assignment() == ALL, first)
    first.commit(dict.fromkeys(ALL, 5) | {2: 3})
    first.close()
    second = make(client)
    came: list[Any] = []
    while len(came) < 2:
        came += second.poll()
    assert [(each.partition, each.offset) for each in came] == [(2, 3), (2, 4)]
    second.seek(1, 4)
    came = []
    while not came:
        came += second.poll()
    assert [(each.partition, each.offset) for each in came] == [(1, 4)]


def test_a_static_member_restarts_without_a_rebalance(
    make: Make, client: str, group_broker: BrokerProcess
) -> None:
    one, other = make(client, instance="one"), make(client, instance="other")
    polled_until(shared(one, other), one, other)
    kept = one.assignment()
    again = make(client, instance="one")
    polled_until(lambda: again.assignment() == kept, again)
    # Not polled meanwhile, and of the same generation still.
    other.commit(dict.fromkeys(other.assignment(), 0))
    with Client(group_broker.address) as admin:
        described = admin.describe_group(make.group)  # type: ignore[attr-defined]
    assert described.state == "Stable"
    assert {each.instance_id for each in described.members} == {"one", "other"}


def test_cooperative_members_give_up_only_what_moves(make: Make) -> None:
    how = {"partition_assignment_strategy": "cooperative-sticky"}
    first = make("confluent-kafka", **how)
    polled_until(lambda: first.assignment() == ALL, first)
    second = make("confluent-kafka", **how)
    polled_until(shared(first, second), first, second)
    assert len(first.revoked) == PARTITIONS // 2
    assert set(first.revoked) == second.assignment()


@pytest.mark.parametrize("client", list(WRITERS))
def test_a_zombie_member_s_transaction_is_refused_and_leaves_nothing(  # E8
    make: Make,
    client: str,
    topic: str,
    group_broker: BrokerProcess,
    fresh_name: Callable[[str], str],
) -> None:
    address = group_broker.address
    write(address, topic, 20)
    output = fresh_name("output")
    zombie = Worker(make(client), WRITERS[client](address, fresh_name("id")), output)
    seen = polled_until(lambda: zombie.member.assignment() == ALL, zombie.member)
    while len(seen) < 20:
        seen += zombie.member.poll()
    stale = zombie.member.metadata()
    # It pauses here; another one joins, and the group goes on to a new generation.
    successor = Worker(make(client), WRITERS[client](address, fresh_name("id")), output)
    polled_until(shared(zombie.member, successor.member), zombie.member, successor.member)
    zombie.writer.begin()
    zombie.writer.send(output, b"of the zombie")
    with pytest.raises(Refused):
        zombie.take_offsets({0: 5}, stale)
    zombie.writer.abort()
    assert zombie.member.committed(0) is None
    assert CLIENTS[client].read(address, output) == []
    # As a member of the new generation it is welcome.
    mine = next(iter(zombie.member.assignment()))
    assert zombie.commit(
        [each for each in seen if each.partition == mine], zombie.member.metadata()
    )
    assert successor.member.committed(mine) == 5
    zombie.writer.close()
    successor.writer.close()


def test_a_group_of_workers_copies_each_record_once_while_it_rebalances(  # E8, E11
    make: Make,
    client: str,
    topic: str,
    group_broker: BrokerProcess,
    fresh_name: Callable[[str], str],
) -> None:
    address = group_broker.address
    values = write(address, topic, 400)
    output = fresh_name("output")

    def worker() -> Any:
        if client == "aiokafka":
            return AioWorker(address, make.group, topic, output)  # type: ignore[attr-defined]
        return Worker(make(client), WRITERS[client](address, fresh_name("id")), output)

    workers = [worker()]
    done, replaced = 0, False
    ends_at = time.monotonic() + 2 * DEADLINE_S
    while done < len(values):
        assert time.monotonic() < ends_at, done
        if done >= 100 and len(workers) == 1:
            workers.append(worker())
        if done >= 300 and not replaced:
            replaced = True
            workers.pop(0).close()
            workers.append(worker())
        done += sum(each.turn() for each in workers)
    assert workers[0].member.committed(0) == 100
    for each in workers:
        each.close()
    copied = [seen.value for seen in CLIENTS[client].read(address, output)]
    assert sorted(copied) == sorted(values)


def test_a_group_goes_on_where_it_was_after_a_kill_of_its_broker(  # E15
    tmp_path: Path, topic: str, client: str
) -> None:
    with BrokerProcess(
        tmp_path / "data",
        settings=f"group.initial.rebalance.delay.ms=50\nnum.partitions={PARTITIONS}\n",
    ) as broker:
        write(broker.address, topic, 20)
        member = MEMBERS[client](broker.address, "g", topic)
        try:
            polled_until(lambda: member.assignment() == ALL, member)
            member.commit(dict.fromkeys(ALL, 5))
            with Client(broker.address) as admin:
                before = admin.describe_group("g")
                broker.restart()
                write(broker.address, topic, 4)
                came: list[Any] = []
                while len([each for each in came if each.offset == 5]) < PARTITIONS:
                    came += member.poll()
                member.commit(dict.fromkeys(ALL, 6))
                after = admin.describe_group("g")
            assert [each.member_id for each in after.members] == [
                each.member_id for each in before.members
            ]
            assert after.state == "Stable"
        finally:
            member.close()
