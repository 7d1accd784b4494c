"""Reader groups and shared states for blocking callers."""

import threading

import pytest

import fencelog
from fencelog.client.streams.blocking_group import Reader
from fencelog.coordination.synchronizer.replica import Schema
from fencelog.errors import FencelogError
from fencelog.testing import LocalBroker


def write(log: "fencelog.client.blocking.Client", count: int) -> None:
    with log.producer() as producer:
        for number in range(count):
            producer.send("s", b"%d" % number, key=b"k")


def number(value: bytes | None) -> int:
    return int(value or b"")


def take(reader: Reader, count: int) -> list[int]:
    found: list[int] = []
    for event in reader:
        found.append(number(event.value))
        if len(found) == count:
            break
    return found


@pytest.mark.slow
def test_a_blocking_reader_goes_on_where_the_one_before_was_left(
    fencelog_broker: LocalBroker,
) -> None:
    # R6, R9
    with fencelog.connect(fencelog_broker.bootstrap) as log:
        log.create_stream("s", 1)
        write(log, 20)
        group = log.reader_group("g", "s")
        with group.reader("r1") as reader:
            assert take(reader, 3) == [0, 1, 2]
        with group.reader("r1") as reader:
            assert take(reader, 4) == [3, 4, 5, 6]
            reader.commit()
            batch = reader.next_batch(2)
            assert batch is not None
            assert [number(each.value) for each in batch.events] == [7, 8]
            assert reader.token > 0
            reader.check()
            reader.close(processed=False)
        with group.reader("r1") as reader:
            assert take(reader, 13) == list(range(7, 20))
        assert log.reader_groups() == ["g"]
        assert group.get().unassigned.keys() == {0}
        assert group.unread_events() >= 0
        assert group.unread_bytes() >= 0
        group.delete()


@pytest.mark.slow
def test_a_blocking_reader_copies_in_transactions(fencelog_broker: LocalBroker) -> None:
    # R6
    with fencelog.connect(fencelog_broker.bootstrap) as log:
        log.create_stream("s", 1)
        log.create_topic("out")
        write(log, 10)
        group = log.reader_group("g", "s", end={0: 10})
        with group.reader("r1") as reader:
            is_failed = False
            for event in reader:
                try:
                    with reader.transaction() as transaction:
                        transaction.send("out", event.value)
                        if event.value == b"3" and not is_failed:
                            is_failed = True
                            transaction.send("out", b"x", partition=-1)
                except ValueError:
                    assert event.value == b"3"
        found = [number(each.value) for each in fencelog_broker.records("out")]
        assert found == list(range(10))


@pytest.mark.slow
def test_a_blocking_reader_hands_nothing_out_inside_of_a_transaction(
    fencelog_broker: LocalBroker,
) -> None:
    # R6: also of what was taken from the loop before
    with fencelog.connect(fencelog_broker.bootstrap) as log:
        log.create_stream("s", 1)
        log.create_topic("out")
        write(log, 4)
        group = log.reader_group("g", "s", end={0: 4})
        with group.reader("r1") as reader:
            events = iter(reader)
            next(events)
            with pytest.raises(FencelogError, match="more events"), reader.transaction():
                next(events)
            next(iter(reader))
            with pytest.raises(FencelogError, match="commit"), reader.transaction():
                reader.commit()
            for event in reader:
                with reader.transaction() as transaction:
                    transaction.send("out", event.value)
        assert [number(each.value) for each in fencelog_broker.records("out")] == [0, 1, 2, 3]


@pytest.mark.slow
def test_a_checkpoint_of_a_blocking_reader(fencelog_broker: LocalBroker) -> None:
    # R10
    with fencelog.connect(fencelog_broker.bootstrap) as log:
        log.create_stream("s", 1)
        write(log, 10)
        group = log.reader_group("g", "s")
        found: list[int] = []

        def read() -> None:
            with group.reader("r1", window_s=0.1) as reader:
                for event in reader:
                    found.append(number(event.value))
                    if event.value == b"19":
                        return

        thread = threading.Thread(target=read)
        thread.start()
        group.create()
        group.checkpoint("c")
        cut = group.checkpoint_cut("c")
        assert cut.keys() == {0}
        group.drop_checkpoint("c")
        assert group.stream_cut().keys() == {0}
        with log.producer() as producer:
            for each in range(10, 20):
                producer.send("s", b"%d" % each, key=b"k")
        thread.join(30)
        assert found == list(range(20))
        group.reset(cut)
        assert group.get().unassigned == cut
        group.reader_offline("r1")


def test_a_shared_state_for_blocking_callers(fencelog_broker: LocalBroker) -> None:
    # R4
    def add(total: int, value: object, offset: int) -> int:
        assert isinstance(value, int), offset
        return total + value

    def load(value: object) -> int:
        assert isinstance(value, int)
        return value

    schema = Schema(initial=0, apply=add, dump=lambda total: total, load=load)
    with fencelog.connect(fencelog_broker.bootstrap) as log:
        log.create_topic("state")
        copy = log.synchronizer("state", schema)
        assert copy.update(lambda total: [total + 1]) == 0
        assert copy.update(lambda total: [total + 1]) == 1
        assert copy.state == copy.fetch() == 3
        other = log.synchronizer("state", schema)
        assert other.compact() == 2
        assert copy.wait_changed() == 3
