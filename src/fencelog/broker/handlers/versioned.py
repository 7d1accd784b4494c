"""Versioned transactions: many writers, one durable decision per (app, version) (V1 to V8)."""

from collections.abc import Callable

from fencelog.broker.context import Broker
from fencelog.broker.network.connection import Request
from fencelog.coordination.encoding import by_topic
from fencelog.coordination.shard import Decision
from fencelog.coordination.versioned.answers import JoinResult
from fencelog.coordination.versioned.sessions import Session
from fencelog.coordination.versioned.shard import VersionedShard
from fencelog.coordination.versioned.state import Caller
from fencelog.errors import ErrorCode, NotLeaderError
from fencelog.types import Instant, ProducerId
from fencelog.wire.messages.abort_transaction import (
    AbortTransactionRequest,
    AbortTransactionResponse,
)
from fencelog.wire.messages.commit_transaction import (
    CommitTransactionRequest,
    CommitTransactionResponse,
)
from fencelog.wire.messages.describe_app import (
    DescribeAppRequest,
    DescribeAppResponse,
    OpenProducer,
    OpenProducerTopic,
)
from fencelog.wire.messages.join_transaction import JoinTransactionRequest, JoinTransactionResponse
from fencelog.wire.messages.renew_transaction import (
    RenewTransactionRequest,
    RenewTransactionResponse,
)
from fencelog.wire.own import transactional_id

_EXPLAINED = {
    ErrorCode.RUN_FENCED: "a newer run of the query owns app {app}: this run must stop",
    ErrorCode.VERSION_CONFLICT: "version {version} of app {app} was committed with other input",
    ErrorCode.STALE_VERSION: "version {version} of app {app} is below the last committed one",
    ErrorCode.VERSION_GAP: "version {version} of app {app} is not the one after the last",
    ErrorCode.APP_IN_USE: (
        "app {app} belongs to another query: choose another name, or take it over on purpose"
    ),
    ErrorCode.TRANSACTION_ABORTED: (
        "version {version} of app {app} was aborted (by a newer run, an abort or its timeout, or "
        "because its writers' connections were closed): write the batch again"
    ),
    ErrorCode.CONCURRENT_TRANSACTIONS: (
        "the last transaction of app {app} still waits for its markers: try again"
    ),
    ErrorCode.COORDINATOR_NOT_AVAILABLE: (
        "the coordinator of app {app} is not available: try again"
    ),
    ErrorCode.NOT_COORDINATOR: "the coordinator of app {app} is another broker: look it up again",
}


def explain(error: ErrorCode, app: str, version: int = -1) -> str | None:
    """Return what an error means for this app, and what to do; None for success."""
    text = _EXPLAINED.get(error, "the request for app {app} was refused")
    return text.format(app=app, version=version)


def _caller(
    message: JoinTransactionRequest
    | CommitTransactionRequest
    | AbortTransactionRequest
    | RenewTransactionRequest,
    *,
    takeover: bool = False,
    allow_gaps: bool = False,
    host: str = "",
) -> Caller:
    return Caller(
        app=message.app,
        query_id=message.query_id,
        run_id=message.run_id,
        version=message.version,
        takeover=takeover,
        allow_gaps=allow_gaps,
        host=host,
    )


async def join(
    broker: Broker, message: JoinTransactionRequest, request: Request
) -> JoinTransactionResponse:
    """Open or join (app, version); the response has a new producer id for this attempt."""
    caller = _caller(
        message, takeover=message.takeover, allow_gaps=message.allow_gaps, host=message.host
    )
    wall_ms = broker.clock.now_ms()
    try:
        fresh = await broker.producer_ids.take()
        result = await broker.versioned.decide(
            transactional_id(message.app),
            lambda shard, now: shard.join(
                caller,
                timeout_ms=message.timeout_ms,
                new_producer_id=fresh,
                wall_ms=wall_ms,
                session=_session(broker, message.session_timeout_ms, request, now),
            ),
        )
    except NotLeaderError as refused:
        result = JoinResult(error=refused.coordinator_error)
    return JoinTransactionResponse(
        error_code=result.error,
        error_message=explain(result.error, message.app, message.version),
        producer_id=result.producer_id,
        producer_epoch=result.producer_epoch,
        transactional_id=transactional_id(message.app) if not result.error else None,
        incarnation=result.incarnation,
    )


