"""What a producer asks its coordinator: for its id and epoch, and for a transaction's end."""

from collections.abc import Callable

from fencelog.client.cluster import TRANSACTION, Cluster
from fencelog.client.partition_sender import ProducerIdentity
from fencelog.client.retry import retrying
from fencelog.rpc.connection import Connection
from fencelog.rpc.deadline import Deadline
from fencelog.rpc.failures import failure
from fencelog.types import NO_PRODUCER_EPOCH, NO_PRODUCER_ID
from fencelog.wire.messages.end_txn import EndTxnRequest, EndTxnResponse
from fencelog.wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from fencelog.wire.primitives import error_code

INIT_VERSION_MAX = 5  # above it a transaction may be prepared for others to decide (KIP-939)


async def init_producer_id(
    cluster: Cluster,
    transactional_id: str | None,
    timeout_ms: int,
    last: ProducerIdentity | None = None,
    *,
    checked: Callable[[Connection], None] | None = None,
) -> ProducerIdentity:
    """Return a new producer id and epoch.

    With a transactional id the transaction of the producer before is ended first (E7). ``last``:
    only if that one is the newest (KIP-360); RequestError (PRODUCER_FENCED,
    INVALID_PRODUCER_EPOCH) if it was fenced, and nothing changes. ``checked`` raises if the
    coordinator is not good enough.
    """
    request = InitProducerIdRequest(
        transactional_id=transactional_id,
        transaction_timeout_ms=timeout_ms,
        producer_id=NO_PRODUCER_ID if last is None else last.producer_id,
        producer_epoch=NO_PRODUCER_EPOCH if last is None else last.producer_epoch,
    )
    deadline = cluster.deadline()

    async def attempt() -> InitProducerIdResponse:
        if transactional_id is None:
            connection = await cluster.any_broker(deadline)
        else:
            connection = await cluster.coordinator(TRANSACTION, transactional_id, deadline)
            if checked is not None:
                checked(connection)
        answer = await cluster.ask(
            connection, request, InitProducerIdResponse, deadline, INIT_VERSION_MAX
        )
        if answer.error_code:
            raise failure(
                error_code(answer.error_code),
                f"producer id for {transactional_id or 'an idempotent producer'} "
                f"from broker {connection.address}",
            )
        return answer

    def stale() -> None:
        if transactional_id is not None:
            cluster.forget_coordinator(TRANSACTION, transactional_id)

    answer = await retrying(attempt, deadline, stale)
    return ProducerIdentity(answer.producer_id, answer.producer_epoch, transactional_id)


async def ask_for_end(
    cluster: Cluster,
    identity: ProducerIdentity,
    deadline: Deadline,
    version_max: int,
    *,
    commit: bool,
) -> EndTxnResponse:
    """Send EndTxn once and return the answer, which may be an error.

    Raises RequestError without an answer: then the end is unknown.
    """
    transactional_id = identity.transactional_id or ""
    request = EndTxnRequest(
        transactional_id=transactional_id,
        producer_id=identity.producer_id,
        producer_epoch=identity.producer_epoch,
        committed=commit,
    )
    return await cluster.ask_coordinator(
        TRANSACTION, transactional_id, request, EndTxnResponse, deadline, version_max
    )
