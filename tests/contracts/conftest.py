"""Every adapter that keeps a contract, by name."""

import secrets
from pathlib import Path

import pytest

from fencelog.adapters.etcd_metadata import EtcdMetadata
from tests.support import metadata_stores
from tests.support.etcd import Etcd
from tests.support.etcd_fixtures import small_etcd  # noqa: F401


@pytest.fixture(params=[*metadata_stores.ALL, pytest.param("etcd", marks=pytest.mark.slow)])
def open_store(request: pytest.FixtureRequest, tmp_path: Path) -> metadata_stores.Open:
    """Open the store; a second call after a close opens the same one again."""
    if request.param != "etcd":
        return metadata_stores.opener(request.param, tmp_path)
    etcd: Etcd = request.getfixturevalue("small_etcd")
    url = etcd.url(f"c{secrets.token_hex(4)}")
    return lambda: EtcdMetadata.open(url)
