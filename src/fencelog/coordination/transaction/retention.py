"""Forgets transactional ids that are not used any more (``transactional.id.expiration.ms``)."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import islice

from fencelog.coordination.shard import LogRecord
from fencelog.coordination.transaction.records import write_key
from fencelog.coordination.transaction.state import Transaction, TxnState
from fencelog.types import Instant, TimestampMs

ID_EXPIRATION_MS = 7 * 24 * 60 * 60 * 1000
ID_CHECK_S = 3600.0
IDS_PER_CHECK = 1000
"""Tombstones in one batch; the next check, soon after, takes the rest."""
_SOON_S = 0.1
_AT_REST = frozenset({TxnState.EMPTY, TxnState.COMPLETE_COMMIT, TxnState.COMPLETE_ABORT})


@dataclass(slots=True)
class Retention:
    """Checks all ids periodically; an open or prepared transaction never expires.

    The age is wall-clock time since the last record of an id, so a load does not renew it.
    """

    expiration_ms: int
    check_s: float
    next_check: Instant | None = field(default=None, compare=False)
    """None: at the first call. It is soft: no record holds it."""

    def expired(
        self, transactions: Iterable[Transaction], now: Instant, wall_ms: TimestampMs
    ) -> tuple[LogRecord, ...]:
        """Return the tombstones that are due; none before the next check."""
        if self.next_check is not None and now < self.next_check:
            return ()
        oldest_kept_ms = wall_ms - self.expiration_ms
        old = (
            each.transactional_id
            for each in transactions
            if each.state in _AT_REST and each.updated_ms <= oldest_kept_ms
        )
        found = tuple(LogRecord(write_key(each), None) for each in islice(old, IDS_PER_CHECK))
        is_all = len(found) < IDS_PER_CHECK
        self.next_check = Instant(now + (self.check_s if is_all else _SOON_S))
        return found
