"""A broker alone and one of a cluster: what each takes, refuses, and names as without effect."""

import pytest

from fencelog.settings.given import ConfigError, Given, Source
from fencelog.settings.joined import Joined, join
from fencelog.settings.membership import cluster_of
from fencelog.settings.metadata_url import EtcdUrl

ETCD = "metadata=etcd://h1:2379,h2:2379/orders"


def given(*texts: str) -> Joined:
    pairs = [text.partition("=") for text in texts]
    return join([Source([Given(key, value, key, "f") for key, _, value in pairs], [])])


def test_a_broker_is_alone_unless_it_is_told_otherwise() -> None:
    assert cluster_of(given()) is None
    assert cluster_of(given("metadata=sqlite")) is None


def test_a_cluster_has_members_of_etcd_and_a_name() -> None:
    url = EtcdUrl(("h1:2379", "h2:2379"), "orders")
    assert cluster_of(given(ETCD, "broker.id=3", "default.replication.factor=3")) == url
    files = [f"metadata.{each}.file=x.pem" for each in ("ca", "cert", "key")]
    user = ("metadata.user=u", "metadata.password.file=w")
    joined = given(ETCD, "node.id=0", *files, *user)
    assert cluster_of(joined) == url
    assert joined.notices == []


@pytest.mark.parametrize(
    ("texts", "why"),
    [
        (["metadata=etcd://h1:2379"], "f: metadata='etcd://h1:2379': expected etcd://HOST:PORT/"),
        ([ETCD], "a broker of a cluster needs a number of its own: --node-id, or node.id"),
        ([ETCD, "node.id=1", "metadata.user=u"], "f: metadata.user='u': it needs metadata.pass"),
        ([ETCD, "node.id=1", "metadata.password.file=p"], "it needs metadata.user, too"),
        ([ETCD, "node.id=1", "metadata.key.file=p"], "it needs metadata.cert.file, too"),
        (
            [ETCD, "node.id=1", "metadata.key.file=p", "metadata.cert.file=p"],
            "it needs metadata.ca.file, too",
        ),
        (["metadata.ca.file=p"], "there is no etcd; set metadata=etcd://HOST:PORT/NAME, too"),
        (["default.replication.factor=3"], "expected 1: fencelog is one broker, which keeps one"),
        (["offsets.topic.replication.factor=3"], "expected 1: fencelog is one broker"),
        (["transaction.state.log.replication.factor=2"], "expected 1: fencelog is one broker"),
    ],
)
def test_what_does_not_fit_is_refused_with_the_reason(texts: list[str], why: str) -> None:
    with pytest.raises(ConfigError) as refused:
        cluster_of(given(*texts))
    assert why in str(refused.value)


def test_what_has_an_effect_in_a_cluster_only_is_named() -> None:
    joined = given("broker.rack=a", "replica.lag.time.max.ms=1", "default.replication.factor=1")
    cluster_of(joined)
    assert joined.notices == [
        "without a cluster no effect has: f: broker.rack, f: replica.lag.time.max.ms"
    ]
