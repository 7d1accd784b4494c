"""The coordinators' records on disk, byte for byte, against bytes that earlier versions wrote.

``golden_records.txt`` has a line per record: name, key, value, in hex. Brokers have such bytes on
their disks, and Kafka's tools read them, so a change of the file is a change of the format.
"""

from pathlib import Path

import pytest

from fencelog.coordination.group import metadata as groups
from fencelog.coordination.group import records as offsets
from fencelog.coordination.group.metadata import StoredGroup, StoredMember, forget_group
from fencelog.coordination.group.records import CommittedOffset, forget_offset, write_offset
from fencelog.coordination.owners import (
    read_commits_key,
    read_owner,
    read_producers_key,
    write_commits_owner,
    write_producers_owner,
)
from fencelog.coordination.ownership import records as claims
from fencelog.coordination.ownership.state import Grant, Granted
from fencelog.coordination.ownership.state import Phase as ClaimPhase
from fencelog.coordination.shard import LogRecord
from fencelog.coordination.transaction import records as transactions
from fencelog.coordination.transaction.state import (
    ClientVersion,
    ProducerIdAndEpoch,
    Transaction,
    TxnState,
)
from fencelog.coordination.versioned import records as versioned
from fencelog.coordination.versioned.records import AppKey, ProducerKey, RunKey
from fencelog.coordination.versioned.state import App, Joined, Phase, Run
from fencelog.log.ownership import Owner
from fencelog.types import (
    LeaderEpoch,
    Offset,
    ProducerEpoch,
    ProducerId,
    TimestampMs,
    TopicPartition,
)

GOLDEN = {
    name: (bytes.fromhex(key), None if value == "-" else bytes.fromhex(value))
    for name, key, value in (
        line.split()
        for line in (Path(__file__).parent / "golden_records.txt").read_text("utf-8").splitlines()
    )
}
PARTITIONS = frozenset(
    {
        TopicPartition("ö", 3),
        TopicPartition("b", 1),
        TopicPartition("a", 10),
        TopicPartition("a", 2),
    }
)


def member(member_id: str, instance_id: str | None, assignment: bytes) -> StoredMember:
    return StoredMember(
        member_id=member_id,
        instance_id=instance_id,
        client_id="client",
        client_host="/127.0.0.1",
        rebalance_timeout_ms=300_000,
        session_timeout_ms=45_000,
        subscription=b"\0\1subscription",
        assignment=assignment,
    )


def group(protocol: str | None, *members: StoredMember) -> StoredGroup:
    return StoredGroup(
        group="grüppe",
        protocol_type="consumer",
        generation=2_000_000_000,
        protocol=protocol,
        leader=members[0].member_id if members else None,
        changed_ms=TimestampMs(1_700_000_000_123),
        members=members,
    )


def transaction(
    state: TxnState,
    partitions: frozenset[TopicPartition],
    previous: ProducerIdAndEpoch | None = None,
    next_producer_id: int = -1,
    client_version: ClientVersion = ClientVersion.V1,
) -> Transaction:
    return Transaction(
        transactional_id="päy",
        producer=ProducerIdAndEpoch(ProducerId(1 << 40), ProducerEpoch(32_767)),
        previous=previous,
        next_producer_id=ProducerId(next_producer_id),
        client_version=client_version,
        timeout_ms=60_000,
        state=state,
        partitions=partitions,
        updated_ms=TimestampMs(1_700_000_000_123),
        started_ms=TimestampMs(-1),
    )


def app(
    phase: Phase,
    committing: frozenset[int],
    written: frozenset[TopicPartition],
    opened_ms: int = -1,
) -> App:
    return App(
        app="etl/tägl",
        query_id="query",
        run_id="",
        last_version=-1,
        fingerprint=b"\0fingerprint\xff",
        incarnation=1 << 33,
        phase=phase,
        version=17,
        timeout_ms=900_000,
        committing=frozenset(ProducerId(each) for each in committing),
        written=written,
        updated_ms=TimestampMs(1_700_000_000_123),
        opened_ms=TimestampMs(opened_ms),
    )


