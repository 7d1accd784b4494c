"""One transactional id: its states, the transitions between them, and what is stored of it."""

from dataclasses import dataclass, replace
from enum import IntEnum
from typing import NamedTuple

from fencelog.types import (
    NO_PRODUCER_ID,
    ProducerEpoch,
    ProducerId,
    TimestampMs,
    TopicPartition,
)

EPOCH_MAX = ProducerEpoch(32767)
"""Reserved for fencing markers; no producer gets it (rule E7)."""

EPOCH_EXHAUSTED = ProducerEpoch(EPOCH_MAX - 1)
"""From this epoch on the next incarnation gets a new producer id."""


class TxnState(IntEnum):
    """Kafka's states, with the numbers that its log gives them (rule E9)."""

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5
    DEAD = 6

    @property
    def is_prepared(self) -> bool:
        """Whether it is decided and markers are outstanding."""
        return self in (TxnState.PREPARE_COMMIT, TxnState.PREPARE_ABORT)

    @property
    def is_active(self) -> bool:
        """Whether it is open, or decided and markers are outstanding."""
        return self is TxnState.ONGOING or self.is_prepared

    @property
    def is_commit(self) -> bool:
        """Whether the last decision was to commit."""
        return self in (TxnState.PREPARE_COMMIT, TxnState.COMPLETE_COMMIT)

    @property
    def kafka_name(self) -> str:
        """Kafka's spelling, as ListTransactions has it: ``PrepareCommit``."""
        return self.name.title().replace("_", "")


class ClientVersion(IntEnum):
    """The transaction version that a request uses, with the number that Kafka's log gives it."""

    V1 = 0
    """The epoch stays the same from one transaction to the next; Kafka stores 0 for it."""
    V2 = 2
    """EndTxn bumps the epoch, and the first write to a partition adds it to the transaction
    (KIP-890)."""


# Transitions that are not in the table are bugs. A prepared state follows itself when some of its
# markers are written; EMPTY follows itself when another incarnation is registered before the first
# transaction. A client of version 2 may abort although nothing is open: it does not know what has
# arrived.
TRANSITIONS: dict[TxnState, frozenset[TxnState]] = {
    TxnState.EMPTY: frozenset(
        {TxnState.EMPTY, TxnState.ONGOING, TxnState.PREPARE_ABORT, TxnState.DEAD}
    ),
    TxnState.ONGOING: frozenset(
        {TxnState.ONGOING, TxnState.PREPARE_COMMIT, TxnState.PREPARE_ABORT}
    ),
    TxnState.PREPARE_COMMIT: frozenset({TxnState.PREPARE_COMMIT, TxnState.COMPLETE_COMMIT}),
    TxnState.PREPARE_ABORT: frozenset({TxnState.PREPARE_ABORT, TxnState.COMPLETE_ABORT}),
    TxnState.COMPLETE_COMMIT: frozenset(
        {TxnState.EMPTY, TxnState.ONGOING, TxnState.PREPARE_ABORT, TxnState.DEAD}
    ),
    TxnState.COMPLETE_ABORT: frozenset(
        {TxnState.EMPTY, TxnState.ONGOING, TxnState.PREPARE_ABORT, TxnState.DEAD}
    ),
    TxnState.DEAD: frozenset(),
}


class ProducerIdAndEpoch(NamedTuple):
    """A producer as a request names it."""

    producer_id: ProducerId
    producer_epoch: ProducerEpoch


@dataclass(frozen=True, kw_only=True, slots=True)
class Transaction:
    """What the log says of one transactional id."""

    transactional_id: str
    producer: ProducerIdAndEpoch
    """The current producer; once decided, the one that the markers carry."""
    previous: ProducerIdAndEpoch | None
    """The producer that asked for the current epoch: its retry gets it again (KIP-360, KIP-890)."""
    next_producer_id: ProducerId = NO_PRODUCER_ID
    """Once decided at the last epoch: the next producer id, which begins with epoch 0."""
    client_version: ClientVersion = ClientVersion.V1
    """The version of the request that led here; V1 where the coordinator acted by itself."""
    timeout_ms: int
    state: TxnState
    partitions: frozenset[TopicPartition]
    """Those of the open transaction; once decided, those whose markers are outstanding."""
    updated_ms: TimestampMs
    started_ms: TimestampMs
    """When the open or last transaction began; -1 before the first."""

    @property
    def successor(self) -> ProducerIdAndEpoch:
        """The producer after this transaction: ``producer``, unless it ended at the last epoch."""
        if self.next_producer_id == NO_PRODUCER_ID:
            return self.producer
        return ProducerIdAndEpoch(self.next_producer_id, ProducerEpoch(0))

    def moved(self, state: TxnState, updated_ms: TimestampMs) -> "Transaction":
        """This transactional id in its next state; the table has to allow the transition."""
        assert state in TRANSITIONS[self.state], (self.state, state)
        return replace(self, state=state, updated_ms=updated_ms)

    def fenced(self) -> ProducerIdAndEpoch:
        """The producer id with an epoch that fences the current producer: one higher."""
        assert self.producer.producer_epoch < EPOCH_MAX, self
        return self.producer._replace(
            producer_epoch=ProducerEpoch(self.producer.producer_epoch + 1)
        )
