"""Where the metadata is: what is taken for an etcd, and what is refused with its reason."""

import pytest

from fencelog.settings.metadata_url import EtcdUrl, parse_metadata_url


def test_sqlite_is_no_etcd() -> None:
    assert parse_metadata_url("sqlite") is None


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("etcd://h1:2379,h2:1/orders", EtcdUrl(("h1:2379", "h2:1"), "orders")),
        ("etcd://h1/a.b_c-1", EtcdUrl(("h1:2379",), "a.b_c-1")),
        ("etcd://[::1]:23,10.0.0.1/c", EtcdUrl(("[::1]:23", "10.0.0.1:2379"), "c")),
    ],
)
def test_an_etcd_has_members_and_a_name(text: str, url: EtcdUrl) -> None:
    assert parse_metadata_url(text) == url


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "expected sqlite or etcd://"),
        ("SQLITE", "expected sqlite or etcd://"),
        ("http://h1/c", "expected sqlite or etcd://"),
        ("etcd://h1:2379", "NAME is what the cluster is called"),
        ("etcd://h1:2379/", "NAME is what the cluster is called"),
        ("etcd://h1:2379/a/b", "NAME is what the cluster is called"),
        ("etcd:///c", "'' is not HOST:PORT"),
        ("etcd://h1,,h2/c", "'' is not HOST:PORT"),
        ("etcd://h1:0/c", "'h1:0' is not HOST:PORT"),
        ("etcd://h1:65536/c", "'h1:65536' is not HOST:PORT"),
        ("etcd://http://h1/c", "NAME is what the cluster is called"),
        ("etcd://me:secret@h1/c", "is not HOST:PORT"),
        ("etcd://h1:23,h1:23/c", "twice"),
    ],
)
def test_what_is_neither_is_refused_with_its_reason(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        parse_metadata_url(text)
