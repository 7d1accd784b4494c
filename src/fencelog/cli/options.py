"""Options that several commands share, and the client that they describe.

The flags are those of kcat and rpk (``-b``, ``-X key=value``), the property names librdkafka's.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from fencelog.cli.output import Format, UsageError
from fencelog.settings.kinds import INT32_MAX, INT64_MAX, Whole

if TYPE_CHECKING:
    from fencelog.client.blocking import Client
    from fencelog.client.cluster import ClusterOptions

DEFAULT_BOOTSTRAP = "127.0.0.1:9092"
REQUEST_TIMEOUT_MS = 10_000  # shorter than a program's: a person is waiting
REQUEST_TIMEOUTS = Whole(1, INT32_MAX, "ms")
OFFSETS = Whole(0, INT64_MAX)
INDEXES = Whole(0, INT32_MAX)
"""Numbers of partitions, and of segments."""

BootstrapOption = Annotated[
    str,
    typer.Option(
        "-b",
        "--bootstrap-server",
        envvar="FENCELOG_BOOTSTRAP_SERVERS",
        metavar="HOST:PORT",
        help="The bootstrap broker.",
    ),
]
PropertyOption = Annotated[
    list[str] | None,
    typer.Option(
        "-X", metavar="KEY=VALUE", help="A client property, with librdkafka's name; repeatable."
    ),
]
CountOption = Annotated[
    int | None,
    typer.Option("-c", "-n", "--num", min=1, max=INT64_MAX, help="Stop after this many records."),
]
RecordFormatOption = Annotated[
    str,
    typer.Option("-f", "--format", help="json, or a format string: '%k %v %o %p %t %T %h\\n'."),
]
FormatOption = Annotated[
    Format | None,
    typer.Option("--format", help="Output format. Default: table on a terminal, else json."),
]

CLIENT_PROPERTIES = frozenset({"client.id", "request.timeout.ms", "bootstrap.servers"})
BROKERS_DEFAULT = -1
"""As many replicas as the broker's ``default.replication.factor`` says (KIP-464)."""


@dataclass(frozen=True, kw_only=True)
class Connection:
    """The broker address and client properties of the command line."""

    bootstrap: str
    properties: Mapping[str, str]

    def open(self) -> "Client":
        """A client for this command; a context manager."""
        from fencelog.client.blocking import Client

        options = self.options()
        return Client(
            options.bootstrap_servers,
            client_id=options.client_id,
            request_timeout_s=options.request_timeout_s,
        )

    def options(self) -> "ClusterOptions":
        """How a client of this command connects. Raises UsageError."""
        from fencelog.client.cluster import ClusterOptions

        text = self.properties.get("request.timeout.ms", str(REQUEST_TIMEOUT_MS))
        timeout_ms = whole_number(text, f"-X request.timeout.ms={text}", REQUEST_TIMEOUTS)
        address = self.properties.get("bootstrap.servers", self.bootstrap)
        try:
            return ClusterOptions(
                bootstrap_servers=address,
                client_id=self.properties.get("client.id", "fencelog-cli"),
                request_timeout_s=timeout_ms / 1000,
            )
        except ValueError as error:
            raise UsageError(f"-b {address}: {error}") from None


def connection(
    bootstrap: str, properties: Iterable[str] | None, *, also: Iterable[str] = ()
) -> Connection:
    """Read ``-b`` and ``-X``. Raises UsageError for a property that the command does not have."""
    known = CLIENT_PROPERTIES | set(also)
    return Connection(bootstrap=bootstrap, properties=key_values(properties or (), "-X", known))


def whole_number(text: str, what: str, numbers: Whole) -> int:
    """Read a number out of a text. Raises UsageError, which begins with ``what``."""
    try:
        return numbers.parse(text)
    except ValueError:
        raise UsageError(f"{what}: expected {numbers.expected()}") from None


def key_values(
    pairs: Iterable[str], flag: str, known: Iterable[str] | None = None
) -> dict[str, str]:
    """``key=value`` strings as a dict. Raises UsageError for a malformed pair or unknown key."""
    result: dict[str, str] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key:
            raise UsageError(f"{flag} {pair}: expected KEY=VALUE")
        if known is not None and key not in known:
            raise UsageError(f"{flag} {key}: unknown property; known: {', '.join(sorted(known))}")
        result[key] = value
    return result
