"""Where a broker keeps its metadata: ``sqlite``, or ``etcd://HOST:PORT,HOST:PORT/NAME``."""

import re
from typing import NamedTuple

SQLITE = "sqlite"
_SCHEME = "etcd://"
_PORT = "2379"
_NAME = re.compile(r"[A-Za-z0-9._-]{1,100}")
_HOST = re.compile(r"(?:\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::([0-9]{1,5}))?")


class EtcdUrl(NamedTuple):
    """The members of an etcd and what a cluster is called there."""

    endpoints: tuple[str, ...]
    """``host:port`` of each."""
    name: str
    """Every key of the cluster begins with it and a slash."""


def parse_metadata_url(text: str) -> EtcdUrl | None:
    """Return where etcd is, or None for SQLite. Raises ValueError, which says what is wrong."""
    if text == SQLITE:
        return None
    if not text.startswith(_SCHEME):
        raise ValueError(f"expected {SQLITE} or {_SCHEME}HOST:PORT,HOST:PORT/NAME")
    hosts, slash, name = text.removeprefix(_SCHEME).partition("/")
    if not slash or not _NAME.fullmatch(name):
        raise ValueError(
            f"expected {_SCHEME}HOST:PORT/NAME, where NAME is what the cluster is called: letters, "
            "digits, '.', '_' or '-'"
        )
    endpoints = tuple(_endpoint(each.strip()) for each in hosts.split(","))
    if len(set(endpoints)) != len(endpoints):
        raise ValueError(f"{hosts} names a host and port twice")
    return EtcdUrl(endpoints, name)


def _endpoint(text: str) -> str:
    match = _HOST.fullmatch(text)
    if match is None or not 0 < int(match[1] or _PORT) < 1 << 16:
        raise ValueError(f"'{text}' is not HOST:PORT")
    return text if match[1] else f"{text}:{_PORT}"
