"""Whoever is asked and has gone is looked up again, and only then."""

from collections.abc import Callable

import pytest

from fencelog.client.blocking import Client
from fencelog.errors import ErrorCode
from fencelog.types import TopicPartition
from fencelog.wire.api_versions import ApiKey
from fencelog.wire.message import Message
from fencelog.wire.messages.delete_groups import DeletableGroupResult, DeleteGroupsResponse
from fencelog.wire.messages.delete_records import (
    DeleteRecordsPartitionResult,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
)
from fencelog.wire.messages.describe_groups import DescribedGroup, DescribeGroupsResponse
from fencelog.wire.messages.describe_producers import (
    DescribeProducersResponse,
    PartitionResponse,
    TopicResponse,
)
from fencelog.wire.messages.describe_transactions import (
    DescribeTransactionsResponse,
    TransactionState,
)
from fencelog.wire.messages.init_producer_id import InitProducerIdResponse
from fencelog.wire.messages.list_offsets import (
    ListOffsetsPartitionResponse,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from fencelog.wire.messages.offset_commit import (
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from fencelog.wire.messages.offset_fetch import OffsetFetchResponse
from fencelog.wire.messages.renew_transaction import RenewTransactionResponse
from tests.unit.client.fake_broker import FakeBroker

PLACE = TopicPartition("t", 0)
Case = tuple[ApiKey, Callable[[ErrorCode], Message], Callable[[Client], object]]


def group(error: ErrorCode) -> Message:
    found = DescribedGroup(error_code=error, group_id="g", group_state="Empty")
    return DescribeGroupsResponse(groups=[found])


def deleted_group(error: ErrorCode) -> Message:
    return DeleteGroupsResponse(results=[DeletableGroupResult(group_id="g", error_code=error)])


def committed(error: ErrorCode) -> Message:
    partition = OffsetCommitResponsePartition(error_code=error)
    return OffsetCommitResponse(
        topics=[OffsetCommitResponseTopic(name="t", partitions=[partition])]
    )


def transaction(error: ErrorCode) -> Message:
    found = TransactionState(error_code=error, transactional_id="x")
    return DescribeTransactionsResponse(transaction_states=[found])


def offset(error: ErrorCode) -> Message:
    partition = ListOffsetsPartitionResponse(error_code=error, offset=3)
    return ListOffsetsResponse(topics=[ListOffsetsTopicResponse(name="t", partitions=[partition])])


def log_start(error: ErrorCode) -> Message:
    partition = DeleteRecordsPartitionResult(error_code=error, low_watermark=3)
    return DeleteRecordsResponse(
        topics=[DeleteRecordsTopicResult(name="t", partitions=[partition])]
    )


def producers(error: ErrorCode) -> Message:
    partition = PartitionResponse(error_code=error)
    return DescribeProducersResponse(topics=[TopicResponse(name="t", partitions=[partition])])


OF_COORDINATORS: dict[str, Case] = {
    "describe a group": (ApiKey.DESCRIBE_GROUPS, group, lambda c: c.describe_group("g")),
    "delete a group": (ApiKey.DELETE_GROUPS, deleted_group, lambda c: c.delete_group("g")),
    "commit offsets": (
        ApiKey.OFFSET_COMMIT,
        committed,
        lambda c: c.commit_offsets("g", {PLACE: 1}),
    ),
    "committed offsets": (
        ApiKey.OFFSET_FETCH,
        lambda error: OffsetFetchResponse(error_code=error),
        lambda c: c.committed_offsets("g"),
    ),
    "describe a transaction": (
        ApiKey.DESCRIBE_TRANSACTIONS,
        transaction,
        lambda c: c.describe_transaction("x"),
    ),
    "open a producer": (
        ApiKey.INIT_PRODUCER_ID,
        lambda error: InitProducerIdResponse(error_code=error),
        lambda c: c.producer(transactional_id="x").close(),
    ),
    "renew a version": (
        ApiKey.RENEW_TRANSACTION,
        lambda error: RenewTransactionResponse(error_code=error),
        lambda c: c.renew_transaction("a", "q", "r", 0),
    ),
}
OF_LEADERS: dict[str, Case] = {
    "offsets": (ApiKey.LIST_OFFSETS, offset, lambda c: c.offsets([PLACE], "latest")),
    "delete records": (
        ApiKey.DELETE_RECORDS,
        log_start,
        lambda c: c.delete_records({PLACE: 3}),
    ),
    "describe producers": (
        ApiKey.DESCRIBE_PRODUCERS,
        producers,
        lambda c: c.describe_producers([PLACE]),
    ),
}


def lookups(case: Case, error: ErrorCode, lookup: ApiKey) -> int:
    """How often somebody was looked up for a request that is answered with this error once."""
    key, answer, ask = case
    with FakeBroker() as broker, Client(broker.address) as client:
        broker.next(key, answer(error), answer(ErrorCode.NONE))
        if key is not ApiKey.OFFSET_FETCH:
            broker.next(ApiKey.OFFSET_FETCH, OffsetFetchResponse())
        ask(client)
        assert broker.asked.count(key) == 2
        return broker.asked.count(lookup)


@pytest.mark.parametrize("case", OF_COORDINATORS.values(), ids=OF_COORDINATORS)
def test_a_coordinator_that_has_moved_is_looked_up_again(case: Case) -> None:
    assert lookups(case, ErrorCode.NOT_COORDINATOR, ApiKey.FIND_COORDINATOR) == 2


@pytest.mark.parametrize("case", OF_COORDINATORS.values(), ids=OF_COORDINATORS)
def test_a_coordinator_that_loads_is_asked_again(case: Case) -> None:
    assert lookups(case, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ApiKey.FIND_COORDINATOR) == 1


@pytest.mark.parametrize("case", OF_LEADERS.values(), ids=OF_LEADERS)
def test_a_leader_that_has_moved_is_looked_up_again(case: Case) -> None:
    assert lookups(case, ErrorCode.NOT_LEADER_OR_FOLLOWER, ApiKey.METADATA) == 2


@pytest.mark.parametrize("case", OF_LEADERS.values(), ids=OF_LEADERS)
def test_a_leader_that_cannot_answer_yet_is_asked_again(case: Case) -> None:
    assert lookups(case, ErrorCode.OFFSET_NOT_AVAILABLE, ApiKey.METADATA) == 1
