"""Stale-connection fencing: a transactional request on a connection that its producer replaced."""

from fencelog.broker.context import Broker
from fencelog.broker.network.connection import Request
from fencelog.errors import WireError
from fencelog.types import ProducerEpoch, ProducerId
from fencelog.wire.api_versions import ApiKey


def refuse_stale_connection(
    broker: Broker, request: Request, producer_id: int, producer_epoch: int
) -> None:
    """Close a connection that its producer has replaced by a newer one (E14).

    Raises WireError. No error code fits: a client would retry a retriable one on this connection,
    and take any other for the outcome of its transaction. A client that no longer uses the
    connection does not notice the close; any other opens a new one and sends the request again.
    """
    key = ApiKey(request.header.api_key)
    number = request.connection.number
    producer = ProducerId(producer_id), ProducerEpoch(producer_epoch)
    if producer_id >= 0 and broker.stale_connections.is_stale(*producer, key, number):
        raise WireError(
            f"{key.name} of producer {producer_id} (epoch {producer_epoch}) came on a connection "
            "that the producer has replaced by a newer one"
        )


def accepted_on(broker: Broker, request: Request, producer_id: int, producer_epoch: int) -> None:
    """Record that this request of a producer took effect: older connections are stale now (E14)."""
    if producer_id >= 0:
        broker.stale_connections.accepted(
            ProducerId(producer_id),
            ProducerEpoch(producer_epoch),
            ApiKey(request.header.api_key),
            request.connection.number,
        )
