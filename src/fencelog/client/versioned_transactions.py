"""Versioned transactions: one server-side transaction of many producers.

All requests go to the coordinator of the app. Each may be repeated after a lost response:
a second join is one more attempt that no commit names, a second commit or abort has no effect (V3).
"""

from collections.abc import Sequence
from typing import TypeVar

from fencelog.client.cluster import TRANSACTION, Cluster
from fencelog.client.model import (
    ANY_WRITER,
    AlreadyCommitted,
    AppDescription,
    Joined,
    OpenProducer,
    WriterInfo,
)
from fencelog.client.retry import retrying
from fencelog.errors import ErrorCode
from fencelog.rpc.failures import failure
from fencelog.types import TopicPartition
from fencelog.wire.message import Message
from fencelog.wire.messages.abort_transaction import (
    AbortTransactionRequest,
    AbortTransactionResponse,
)
from fencelog.wire.messages.commit_transaction import (
    CommitTransactionRequest,
    CommitTransactionResponse,
)
from fencelog.wire.messages.describe_app import DescribeAppRequest, DescribeAppResponse
from fencelog.wire.messages.join_transaction import (
    JoinTransactionRequest,
    JoinTransactionResponse,
)
from fencelog.wire.messages.renew_transaction import (
    RenewTransactionRequest,
    RenewTransactionResponse,
)
from fencelog.wire.own import transactional_id
from fencelog.wire.primitives import error_code

R = TypeVar(
    "R",
    JoinTransactionResponse,
    RenewTransactionResponse,
    CommitTransactionResponse,
    AbortTransactionResponse,
    DescribeAppResponse,
)


class Transactions:
    """The requests of versioned transactions."""

    def __init__(self, cluster: Cluster) -> None:
        """Use the cluster's connections."""
        self._cluster = cluster

    async def join(
        self,
        app: str,
        query_id: str,
        run_id: str,
        version: int,
        timeout_ms: int,
        takeover: bool,
        writer: WriterInfo = ANY_WRITER,
        allow_gaps: bool = False,
    ) -> Joined | AlreadyCommitted:
        """Open transaction (app, version) or join it.

        A broker that does not know sessions waits for the timeout.
        """
        request = JoinTransactionRequest(
            app=app,
            query_id=query_id,
            run_id=run_id,
            version=version,
            timeout_ms=timeout_ms,
            takeover=takeover,
            host=writer.host,
            allow_gaps=allow_gaps,
            session_timeout_ms=writer.session_ms,
        )
        what = f"join of version {version} of app {app}"
        answer = await self._ask(
            app, what, request, JoinTransactionResponse, ErrorCode.ALREADY_COMMITTED
        )
        if answer.error_code == ErrorCode.ALREADY_COMMITTED:
            return AlreadyCommitted(app=app, version=version)
        return Joined(
            app=app,
            query_id=query_id,
            run_id=run_id,
            version=version,
            timeout_ms=timeout_ms,
            session_ms=writer.session_ms,
            producer_id=answer.producer_id,
            producer_epoch=answer.producer_epoch,
            transactional_id=answer.transactional_id or transactional_id(app),
            incarnation=answer.incarnation,
        )

    async def renew(self, app: str, query_id: str, run_id: str, version: int) -> None:
        """Restart the timeout of the open transaction (V7)."""
        request = RenewTransactionRequest(
            app=app, query_id=query_id, run_id=run_id, version=version
        )
        what = f"renewal of version {version} of app {app}"
        await self._ask(app, what, request, RenewTransactionResponse)

    async def commit(
        self,
        app: str,
        query_id: str,
        run_id: str,
        version: int,
        fingerprint: bytes,
        producer_ids: Sequence[int],
        takeover: bool,
        allow_gaps: bool = False,
    ) -> None:
        """Commit (app, version) for the named producers."""
        request = CommitTransactionRequest(
            app=app,
            query_id=query_id,
            run_id=run_id,
            version=version,
            fingerprint=fingerprint,
            producer_ids=list(producer_ids),
            takeover=takeover,
            allow_gaps=allow_gaps,
        )
        what = f"commit of version {version} of app {app}"
        await self._ask(app, what, request, CommitTransactionResponse, ErrorCode.ALREADY_COMMITTED)

    async def abort(
        self, app: str, query_id: str, run_id: str, version: int, ends_run: bool = False
    ) -> None:
        """Abort the open incarnation of (app, version); ``ends_run``: the run joins no more."""
        request = AbortTransactionRequest(
            app=app, query_id=query_id, run_id=run_id, version=version, ends_run=ends_run
        )
        what = f"abort of version {version} of app {app}"
        await self._ask(app, what, request, AbortTransactionResponse, ErrorCode.ALREADY_COMMITTED)

    async def describe(self, app: str) -> AppDescription:
        """Request the state of an app."""
        answer = await self._ask(
            app, f"description of app {app}", DescribeAppRequest(app=app), DescribeAppResponse
        )
        return AppDescription(
            app=app,
            last_version=answer.last_version,
            query_id=answer.query_id,
            run_id=answer.run_id,
            run_since_ms=answer.run_since_ms,
            run_host=answer.run_host or None,
            updated_ms=answer.updated_ms,
            open_version=answer.open_version,
            incarnation=answer.incarnation,
            open_producers=tuple(
                OpenProducer(
                    producer_id=producer.producer_id,
                    producer_epoch=producer.producer_epoch,
                    partitions=tuple(
                        TopicPartition(topic.topic, partition)
                        for topic in producer.partitions
                        for partition in topic.partitions
                    ),
                )
                for producer in answer.open_producers
            ),
        )

    async def _ask(
        self,
        app: str,
        what: str,
        request: Message,
        response: type[R],
        accepted: ErrorCode = ErrorCode.NONE,
    ) -> R:
        """Ask the app's coordinator until it answers NONE or the accepted code."""
        cluster = self._cluster
        key = transactional_id(app)
        deadline = cluster.deadline()

        async def attempt() -> R:
            connection = await cluster.coordinator(TRANSACTION, key, deadline)
            answer = await cluster.ask(connection, request, response, deadline)
            code = error_code(answer.error_code)
            if code not in (ErrorCode.NONE, accepted):
                raise failure(code, f"{what} at broker {connection.address}", answer.error_message)
            return answer

        return await retrying(
            attempt, deadline, lambda: cluster.forget_coordinator(TRANSACTION, key)
        )