def _session(broker: Broker, timeout_ms: int, request: Request, now: Instant) -> Session | None:
    """The session of a producer that keeps its connection; None if it does not say so."""
    if timeout_ms <= 0:
        return None
    connection = broker.writer_connections.number_of(request.connection)
    return Session(timeout_ms=timeout_ms, connection=connection, now=now)


async def _decide(
    broker: Broker, caller: Caller, rule: Callable[[VersionedShard, Instant], Decision[ErrorCode]]
) -> tuple[ErrorCode, str | None]:
    """Return the error that the app's coordinator decides on, and its text."""
    try:
        error = await broker.versioned.decide(transactional_id(caller.app), rule)
    except NotLeaderError as refused:
        error = refused.coordinator_error
    return error, explain(error, caller.app, caller.version)


async def commit(
    broker: Broker, message: CommitTransactionRequest, request: Request
) -> CommitTransactionResponse:
    """Decide (app, version) for the named producers; answered once the decision is committed."""
    del request
    caller = _caller(message, takeover=message.takeover, allow_gaps=message.allow_gaps)
    producer_ids = [ProducerId(each) for each in message.producer_ids]
    fingerprint, wall_ms = bytes(message.fingerprint), broker.clock.now_ms()
    error, text = await _decide(
        broker,
        caller,
        lambda shard, now: shard.commit(caller, fingerprint, producer_ids, wall_ms=wall_ms),
    )
    return CommitTransactionResponse(error_code=error, error_message=text)


async def abort(
    broker: Broker, message: AbortTransactionRequest, request: Request
) -> AbortTransactionResponse:
    """End the open incarnation of (app, version); no effect once it is committed."""
    del request
    caller = _caller(message)
    wall_ms = broker.clock.now_ms()
    error, text = await _decide(
        broker,
        caller,
        lambda shard, now: shard.abort(caller, wall_ms=wall_ms, ends_run=message.ends_run),
    )
    return AbortTransactionResponse(error_code=error, error_message=text)


async def renew(
    broker: Broker, message: RenewTransactionRequest, request: Request
) -> RenewTransactionResponse:
    """Restart the timeout of the open incarnation (V7)."""
    caller = _caller(message)
    connection = request.connection
    error, text = await _decide(
        broker,
        caller,
        lambda shard, now: shard.renew(
            caller, now, broker.writer_connections.number_of(connection)
        ),
    )
    return RenewTransactionResponse(error_code=error, error_message=text)


async def describe(
    broker: Broker, message: DescribeAppRequest, request: Request
) -> DescribeAppResponse:
    """Return an app's last version, owner and open transaction; an unknown app has none."""
    del request
    try:
        found = await broker.versioned.read(
            transactional_id(message.app), lambda shard: shard.describe(message.app)
        )
    except NotLeaderError as refused:
        error = refused.coordinator_error
        return DescribeAppResponse(error_code=error, error_message=explain(error, message.app))
    if found is None:
        return DescribeAppResponse()
    return DescribeAppResponse(
        last_version=found.last_version,
        query_id=found.query_id,
        run_id=found.run_id or None,
        run_since_ms=-1 if found.run is None else found.run.since_ms,
        run_host=found.run.host if found.run else None,
        updated_ms=found.updated_ms,
        open_version=found.open_version,
        incarnation=found.incarnation,
        open_producers=[
            OpenProducer(
                producer_id=each.producer_id,
                producer_epoch=each.producer_epoch,
                partitions=[
                    OpenProducerTopic(topic=topic, partitions=indexes)
                    for topic, indexes in by_topic(each.partitions)
                ],
            )
            for each in found.open_producers
        ],
    )
