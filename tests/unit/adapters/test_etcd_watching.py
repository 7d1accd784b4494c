"""A watch over etcd, with what its streams may say: parts, repeats, progress, ends."""

import asyncio
from collections.abc import Sequence
from typing import Any

import grpc
import pytest
from grpc.aio import EOF, AioRpcError, Metadata

from fencelog.adapters.etcd import messages
from fencelog.adapters.etcd.refusals import RefusedError
from fencelog.adapters.etcd.watching import watch
from fencelog.errors import HistoryLostError

BROKEN = AioRpcError(grpc.StatusCode.UNAVAILABLE, Metadata(), Metadata(), "Socket closed")


class Stream:
    """One stream of answers, told in advance."""

    def __init__(self, answers: Sequence[object]) -> None:
        self._answers = list(answers)

    async def read(self) -> object:
        answer = self._answers.pop(0) if self._answers else EOF
        if isinstance(answer, BaseException):
            raise answer
        return answer


class Streams:
    """What ``Members`` is for a watch; it notes where each stream was to begin."""

    def __init__(self, *streams: Sequence[object], read: BaseException | None = None) -> None:
        self._streams = [Stream(each) for each in streams]
        self._read = read
        self.starts: list[int] = []

    async def begin_watch(self, request: messages.WatchRequest) -> Stream | None:
        self.starts.append(request.create_request.start_revision)
        return self._streams.pop(0) if self._streams else None

    def end_watch(self, stream: Stream) -> None:
        pass

    async def lost_watch(self, member: None, error: AioRpcError | None) -> None:
        pass

    async def ask(self, request: object, response: object) -> None:
        if self._read is not None:
            raise self._read


def answer(*events: tuple[str, int], **fields: Any) -> messages.WatchResponse:
    """What etcd sends: puts of keys, each with its revision; an empty key ends in a removal."""
    said = [
        messages.Event(
            type=messages.Event.DELETE if key.startswith("-") else messages.Event.PUT,
            kv=messages.KeyValue(key=f"c/{key}".encode(), value=b"v", mod_revision=revision),
        )
        for key, revision in events
    ]
    return messages.WatchResponse(events=said, **fields)


def header(revision: int) -> messages.ResponseHeader:
    return messages.ResponseHeader(revision=revision)


def watched(streams: Streams) -> list[list[tuple[str, bytes | None, int]]]:
    async def main() -> list[list[tuple[str, bytes | None, int]]]:
        commits = watch(streams, "c/", b"c/", 10)  # type: ignore[arg-type]
        return [[tuple(each) for each in changes] async for changes in commits]

    return asyncio.run(main())


def test_each_commit_is_yielded_whole_also_out_of_parts() -> None:
    streams = Streams(
        [
            answer(created=True),
            answer(("a", 11), ("b", 11), ("a", 12), fragment=True),
            answer(("-b", 12), ("c", 13)),
        ]
    )
    assert watched(streams) == [
        [("a", b"v", 11), ("b", b"v", 11)],
        [("a", b"v", 12), ("-b", None, 12)],
        [("c", b"v", 13)],
    ]


@pytest.mark.parametrize("end", [BROKEN, EOF, asyncio.CancelledError()])
def test_a_lost_stream_goes_on_after_the_last_commit_and_repeats_nothing(end: object) -> None:
    streams = Streams([answer(("a", 11)), answer(("a", 12)), end], [answer(("a", 12), ("a", 13))])
    assert [changes[0][2] for changes in watched(streams)] == [11, 12, 13]
    assert streams.starts == [11, 13, 14]


def test_parts_of_a_lost_stream_are_read_again() -> None:
    streams = Streams([answer(("a", 11), fragment=True), BROKEN], [answer(("a", 11), ("b", 11))])
    assert watched(streams) == [[("a", b"v", 11), ("b", b"v", 11)]]


def test_progress_moves_a_quiet_watch_and_what_a_new_stream_says_does_not() -> None:
    streams = Streams(
        [answer(created=True, header=header(500)), BROKEN],
        [answer(created=True, header=header(500)), answer(header=header(40)), BROKEN],
    )
    assert watched(streams) == []
    assert streams.starts == [11, 11, 41]


def test_compaction_ends_a_watch() -> None:
    with pytest.raises(HistoryLostError, match="up to revision 90"):
        watched(Streams([answer(canceled=True, compact_revision=90)]))


def test_a_watch_that_etcd_cancels_goes_on_if_its_keys_may_be_read() -> None:
    denied = answer(canceled=True, created=True, cancel_reason="etcdserver: permission denied")
    assert len(watched(Streams([denied], [answer(("a", 11))]))) == 1
    with pytest.raises(RefusedError, match="permission denied"):
        watched(Streams([denied], read=RefusedError("h:1", "etcdserver: permission denied")))
