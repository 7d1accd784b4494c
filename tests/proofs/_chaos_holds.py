"""Which frames a proxy holds back, and when such a frame has become an old one.

A frame is held with all that follows on its connection. It is delivered once another connection
has carried the end of its transaction, the begin of the same producer's next one, and a few of that
one's writes; for a producer without transactions, a few of its later writes.
"""

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fencelog.wire.api_versions import ApiKey, is_flexible
from fencelog.wire.headers import read_request_header
from fencelog.wire.hot import read_produce_request
from fencelog.wire.primitives import Reader

if TYPE_CHECKING:
    from tests.proofs._chaos_proxy import Pair

PRODUCE, ADD_PARTITIONS, END, INIT = (
    "Produce",
    "AddPartitionsToTxn",
    "EndTxn",
    "InitProducerId",
)
_KINDS = {
    int(ApiKey.PRODUCE): PRODUCE,
    int(ApiKey.ADD_PARTITIONS_TO_TXN): ADD_PARTITIONS,
    int(ApiKey.END_TXN): END,
    int(ApiKey.INIT_PRODUCER_ID): INIT,
}
_LAST_SHARED_ADD_PARTITIONS = 3
"""From version 4 on the request is a broker's, with a list of transactions."""
_PRODUCER_ID_AT = 43
_PRODUCER_ID = struct.Struct(">q")


@dataclass(frozen=True)
class Seen:
    """A request that says whose it is."""

    kind: str
    producer: str
    transactional: bool
    client_id: str


def identify(api_key: int, version: int, frame: bytes) -> Seen | None:
    """Whose request this is; None where it is no producer's, or says too little."""
    kind = _KINDS.get(api_key)
    if kind is None or (kind == ADD_PARTITIONS and version > _LAST_SHARED_ADD_PARTITIONS):
        return None
    header, body = read_request_header(memoryview(frame)[4:])
    client_id = header.client_id or ""
    if kind != PRODUCE:
        name = Reader(body).nullable_string(is_flexible(api_key, version))
        return None if name is None else Seen(kind, name, True, client_id)
    request = read_produce_request(body, version)
    if request.transactional_id is not None:
        return Seen(kind, request.transactional_id, True, client_id)
    for _, partitions in request.topics:
        for _, records in partitions:
            if records is not None and len(records) >= _PRODUCER_ID_AT + _PRODUCER_ID.size:
                (number,) = _PRODUCER_ID.unpack_from(records, _PRODUCER_ID_AT)
                return Seen(kind, f"producer id {number}", False, client_id)
    return None


@dataclass(frozen=True)
class Order:
    """Hold the next frame of this kind. ``wait``: let its client wait, else cut it off at once."""

    kind: str
    wait: bool
    most_s: float

    def wants(self, seen: Seen) -> bool:
        """Whether this is such a frame."""
        return seen.kind == self.kind


class Hold:
    """One connection held back, from one frame on."""

    def __init__(self, pair: "Pair", seen: Seen, writes: int) -> None:
        """``writes``: so many of the producer's later ones go first."""
        self.pair = pair
        self.kind = seen.kind if seen.transactional else f"{seen.kind} without transaction"
        self.late = False
        self._seen = seen
        self._ended = self._begun = not seen.transactional
        self._writes = writes

    @property
    def when(self) -> str:
        """When it is delivered, if that is now."""
        if not self.late:
            return "not so late"
        return "in a later transaction" if self._seen.transactional else "after later writes"

    def passed(self, seen: Seen) -> bool:
        """Another connection carried this; whether the held frame is out of date now."""
        if seen.producer != self._seen.producer or self.late:
            return False
        if seen.kind in (END, INIT):
            self._ended = True
        elif seen.kind == ADD_PARTITIONS and self._ended:
            self._begun = True
        elif seen.kind == PRODUCE and self._ended:
            self._begun = True  # in version 2 by this write itself
            self._writes -= 1
        self.late = self._begun and self._writes < 0
        return self.late
