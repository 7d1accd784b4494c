"""Opens the metadata store of a cluster as the settings name it; loads etcd's client only then."""

from pathlib import Path

from fencelog.errors import StorageError
from fencelog.ports import MetadataStore
from fencelog.settings.metadata_url import EtcdUrl

_CLIENTS = ("grpc", "google")
"""Packages that the extra brings."""


async def open_etcd(
    url: EtcdUrl,
    *,
    ca_file: str = "",
    cert_file: str = "",
    key_file: str = "",
    user: str = "",
    password_file: str = "",
) -> MetadataStore:
    """Return the store once etcd has answered; empty texts are settings that nobody set.

    Raises StorageError, which says what to do: also where the extra is not installed.
    """
    try:
        from fencelog.adapters.etcd.members import Tls, User
        from fencelog.adapters.etcd_metadata import EtcdMetadata
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in _CLIENTS:
            raise
        raise StorageError(
            "metadata in etcd needs etcd's client: pip install 'fencelog[cluster]'"
        ) from error
    tls = Tls(Path(ca_file), _path(cert_file), _path(key_file)) if ca_file else None
    who = User(user, _password(password_file)) if user else None
    return await EtcdMetadata.open(url, tls=tls, user=who)


def _path(text: str) -> Path | None:
    return Path(text) if text else None


def _password(file: str) -> str:
    """The first line of the file."""
    try:
        return Path(file).read_text(encoding="utf-8").partition("\n")[0]
    except (OSError, UnicodeDecodeError) as error:
        raise StorageError(f"metadata.password.file: {error}") from error
