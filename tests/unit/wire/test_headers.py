"""Headers and frames, against kafka-python where it has them."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fencelog.errors import WireError
from fencelog.wire.api_versions import SUPPORTED, ApiKey, VersionRange, is_flexible
from fencelog.wire.framing import frame, frame_size
from fencelog.wire.headers import (
    RequestHeader,
    read_request_header,
    read_response_header,
    request_header,
    response_header,
    response_is_flexible,
)
from fencelog.wire.own import app_of, transactional_id
from tests.unit.wire.message_values import oracle_class


@pytest.mark.parametrize(
    ("name", "version"),
    [("MetadataRequest", 4), ("MetadataRequest", 12), ("ApiVersionsRequest", 3)],
)
def test_a_request_of_kafka_python_is_split_into_header_and_body(name: str, version: int) -> None:
    request = oracle_class(name)(version=version)
    request.with_header(correlation_id=77, client_id="tester")
    data = bytes(request.encode(version=version, header=True))
    header, body = read_request_header(data)
    assert header == RequestHeader(request.API_KEY, version, 77, "tester")
    assert bytes(body) == bytes(request.encode(version=version))
    assert request_header(header) + bytes(body) == data


@settings(deadline=None)
@given(
    st.sampled_from([(ApiKey.METADATA, 1), (ApiKey.METADATA, 9), (ApiKey.JOIN_TRANSACTION, 0)]),
    st.integers(-(1 << 31), (1 << 31) - 1),
    st.none() | st.text(max_size=40),
    st.binary(max_size=20),
)
def test_a_request_header_is_read_back(
    request_kind: tuple[ApiKey, int], correlation_id: int, client_id: str | None, body: bytes
) -> None:
    header = RequestHeader(*request_kind, correlation_id, client_id)
    assert read_request_header(request_header(header) + body) == (header, body)


def test_the_header_of_an_unknown_request_is_read_so_that_it_can_be_refused() -> None:
    header, body = read_request_header(b"\x27\x0f\x00\x01\x00\x00\x00\x05\xff\xffrest")
    assert header == RequestHeader(9999, 1, 5, None)
    assert body == b"rest"


@pytest.mark.parametrize("size", range(17))
def test_a_request_header_cut_short_is_a_wire_error(size: int) -> None:
    whole = request_header(RequestHeader(ApiKey.METADATA, 12, 1, "client"))
    assert len(whole) == 17
    with pytest.raises(WireError):
        read_request_header(whole[:size])


@pytest.mark.parametrize("flexible", [True, False])
def test_a_response_header_is_read_back(flexible: bool) -> None:
    data = response_header(42, flexible) + b"body"
    assert read_response_header(data, flexible) == (42, b"body")


def test_api_versions_answers_with_the_oldest_header_in_every_version() -> None:
    # KIP-511: a client that asked in an unknown version must be able to read the refusal.
    assert is_flexible(ApiKey.API_VERSIONS, 3)
    assert not response_is_flexible(ApiKey.API_VERSIONS, 3)
    assert response_is_flexible(ApiKey.METADATA, 9)
    assert not response_is_flexible(ApiKey.METADATA, 8)


@pytest.mark.parametrize(("version", "spoken"), [(-1, False), (0, True), (12, True), (13, False)])
def test_a_version_range_includes_both_ends(version: int, spoken: bool) -> None:
    assert (version in SUPPORTED[ApiKey.PRODUCE]) is spoken
    assert "0" not in VersionRange(0, 1)


def test_a_frame_carries_the_size_of_its_buffers_and_copies_none() -> None:
    records = bytearray(b"records")
    prefix, head, body = frame([b"head", records])
    assert (prefix, head) == (b"\0\0\0\x0b", b"head")
    assert body is records
    assert frame_size(prefix, frame_bytes_max=11) == 11


@pytest.mark.parametrize("prefix", [b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff", b"\0\0\0", b""])
def test_a_frame_size_below_zero_above_the_limit_or_cut_short_is_a_wire_error(
    prefix: bytes,
) -> None:
    with pytest.raises(WireError):
        frame_size(prefix, frame_bytes_max=1 << 20)


def test_a_frame_may_be_as_large_as_the_limit() -> None:
    assert frame_size(b"\0\0\0\x0a", frame_bytes_max=10) == 10
    with pytest.raises(WireError, match="limit 10"):
        frame_size(b"\0\0\0\x0b", frame_bytes_max=10)


def test_the_transactional_id_of_an_app_names_the_app() -> None:
    assert app_of(transactional_id("etl/daily")) == "etl/daily"


@pytest.mark.parametrize("name", [None, "", "etl", "fencelog.versioned/etl"])
def test_a_clients_own_transactional_id_names_no_app(name: str | None) -> None:
    assert app_of(name) is None