NOWHERE: frozenset[TopicPartition] = frozenset()
BEFORE = ProducerIdAndEpoch(ProducerId((1 << 40) - 1), ProducerEpoch(32_766))
TRANSACTIONS = {
    "transaction-empty": transaction(TxnState.EMPTY, NOWHERE),
    "transaction-empty-with-previous": transaction(TxnState.EMPTY, NOWHERE, BEFORE),
    "transaction-ongoing": transaction(TxnState.ONGOING, PARTITIONS),
    "transaction-ongoing-with-previous": transaction(TxnState.ONGOING, PARTITIONS, BEFORE),
    "transaction-prepared-v2": transaction(
        TxnState.PREPARE_COMMIT, PARTITIONS, BEFORE, 1 << 41, ClientVersion.V2
    ),
    "transaction-complete": transaction(TxnState.COMPLETE_ABORT, NOWHERE),
    "transaction-complete-v2": transaction(
        TxnState.COMPLETE_COMMIT, NOWHERE, client_version=ClientVersion.V2
    ),
}
GROUPS = {
    "group-empty": group(None),
    "group-without-assignment": group("range", member("m-1", None, b"")),
    "group-stable": group(
        "range", member("m-1", None, b"\0\1assigned"), member("m-2", "instance", b"")
    ),
}
A_MINUTE_AGO = CommittedOffset(
    Offset(1 << 40), LeaderEpoch(7), "a nöte", TimestampMs(1_700_000_000_123)
)
OFFSETS = {"offset": A_MINUTE_AGO, "offset-bare": CommittedOffset(Offset(0))}
APPS = {
    "app-idle": app(Phase.IDLE, frozenset(), NOWHERE),
    "app-committing": app(Phase.COMMITTING, frozenset({300, 5, 1 << 40}), PARTITIONS),
    "app-idle-1": app(Phase.IDLE, frozenset(), NOWHERE),
    "app-open-1": app(Phase.OPEN, frozenset(), NOWHERE, 1_700_000_000_120),
}
PRODUCERS = {
    name: Joined(
        producer_id=ProducerId(1 << 40),
        producer_epoch=ProducerEpoch(3),
        app="etl/tägl",
        incarnation=4,
        partitions=partitions,
    )
    for name, partitions in (("producer", PARTITIONS), ("producer-fresh", NOWHERE))
}
RUN = RunKey("etl/tägl", "query", "run")
RUNS = {
    "run": Run(ordinal=12, since_ms=TimestampMs(-1), host=""),
    "run-1": Run(ordinal=12, since_ms=TimestampMs(1_700_000_000_123), host="höst"),
}
CLAIM = Owner("grüppe", 1 << 33, "séssion", "__fencelog.own/grüppe/päy~8589934592", "hölder", True)
OWNERS = {
    "commits-owner": CLAIM,
    "commits-owner-ended": CLAIM._replace(transactional_id=None, holder="", is_live=False),
    "producers-owner": CLAIM,
    "producers-owner-of-writes": CLAIM._replace(group=None, is_live=False),
}
GRANTS = {
    f"claim-{phase.value}": Grant(
        group="grüppe" if phase is ClaimPhase.HELD else None,
        session="séssion",
        phase=phase,
        holder="hölder",
        host="höst",
        lease_ms=30_000,
        granted_ms=TimestampMs(1_700_000_000_123),
        producers_key="__fencelog.own/grüppe/päy" if phase is ClaimPhase.HELD else None,
        resources=(
            Granted("ö/3", 5, 1 << 33, Offset(1 << 40)),
            Granted("__fencelog.own/grüppe/päy", 0, 7),
        ),
    )
    for phase in (ClaimPhase.GRANTING, ClaimPhase.HELD)
}
CLAIMED = GRANTS["claim-held"]
ENDED_MS = TimestampMs(1_700_000_000_456)
PRODUCERS_KEY = "__fencelog.own/grüppe/päy"
READ_ONLY = {"run", "app-idle", "app-committing"}
"""Records of versions that are read and no longer written."""
AT = TopicPartition("ö", 3)


def write_owner(name: str) -> LogRecord:
    if name.startswith("commits"):
        return write_commits_owner("grüppe", AT, OWNERS[name])
    return write_producers_owner(PRODUCERS_KEY, OWNERS[name])


