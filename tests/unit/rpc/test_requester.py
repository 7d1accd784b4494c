"""The requester without a socket: byte streams in, responses and their senders out.

Each stream is received whole, byte by byte and in pieces that end inside a size prefix and inside a
frame; and each sound one with bytes behind it that belong to the next response.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from struct import pack

import pytest

from fencelog.errors import WireError
from fencelog.rpc.requester import CORRELATION_MAX, FRAME_BYTES_MAX, Requester
from fencelog.wire.api_versions import ApiKey
from fencelog.wire.framing import SIZE_BYTES
from fencelog.wire.headers import read_request_header

PLAIN = (ApiKey.FETCH, 11)
FLEXIBLE = (ApiKey.FETCH, 12)
VERSIONS = (ApiKey.API_VERSIONS, 3)

Api = tuple[ApiKey, int]


def frame(payload: bytes) -> bytes:
    return pack(">i", len(payload)) + payload


def plain(correlation_id: int, body: bytes) -> bytes:
    return frame(pack(">i", correlation_id) + body)


def flexible(correlation_id: int, body: bytes, tags: bytes = b"\0") -> bytes:
    return frame(pack(">i", correlation_id) + tags + body)


@dataclass(frozen=True)
class Stream:
    """What was requested, in order (ids from 1), the bytes that come, and what they are."""

    requests: tuple[Api, ...]
    data: bytes
    responses: tuple[tuple[int, bytes], ...]
    """Number of the request and body of its response, in order of arrival."""
    error: str | None = None
    """What the stream is refused for after these responses."""


STREAMS = {
    "one": Stream((PLAIN,), plain(1, b"body"), ((1, b"body"),)),
    "an empty body": Stream((PLAIN,), plain(1, b""), ((1, b""),)),
    "in order": Stream(
        (PLAIN, PLAIN), plain(1, b"first") + plain(2, b"2nd"), ((1, b"first"), (2, b"2nd"))
    ),
    "out of order": Stream(
        (PLAIN, FLEXIBLE, PLAIN),
        plain(3, b"c") + flexible(2, b"bb") + plain(1, b"aaa"),
        ((3, b"c"), (2, b"bb"), (1, b"aaa")),
    ),
    "flexible": Stream((FLEXIBLE,), flexible(1, b"body"), ((1, b"body"),)),
    "flexible with tags": Stream(
        (FLEXIBLE,), flexible(1, b"body", b"\x01\x07\x02ab"), ((1, b"body"),)
    ),
    # Its header is the oldest one in every version (KIP-511): the zero belongs to the body.
    "ApiVersions": Stream((VERSIONS,), plain(1, b"\0body"), ((1, b"\0body"),)),
    "long": Stream((PLAIN,), plain(1, bytes(3_000)), ((1, bytes(3_000)),)),
    "empty frame": Stream((PLAIN,), frame(b""), (), "4 bytes needed at byte 0, 0 remain"),
    "frame without an id": Stream(
        (PLAIN,), frame(b"\0\0\0"), (), "4 bytes needed at byte 0, 3 remain"
    ),
    "tags cut off": Stream(
        (FLEXIBLE,), flexible(1, b"", b"\x01\x07\x09ab"), (), "bytes needed at byte 7"
    ),
    "no tags": Stream((FLEXIBLE,), flexible(1, b"", b""), (), "1 bytes needed at byte 4, 0 remain"),
    "negative size": Stream((PLAIN,), pack(">i", -1), (), "frame of -1 bytes"),
    "size above the limit": Stream(
        (PLAIN,), pack(">i", FRAME_BYTES_MAX + 1), (), f"frame of {FRAME_BYTES_MAX + 1} bytes"
    ),
    "not sent": Stream((PLAIN,), plain(2, b""), (), "response to request 2, which was not sent"),
    "negative id": Stream((PLAIN,), plain(-1, b""), (), "response to request -1"),
    "answered twice": Stream(
        (PLAIN, PLAIN), plain(1, b"a") + plain(1, b"b"), ((1, b"a"),), "response to request 1,"
    ),
    "sound, then malformed": Stream(
        (PLAIN, PLAIN), plain(2, b"b") + pack(">i", -2), ((2, b"b"),), "frame of -2 bytes"
    ),
}


def whole(data: bytes) -> Iterable[bytes]:
    return [data]


def by_bytes(data: bytes) -> Iterable[bytes]:
    return [data[i : i + 1] for i in range(len(data))]


def by_sevens(data: bytes) -> Iterable[bytes]:
    return [data[i : i + 7] for i in range(0, len(data), 7)]


def responses(requester: Requester[int], reads: Iterable[bytes]) -> Iterator[tuple[int, bytes]]:
    """Fill the buffers that it offers, as a socket does; the responses as they arrive."""
    for read in reads:
        rest = memoryview(read)
        while rest:
            buffer = requester.get_buffer()
            assert len(buffer) > 0, "a socket takes an empty buffer for the end of its stream"
            count = min(len(buffer), len(rest))
            buffer[:count] = rest[:count]
            rest = rest[count:]
            response = requester.received(count)
            if response is not None:
                yield response.sender, bytes(response.body)


def received(requester: Requester[int], reads: Iterable[bytes]) -> list[tuple[int, bytes]]:
    """All responses in these reads, in order of arrival."""
    return list(responses(requester, reads))


def requesting(requests: Iterable[Api]) -> Requester[int]:
    """The senders are the numbers of their requests."""
    requester: Requester[int] = Requester("c")
    for number, (key, version) in enumerate(requests, start=1):
        requester.request(key, version, [], number)
    return requester


cut = pytest.mark.parametrize("cut", [whole, by_bytes, by_sevens])
sound = pytest.mark.parametrize("name", [name for name in STREAMS if STREAMS[name].error is None])
malformed = pytest.mark.parametrize(
    "name", [name for name in STREAMS if STREAMS[name].error is not None]
)


@cut
@sound
def test_each_response_is_handed_to_the_sender_of_its_request(
    name: str, cut: Callable[[bytes], Iterable[bytes]]
) -> None:
    stream = STREAMS[name]
    requester = requesting(stream.requests)
    assert received(requester, cut(stream.data)) == list(stream.responses)
    assert requester.close() == []


@cut
@sound
def test_what_follows_a_response_is_kept_for_the_next_one(
    name: str, cut: Callable[[bytes], Iterable[bytes]]
) -> None:
    stream = STREAMS[name]
    requester = requesting([*stream.requests, PLAIN])
    number = len(stream.requests) + 1
    following = plain(number, b"next")
    for length in range(1, len(following)):
        assert received(requester, cut(stream.data + following[:length])) == list(stream.responses)
        assert received(requester, [following[length:]]) == [(number, b"next")]
        requester = requesting([*stream.requests, PLAIN])


@cut
@malformed
def test_a_malformed_stream_is_refused_and_leaves_no_sender_without_an_end(
    name: str, cut: Callable[[bytes], Iterable[bytes]]
) -> None:
    stream = STREAMS[name]
    requester = requesting(stream.requests)
    arriving = responses(requester, cut(stream.data))
    answered = list(islice(arriving, len(stream.responses)))
    assert answered == list(stream.responses)
    with pytest.raises(WireError, match=stream.error):
        next(arriving)
    every = set(range(1, len(stream.requests) + 1))
    assert set(requester.close()) == every - {number for number, _ in answered}


def test_a_response_of_the_greatest_size_is_awaited() -> None:
    requester = requesting([PLAIN])
    assert received(requester, [pack(">i", 1 << 20)]) == []
    assert len(requester.get_buffer()) == 1 << 20
    assert FRAME_BYTES_MAX == 512 << 20


def test_the_correlation_id_begins_at_one_and_follows_its_maximum_with_zero() -> None:
    requester = requesting([])

    def sent() -> int:
        data = b"".join(requester.request(*PLAIN, [], 0))
        return read_request_header(data[SIZE_BYTES:])[0].correlation_id

    assert [sent(), sent()] == [1, 2]
    requester._correlation_id = CORRELATION_MAX - 1
    assert [sent(), sent(), sent()] == [2**31 - 1, 0, 1]


def test_responses_around_the_wrap_find_their_senders() -> None:
    requester: Requester[int] = Requester("c")
    requester._correlation_id = CORRELATION_MAX - 1
    requester.request(*PLAIN, [], 7)
    requester.request(*FLEXIBLE, [], 8)
    data = flexible(0, b"b") + plain(CORRELATION_MAX, b"a")
    assert received(requester, [data]) == [(8, b"b"), (7, b"a")]


def test_a_request_is_one_frame_with_its_header_and_its_body_uncopied() -> None:
    requester: Requester[int] = Requester("me")
    body = [b"abc", memoryview(b"defg")]
    buffers = requester.request(*FLEXIBLE, body, 1)
    data = b"".join(buffers)
    assert data[:SIZE_BYTES] == pack(">i", len(data) - SIZE_BYTES)
    header, rest = read_request_header(data[SIZE_BYTES:])
    assert header == (*FLEXIBLE, 1, "me")
    assert rest == b"abcdefg"
    assert buffers[-1] is body[1]


def test_close_returns_each_waiting_sender_once() -> None:
    requester = requesting([PLAIN, FLEXIBLE, PLAIN])
    received(requester, [flexible(2, b"")])
    assert requester.close() == [1, 3]
    assert requester.close() == []


def test_after_close_a_late_response_is_refused() -> None:
    requester = requesting([PLAIN])
    requester.close()
    with pytest.raises(WireError, match="response to request 1"):
        received(requester, [plain(1, b"")])


def test_a_body_stays_as_it_is_when_the_next_response_arrives() -> None:
    requester = requesting([PLAIN, PLAIN])
    bodies = []
    for data in (plain(1, b"first"), plain(2, b"other")):
        for part in (data[:SIZE_BYTES], data[SIZE_BYTES:]):
            requester.get_buffer()[:] = part
            response = requester.received(len(part))
        assert response is not None
        bodies.append(response.body)
    assert [bytes(each) for each in bodies] == [b"first", b"other"]
