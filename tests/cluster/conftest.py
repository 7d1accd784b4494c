"""A real etcd for the tests of a cluster, which are skipped where it cannot be had."""

from tests.support.etcd_fixtures import etcd, own_etcd, three_members  # noqa: F401