def written() -> dict[str, LogRecord]:
    return {
        **{name: transactions.write_transaction(each) for name, each in TRANSACTIONS.items()},
        **{name: groups.write_group(each) for name, each in GROUPS.items()},
        "group-forgotten": forget_group("grüppe"),
        **{name: write_offset("grüppe", AT, each) for name, each in OFFSETS.items()},
        "offset-forgotten": forget_offset("grüppe", AT),
        **{name: versioned.write_app(APPS[name]) for name in APPS.keys() - READ_ONLY},
        **{name: versioned.write_producer(each) for name, each in PRODUCERS.items()},
        "run-1": versioned.write_run(RUN, RUNS["run-1"]),
        **{name: write_owner(name) for name in OWNERS},
        **{name: claims.write_grant(each) for name, each in GRANTS.items()},
        "claim-ended": claims.write_end(CLAIMED, ENDED_MS),
        "claim-resource": claims.write_resource("grüppe", CLAIMED.resources[0]),
        "claim-forgotten": claims.forget(CLAIMED)[0],
        "claim-end-forgotten": claims.forget(CLAIMED)[1],
        "app-forgotten": versioned.forget(AppKey("etl/tägl")),
        "run-forgotten": versioned.forget(RUN),
        "producer-forgotten": versioned.forget(ProducerKey(ProducerId(1 << 40))),
    }


@pytest.mark.parametrize("name", written())
def test_a_record_is_written_in_the_bytes_that_it_always_had(name: str) -> None:  # V8
    assert written()[name] == LogRecord(*GOLDEN[name])


def test_every_golden_record_is_compared() -> None:
    assert GOLDEN.keys() == written().keys() | READ_ONLY


@pytest.mark.parametrize("name", TRANSACTIONS)
def test_the_bytes_of_a_transaction_are_read(name: str) -> None:
    key, value = GOLDEN[name]
    assert value is not None
    assert transactions.read_value(transactions.read_key(key), value) == TRANSACTIONS[name]


@pytest.mark.parametrize("name", GROUPS)
def test_the_bytes_of_a_group_are_read(name: str) -> None:
    key, value = GOLDEN[name]
    assert value is not None
    assert groups.read_group("grüppe", value) == GROUPS[name]
    assert groups.read_group_key(key) == "grüppe"
    assert offsets.read_key(key) is None


@pytest.mark.parametrize("name", OFFSETS)
def test_the_bytes_of_an_offset_are_read(name: str) -> None:
    key, value = GOLDEN[name]
    assert value is not None
    assert offsets.read_value(value) == OFFSETS[name]
    assert offsets.read_key(key) == ("grüppe", AT)
    assert groups.read_group_key(key) is None


@pytest.mark.parametrize("name", [*APPS, *PRODUCERS, *RUNS])
def test_the_bytes_of_an_app_its_runs_and_producers_are_read(name: str) -> None:
    data, value = GOLDEN[name]
    assert value is not None
    match versioned.read_key(data):
        case AppKey(named):
            assert versioned.read_app(named, value) == APPS[name]
        case ProducerKey(producer_id):
            assert versioned.read_producer(producer_id, value) == PRODUCERS[name]
        case key:
            assert (key, versioned.read_run(value)) == (RUN, RUNS[name])


@pytest.mark.parametrize("name", GRANTS)
def test_the_bytes_of_a_claim_are_read(name: str) -> None:
    key, value = GOLDEN[name]
    assert value is not None
    found = claims.read_key(key)
    assert isinstance(found, claims.ClaimKey)
    assert claims.read_grant(found, value) == GRANTS[name]


def test_the_bytes_of_a_claims_end_and_of_a_resource_are_read() -> None:
    ended, _ = GOLDEN["claim-ended"]
    assert claims.read_key(ended) == claims.EndKey("grüppe", "séssion")
    key, value = GOLDEN["claim-resource"]
    assert value is not None
    assert claims.read_key(key) == claims.ResourceKey("grüppe", "ö/3")
    assert claims.read_resource(value) == (5, 1 << 33)


@pytest.mark.parametrize("name", OWNERS)
def test_the_bytes_of_an_owner_are_read(name: str) -> None:
    key, value = GOLDEN[name]
    if name.startswith("commits"):
        assert read_commits_key(key) == ("grüppe", AT)
        assert offsets.read_key(key) is groups.read_group_key(key) is None
    else:
        assert read_producers_key(key) == PRODUCERS_KEY
    assert read_owner(value) == OWNERS[name]
