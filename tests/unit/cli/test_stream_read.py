"""``stream read`` at a signal: a batch is written as a whole and processed, or neither."""

import asyncio
import io
import signal
import threading

import pytest

import fencelog
from fencelog.cli.stream_read import ReadRequest, run
from fencelog.client.streams.group_model import EventBatch
from fencelog.client.streams.group_reader import GroupReader
from fencelog.testing import LocalBroker

EVENTS = [b"%d\n" % number for number in range(2_500)]
SIGNALS = pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])


class Output(io.BytesIO):
    """What is written, and signals that arrive during the first write."""

    def __init__(self, *signals: signal.Signals) -> None:
        super().__init__()
        self._signals = list(signals)

    def write(self, data: object) -> int:
        half = bytes(memoryview(data))[: memoryview(data).nbytes // 2 or 1]  # type: ignore[arg-type]
        written = super().write(half)
        while self._signals:
            signal.raise_signal(self._signals.pop(0))
        return written


def write(broker: LocalBroker) -> None:
    with fencelog.connect(broker.bootstrap) as log:
        log.create_stream("s", 1)
        with log.producer() as producer:
            for line in EVENTS:
                producer.send("s", line.strip(), key=b"k")


def read(broker: LocalBroker, out: io.BytesIO, *, exit_at_end: bool = False) -> list[bytes]:
    request = ReadRequest(
        stream="s",
        group="g",
        reader="r",
        count=None,
        exit_at_end=exit_at_end,
        record_format="%v\n",
        isolation="transactional",
    )
    run(request, broker.bootstrap, (), out)
    return out.getvalue().splitlines(keepends=True)


def read_until_stopped(broker: LocalBroker, out: io.BytesIO) -> list[bytes]:
    with pytest.raises((SystemExit, KeyboardInterrupt)):
        read(broker, out)
    return out.getvalue().splitlines(keepends=True)


@pytest.mark.slow
@SIGNALS
def test_a_batch_that_is_handed_out_at_a_signal_is_read_by_the_next_reader(
    fencelog_broker: LocalBroker, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    # R6
    write(fencelog_broker)
    next_batch, batches = GroupReader.next_batch, []

    async def signalled(reader: GroupReader, most: int = 1_000) -> EventBatch | None:
        batches.append(await next_batch(reader, most))
        if len(batches) == 2:
            main = threading.main_thread().ident
            assert main is not None
            signal.pthread_kill(main, number)
            await asyncio.Event().wait()
        return batches[-1]

    monkeypatch.setattr(GroupReader, "next_batch", signalled)
    first = read_until_stopped(fencelog_broker, io.BytesIO())
    assert len(batches) == 2
    monkeypatch.undo()
    assert first + read(fencelog_broker, io.BytesIO(), exit_at_end=True) == EVENTS


@pytest.mark.slow
@SIGNALS
def test_a_batch_that_is_written_at_a_signal_is_written_as_a_whole_and_not_again(
    fencelog_broker: LocalBroker, number: signal.Signals
) -> None:
    # R6
    write(fencelog_broker)
    first = read_until_stopped(fencelog_broker, Output(number))
    assert 0 < len(first) < len(EVENTS)
    assert first + read(fencelog_broker, io.BytesIO(), exit_at_end=True) == EVENTS


@pytest.mark.slow
@SIGNALS
def test_a_second_signal_ends_a_write_that_nobody_reads_and_its_batch_is_read_again(
    fencelog_broker: LocalBroker, number: signal.Signals
) -> None:
    # R6
    write(fencelog_broker)
    before = signal.getsignal(number)
    first = read_until_stopped(fencelog_broker, Output(number, number))
    assert 0 < len(first) < len(EVENTS)
    assert signal.getsignal(number) is before
    assert read(fencelog_broker, io.BytesIO(), exit_at_end=True) == EVENTS
