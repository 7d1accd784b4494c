"""Hand-written codecs of Produce and Fetch, the two messages that carry records.

Record bytes are never copied here. A request's records are views of its frame; a fetch response is
a list of buffers that contains the caller's record buffers unchanged.
"""

from fencelog.wire.hot.append_tags import AppendTags, Revision, SealedSegment, Successor
from fencelog.wire.hot.fetch import (
    FetchedPartition,
    FetchedTopic,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ForgottenTopic,
    read_fetch_request,
    read_fetch_response,
    write_fetch_request,
    write_fetch_response,
)
from fencelog.wire.hot.produce import (
    CurrentLeader,
    NodeEndpoint,
    PartitionResult,
    ProduceRequest,
    ProduceResponse,
    read_produce_request,
    read_produce_response,
    write_produce_request,
    write_produce_response,
)

__all__ = [
    "AppendTags",
    "CurrentLeader",
    "FetchPartition",
    "FetchRequest",
    "FetchResponse",
    "FetchTopic",
    "FetchedPartition",
    "FetchedTopic",
    "ForgottenTopic",
    "NodeEndpoint",
    "PartitionResult",
    "ProduceRequest",
    "ProduceResponse",
    "Revision",
    "SealedSegment",
    "Successor",
    "read_fetch_request",
    "read_fetch_response",
    "read_produce_request",
    "read_produce_response",
    "write_fetch_request",
    "write_fetch_response",
    "write_produce_request",
    "write_produce_response",
]
