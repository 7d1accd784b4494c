"""A watch over etcd that survives its streams: each commit once, in order and whole."""

import asyncio
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from itertools import groupby
from typing import cast

from grpc.aio import EOF, AioRpcError

from fencelog.adapters.etcd import messages
from fencelog.adapters.etcd.members import Members, WatchCall
from fencelog.adapters.etcd.refusals import PERMISSION_DENIED
from fencelog.errors import HistoryLostError
from fencelog.ports import MetadataChange


def range_end(prefix: bytes) -> bytes:
    """Return the first key after all those with a prefix, which does not end in 0xff."""
    return prefix[:-1] + bytes([prefix[-1] + 1])


async def watch(
    members: Members, root: str, prefix: bytes, revision: int
) -> AsyncIterator[Sequence[MetadataChange]]:
    """Yield what each commit after ``revision`` has changed; keys are told without ``root``.

    Ends when the members are closed. Raises HistoryLostError and RefusedError.
    """
    while (call := await members.begin_watch(_request(prefix, revision + 1))) is not None:
        events: list[messages.Event] = []
        error: AioRpcError | None = None
        try:
            while (answer := await _next_answer(call, members, prefix)) is not None:
                events.extend(answer.events)
                if answer.fragment:
                    continue
                for at, changes in _commits(events, root, revision):
                    revision = at
                    yield changes
                if not events and not answer.created:
                    revision = max(revision, answer.header.revision)
                events = []
        except AioRpcError as lost:
            error = lost
        finally:
            member = members.end_watch(call)
        await members.lost_watch(member, error)


def _request(prefix: bytes, start: int) -> messages.WatchRequest:
    return messages.WatchRequest(
        create_request=messages.WatchCreateRequest(
            key=prefix,
            range_end=range_end(prefix),
            start_revision=start,
            # So that a quiet watch need not go back to where it began. etcd tells it by itself
            # every 10 minutes: before 3.4.25 and 3.5.8 one that is asked for may overtake events.
            progress_notify=True,
            fragment=True,
        )
    )


async def _next_answer(
    call: WatchCall, members: Members, prefix: bytes
) -> messages.WatchResponse | None:
    """Return the next answer of a stream, or None at its end."""
    try:
        answer = await call.read()
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        return None  # the stream was cancelled, not its reader
    if answer is EOF:
        return None
    response = cast(messages.WatchResponse, answer)
    if not response.canceled:
        return response
    if response.compact_revision:
        raise HistoryLostError(
            f"etcd has compacted its history up to revision {response.compact_revision}"
        )
    if PERMISSION_DENIED in response.cancel_reason:
        # etcd says so of an old token, too. A read renews that, or is refused itself.
        read = messages.RangeRequest(key=prefix, range_end=range_end(prefix), limit=1)
        await members.ask(read, messages.RangeResponse)
    return None


def _commits(
    events: Iterable[messages.Event], root: str, after: int
) -> Iterator[tuple[int, list[MetadataChange]]]:
    """Yield revision and changes of each commit after a revision."""
    for revision, group in groupby(events, lambda event: event.kv.mod_revision):
        if revision > after:
            yield revision, [_change(event, root) for event in group]


def _change(event: messages.Event, root: str) -> MetadataChange:
    cell = event.kv
    is_put = event.type == messages.Event.PUT
    key = cell.key.decode().removeprefix(root)
    return MetadataChange(key, cell.value if is_put else None, cell.mod_revision)
