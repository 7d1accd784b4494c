"""What a cluster allows, compared with the options of a write."""

from typing import TYPE_CHECKING, Final

from fencelog.spark.options import OptionError, SinkOptions
from fencelog.spark.planning import connect

if TYPE_CHECKING:
    from fencelog.client.blocking import Client

KAFKAS_TIMEOUT_MS_MAX: Final = 900_000
"""Kafka's default of ``transaction.max.timeout.ms``."""


def check_timeout(options: SinkOptions, allowed_ms: int | None = None) -> None:
    """Raise OptionError if the broker refuses the transaction timeout.

    Without ``allowed_ms`` the broker is asked, but only for more than every broker allows that
    has Kafka's default: this is called for each batch.
    """
    if not options.exactly_once:
        return
    asked = options.transaction_timeout_ms
    if allowed_ms is None:
        if asked <= KAFKAS_TIMEOUT_MS_MAX:
            return
        allowed_ms = timeout_ms_max(connect(options.connection))
    if asked > allowed_ms:
        raise OptionError(
            f"option 'kafka.transaction.timeout.ms' is '{asked}': the broker allows at most"
            f" {allowed_ms} (its setting transaction.max.timeout.ms)"
        )


def timeout_ms_max(client: "Client") -> int:
    """The broker's limit of the transaction timeout."""
    broker = client.cluster().brokers[0]
    limit = client.broker_configs(broker.node_id).get("transaction.max.timeout.ms")
    return int(limit or KAFKAS_TIMEOUT_MS_MAX)
