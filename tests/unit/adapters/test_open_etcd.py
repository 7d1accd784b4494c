"""Opening a cluster's store: what is missing is said, with what to do."""

import asyncio
import sys
from pathlib import Path

import pytest

from fencelog.adapters.open_etcd import open_etcd
from fencelog.errors import StorageError
from fencelog.settings.metadata_url import EtcdUrl

NOWHERE = EtcdUrl(("127.0.0.1:1",), "c")


def test_without_the_extra_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [each for each in sys.modules if each.startswith("fencelog.adapters.etcd")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "grpc", None)
    with pytest.raises(StorageError, match=r"pip install 'fencelog\[cluster\]'"):
        asyncio.run(open_etcd(NOWHERE))


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    none = str(tmp_path / "none")
    with pytest.raises(StorageError, match="none: No such file"):
        asyncio.run(open_etcd(NOWHERE, ca_file=none))
    with pytest.raises(StorageError, match=r"metadata\.password\.file: .*none"):
        asyncio.run(open_etcd(NOWHERE, user="u", password_file=none))
