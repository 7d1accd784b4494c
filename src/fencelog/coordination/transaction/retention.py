"""Which transactional ids nobody uses any more (``transactional.id.expiration.ms``)."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import islice

from fencelog.coordination.shard import LogRecord
from fencelog.coordination.transaction.records import write_key
from fencelog.coordination.transaction.state import Transaction, TxnState
from fencelog.settings.table import default_of
from fencelog.types import Instant, TimestampMs

ID_EXPIRATION_MS = default_of("transactional.id.expiration.ms")
ID_CHECK_S = default_of("transaction.remove.expired.transaction.cleanup.interval.ms") / 1000
IDS_PER_LOOK = 1000
"""So many tombstones are one batch; the rest have their turn at the next look, soon after."""
_SOON_S = 0.1
_AT_REST = frozenset({TxnState.EMPTY, TxnState.COMPLETE_COMMIT, TxnState.COMPLETE_ABORT})


@dataclass(slots=True)
class Retention:
    """Looks at every id from time to time; what is open or owes markers is never too old.

    Age is counted by the wall clock from the last record of an id, so a load does not renew it.
    """

    expiration_ms: int
    check_s: float
    next_look: Instant | None = field(default=None, compare=False)
    """None: when first asked. No record says it, so a replay does not have it."""

    def expired(
        self, transactions: Iterable[Transaction], now: Instant, wall_ms: TimestampMs
    ) -> tuple[LogRecord, ...]:
        """Return the tombstones that are due, none before the next look."""
        if self.next_look is not None and now < self.next_look:
            return ()
        oldest_kept_ms = wall_ms - self.expiration_ms
        old = (
            each.transactional_id
            for each in transactions
            if each.state in _AT_REST and each.updated_ms <= oldest_kept_ms
        )
        found = tuple(LogRecord(write_key(each), None) for each in islice(old, IDS_PER_LOOK))
        is_all = len(found) < IDS_PER_LOOK
        self.next_look = Instant(now + (self.check_s if is_all else _SOON_S))
        return found
