"""The settings of a broker that is one of a cluster."""

from fencelog.settings.kinds import INT16_MAX, INT32_MAX, OneOf, Short, Text, Whole
from fencelog.settings.metadata_url import SQLITE
from fencelog.settings.setting import broker

PLACE = "metadata"
CA_FILE, CERT_FILE, KEY_FILE = (f"{PLACE}.{each}.file" for each in ("ca", "cert", "key"))
USER, PASSWORD_FILE = f"{PLACE}.user", f"{PLACE}.password.file"
ETCD_KEYS = (CA_FILE, CERT_FILE, KEY_FILE, USER, PASSWORD_FILE)
"""What only an etcd has."""
REPLICATION_FACTORS = ("default.replication.factor", "offsets.topic.replication.factor")

CLUSTER_SETTINGS = (
    broker(
        PLACE,
        Text("string", "`sqlite` or `etcd://HOST:PORT,HOST:PORT/NAME`"),
        SQLITE,
        "where topics, settings and leaders are kept: in the data directory, by a broker alone; or "
        "in etcd, by all brokers of the cluster NAME",
    ),
    broker(CA_FILE, Text(), "", "PEM file of who signs etcd's certificates; with it, etcd has TLS"),
    broker(CERT_FILE, Text(), "", "PEM file of the broker's certificate for etcd"),
    broker(KEY_FILE, Text(), "", "PEM file of its key"),
    broker(USER, Text(), "", "the broker's user in etcd"),
    broker(PASSWORD_FILE, Text(), "", "file with the user's password"),
    broker("broker.rack", Text(), "", "where the broker stands; replicas are spread over racks"),
    broker(
        "default.replication.factor",
        Whole(1, INT32_MAX),
        1,
        "copies of a partition, for topics whose creator names no number",
    ),
    broker(
        "offsets.topic.replication.factor",
        Short(1, INT16_MAX),
        3,
        "copies of a partition of each internal topic; while there are fewer brokers, each has "
        "one, and those that come get theirs",
        aliases=("transaction.state.log.replication.factor",),
    ),
    broker(
        "replication.commit",
        OneOf(("isr", "all")),
        "isr",
        "who must have a record before it is committed: the in-sync replicas, or all",
    ),
    broker(
        "replica.lag.time.max.ms",
        Whole(1, 1 << 40, "ms"),
        30_000,
        "after which a replica that has not caught up leaves the in-sync replicas",
    ),
    broker(
        "broker.session.timeout.ms",
        Whole(1000, INT32_MAX, "ms"),
        9000,
        "after which a silent broker is fenced, and stops by itself; etcd counts whole seconds",
    ),
)
"""What holds in a cluster; a broker alone takes it, and refuses what it cannot keep."""
