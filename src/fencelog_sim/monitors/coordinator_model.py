"""A model of the coordinators: the state that their logs give, record by record.

Each record is checked against those before it: which step it takes, who owns a producer id, whether
what it completes is really done. From them follow the grants (which producer may write to which
partition) and the decisions (which marker is due where). Everything is read from bytes on disk.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import NamedTuple, Protocol

from fencelog.broker.metadata.catalog import (
    GROUP_TOPIC,
    OWNERSHIP_TOPIC,
    TRANSACTION_TOPIC,
    VERSIONED_TOPIC,
)
from fencelog.coordination.group import metadata as group_metadata
from fencelog.coordination.group import records as group_records
from fencelog.coordination.owners import read_producers_key
from fencelog.coordination.shard import LogRecord
from fencelog.coordination.transaction import records as transaction_records
from fencelog.coordination.transaction import state as transaction_state
from fencelog.coordination.transaction.state import Transaction, TxnState
from fencelog.coordination.versioned import records as versioned_records
from fencelog.coordination.versioned import state as versioned_state
from fencelog.coordination.versioned.records import AppKey, ProducerKey, RunKey
from fencelog.coordination.versioned.state import NO_VERSION, App, Joined, Phase
from fencelog.types import NO_PRODUCER_ID, ProducerId, TopicPartition
from fencelog.wire.batch import BatchHeader
from fencelog.wire.control import Marker
from fencelog_sim.monitors.ownership_model import Grants, OwnershipView


class Place(NamedTuple):
    """Where a record lies."""

    log: TopicPartition
    offset: int


class Grant(NamedTuple):
    """A producer may write to a partition: by which record, in which epoch."""

    place: Place
    epoch: int


class Partitions(Protocol):
    """What is known of the partitions that transactions write to."""

    def is_open(self, producer_id: int, partition: TopicPartition) -> bool:
        """Whether the producer has data there without a marker after it."""
        ...

    def last_marker(self, producer_id: int, partition: TopicPartition) -> int | None:
        """Offset of the producer's last marker there."""
        ...

    def is_committed(self, place: Place) -> bool:
        """Whether the high watermark covers a record, as far as is known."""
        ...


class Shared:
    """What the views of all coordinator logs have in common."""

    def __init__(self, partitions: Partitions) -> None:
        """Nothing granted yet."""
        self.partitions = partitions
        self.grants: dict[int, dict[TopicPartition, Grant]] = {}
        self.owners: dict[int, str] = {}
        """The owner of each producer id; kept over crashes, as no id is assigned twice (E1)."""
        self.written_by: set[int] = set()
        """Producer ids of all data ever seen."""
        self.asked: Counter[tuple[str, TopicPartition, int]] = Counter()
        """Offset commits that clients asked for and that are not on disk yet."""

    def own(self, producer_id: int, owner: str) -> str | None:
        """Note an id's owner; what is wrong where another one has it (E1, E7)."""
        known = self.owners.setdefault(producer_id, owner)
        if known != owner:
            return f"producer id {producer_id} of {known} is given to {owner} (E1)"
        return None

    def unmarked(self, producer_id: int, partitions: Iterable[TopicPartition]) -> Iterator[str]:
        """What is not done on partitions whose markers are said to be committed (E17)."""
        for partition in sorted(partitions):
            if self.partitions.is_open(producer_id, partition):
                yield f"counted as marked, though producer {producer_id} is open on {partition}"
                continue
            offset = self.partitions.last_marker(producer_id, partition)
            if offset is not None and not self.partitions.is_committed(Place(partition, offset)):
                yield f"counts a marker at {offset} of {partition} that is not committed (E17)"


class TransactionView:
    """One partition of ``__transaction_state``."""

    def __init__(self, name: TopicPartition, shared: Shared) -> None:
        """No record yet."""
        self._name = name
        self._shared = shared
        self.transactions: dict[str, Transaction] = {}
        self.ids: dict[int, str] = {}
        self.decided_at: dict[str, int] = {}

    def take(self, record: LogRecord, offset: int) -> Iterator[str]:
        """Apply a record; yields its violations."""
        if read_producers_key(record.key) is not None:
            return
        name = transaction_records.read_key(record.key)
        old = self.transactions.pop(name, None)
        if record.value is None:
            return
        new = transaction_records.read_value(name, record.value)
        self.transactions[name] = new
        producer_id = new.producer.producer_id
        self.ids[producer_id] = name
        yield from self._misstep(old, new)
        live = old is not None and (old.state is TxnState.ONGOING or old.state.is_prepared)
        before = old.partitions if old is not None and live else frozenset()
        if new.state is TxnState.ONGOING:
            grants = self._shared.grants.setdefault(producer_id, {})
            grant = Grant(Place(self._name, offset), new.producer.producer_epoch)
            grants.update(dict.fromkeys(sorted(new.partitions - before), grant))
        elif new.state.is_prepared:
            if old is None or not old.state.is_prepared:
                self.decided_at[name] = offset
            else:
                yield from self._shared.unmarked(producer_id, before - new.partitions)
        elif old is not None and old.state.is_prepared:
            yield from self._shared.unmarked(producer_id, before)
            self._shared.grants.pop(producer_id, None)

    def _misstep(self, old: Transaction | None, new: Transaction) -> Iterator[str]:
        producer_id = new.producer.producer_id
        problem = self._shared.own(producer_id, f"transactional id {new.transactional_id}")
        if problem is not None:
            yield problem
        if old is None:
            if new.state is not TxnState.EMPTY:
                yield f"{new.transactional_id} begins as {new.state.kafka_name} (E9)"
            return
        # At the last epoch: the next producer gets another producer id (E7).
        is_retired = (
            new.state is old.state
            and new.producer.producer_id == old.producer.producer_id
            and new.producer.producer_epoch == transaction_state.EPOCH_MAX
        )
        if not is_retired and new.state not in transaction_state.TRANSITIONS[old.state]:
            yield (
                f"{new.transactional_id} goes from {old.state.kafka_name} "
                f"to {new.state.kafka_name} (E9)"
            )
        same = old.producer.producer_id == producer_id
        if same and new.producer.producer_epoch < old.producer.producer_epoch:
            yield (
                f"{new.transactional_id} goes from epoch {old.producer.producer_epoch} "
                f"back to {new.producer.producer_epoch} (E7)"
            )
        if not same and producer_id in self._shared.written_by:
            yield f"{new.transactional_id} is given producer id {producer_id}, which has data (E7)"

    def check(
        self, partition: TopicPartition, header: BatchHeader, marker: Marker, *, serving: bool
    ) -> str | None:
        """What is wrong with a marker of one of the producers here; see ``Coordinators.check``."""
        transaction = self.transactions.get(self.ids[header.producer_id])
        if transaction is None:
            return "ends a transaction of an id that was forgotten (E10)" if serving else None
        name, state = transaction.transactional_id, transaction.state
        what = f"{_says(marker)} a transaction of {name}"
        is_its = transaction.producer.producer_id == header.producer_id
        if not (is_its and state.is_prepared):
            is_open = is_its and state is TxnState.ONGOING
            is_listed = is_open and partition in transaction.partitions
            if serving or is_listed or (marker.commit and not state.is_commit):
                return f"{what}, which is {state.kafka_name} (E10, E17)"
            return None
        epoch = transaction.producer.producer_epoch
        problem = None
        if marker.commit != state.is_commit:
            problem = f"{what}, which is {state.kafka_name} (E10)"
        elif not self._shared.partitions.is_committed(Place(self._name, self.decided_at[name])):
            problem = f"{what}, whose decision is not committed (E16)"
        elif serving and header.producer_epoch != epoch:
            problem = f"{what} in epoch {header.producer_epoch}, decided in {epoch} (E14)"
        return problem


class VersionedView:
    """One partition of ``__fencelog_versioned``."""

    def __init__(self, name: TopicPartition, shared: Shared) -> None:
        """No record yet."""
        self._name = name
        self._shared = shared
        self.apps: dict[str, App] = {}
        self.producers: dict[int, Joined] = {}
        self.decided_at: dict[str, int] = {}

    def take(self, record: LogRecord, offset: int) -> Iterator[str]:
        """Apply a record; yields its violations."""
        match versioned_records.read_key(record.key):
            case AppKey(name):
                yield from self._take_app(name, record.value, offset)
            case ProducerKey(producer_id):
                yield from self._take_producer(producer_id, record.value, offset)
            case RunKey():
                return

    def _take_app(self, name: str, value: bytes | None, offset: int) -> Iterator[str]:
        old = self.apps.pop(name, None)
        if value is None:
            return
        new = self.apps[name] = versioned_records.read_app(name, value)
        if new.phase.is_ending and (old is None or not old.phase.is_ending):
            self.decided_at[name] = offset
            for producer_id in sorted(new.committing):
                joined = self.producers.get(producer_id)
                if joined is None or (joined.app, joined.incarnation) != (name, new.incarnation):
                    yield f"app {name} commits {producer_id}, not of its incarnation (V1)"
        if old is not None:
            yield from _app_misstep(old, new)
            yield from self._reopened(old, new)

    def _reopened(self, old: App, new: App) -> Iterator[str]:
        """What is wrong with the incarnation of an app that is open now (V1).

        Where nobody has written one record ends an incarnation and opens the next.
        """
        if new.phase is not Phase.OPEN:
            return
        if old.phase is Phase.OPEN and new.incarnation == old.incarnation:
            return
        if new.incarnation != old.incarnation + 1:
            yield f"app {new.app} goes from incarnation {old.incarnation} to {new.incarnation} (V1)"
        for producer_id, joined in self.producers.items():
            if joined.app == new.app and joined.incarnation < new.incarnation:
                yield f"app {new.app} begins anew, with producer {producer_id} from before (V1)"

    def _take_producer(
        self, producer_id: ProducerId, value: bytes | None, offset: int
    ) -> Iterator[str]:
        old = self.producers.pop(producer_id, None)
        if value is None:
            if old is not None:
                yield from self._shared.unmarked(producer_id, old.partitions)
            self._shared.grants.pop(producer_id, None)
            return
        new = versioned_records.read_producer(producer_id, value)
        self.producers[producer_id] = new
        problem = self._shared.own(producer_id, f"app {new.app}, incarnation {new.incarnation}")
        if problem is not None:
            yield problem
        app = self.apps.get(new.app)
        if app is None or app.phase is not Phase.OPEN or app.incarnation != new.incarnation:
            yield f"producer {producer_id} is let into app {new.app}, which is not open (V1)"
        grants = self._shared.grants.setdefault(producer_id, {})
        grant = Grant(Place(self._name, offset), new.producer_epoch)
        before = frozenset() if old is None else old.partitions
        grants.update(dict.fromkeys(sorted(new.partitions - before), grant))

    def check(self, partition: TopicPartition, header: BatchHeader, marker: Marker) -> str | None:
        """What is wrong with a marker of one of the producers here."""
        joined = self.producers[header.producer_id]
        app = self.apps[joined.app]
        what = (
            f"{_says(marker)} producer {header.producer_id} of app {app.app}, version {app.version}"
        )
        if not app.phase.is_ending:
            return f"{what}, which is not decided (E16)"
        if marker.commit != (header.producer_id in app.committing):
            return f"{what}, against the decision (V1)"
        if not self._shared.partitions.is_committed(Place(self._name, self.decided_at[app.app])):
            return f"{what}, whose decision is not committed (E16)"
        if partition not in joined.partitions:
            return f"{what}, which did not add {partition} (V5)"
        return None

    def siblings(self, producer_id: int, partition: TopicPartition) -> list[int]:
        """The producers whose markers belong in one append with this one's (V6)."""
        joined = self.producers[producer_id]
        app = self.apps[joined.app]
        if not app.phase.is_ending or partition in app.written:
            return []
        return [
            other
            for other, each in self.producers.items()
            if each.app == joined.app and partition in each.partitions
        ]


def _says(marker: Marker) -> str:
    return "a marker commits" if marker.commit else "a marker aborts"


def _app_misstep(old: App, new: App) -> Iterator[str]:
    if new.phase not in versioned_state.TRANSITIONS[old.phase]:
        yield f"app {new.app} goes from {old.phase.name} to {new.phase.name} (V1)"
    if old.query_id != new.query_id or old.last_version == NO_VERSION:
        return
    if new.last_version not in {old.last_version, old.last_version + 1}:
        yield f"app {new.app} goes from version {old.last_version} to {new.last_version} (V3)"
    if new.last_version == old.last_version and new.fingerprint != old.fingerprint:
        yield f"app {new.app} has version {new.last_version} with two fingerprints (V3)"


class GroupView:
    """One partition of ``__consumer_offsets``."""

    def __init__(self, shared: Shared) -> None:
        """No record yet."""
        self._shared = shared
        self.offsets: dict[tuple[str, TopicPartition], int] = {}
        self._generations: dict[str, int] = {}
        self.highest_generation = -1
        """Of all groups here, forgotten ones included."""
        self._written: dict[int, tuple[str, TopicPartition, int]] = {}
        """Every offset that was ever written, by the place of its record."""
        self._pending: dict[int, list[int]] = {}
        """Places of what waits for the marker of a producer."""
        self._hidden: set[int] = set()
        """Places of what is pending, or was aborted."""

    def take(self, record: LogRecord, offset: int) -> Iterator[str]:
        """Apply a record; yields its violations."""
        name = group_metadata.read_group_key(record.key)
        if name is not None:
            yield from self._take_group(name, record.value)
            return
        key = group_records.read_key(record.key)
        if key is None:
            return
        if record.value is None:
            self.offsets.pop(key, None)
            return
        old, new = self.offsets.get(key, -1), group_records.read_value(record.value).offset
        self._written[offset] = (*key, int(new))
        if record.producer_id == NO_PRODUCER_ID:
            self.offsets[key] = new
        else:
            self._pending.setdefault(record.producer_id, []).append(offset)
            self._hidden.add(offset)
        asked = (*key, int(new))
        if self._shared.asked[asked] > 0:
            self._shared.asked[asked] -= 1
        elif new < old:
            yield f"group {key[0]} goes from {old} back to {new} on {key[1]}, and no client asked"

    def _take_group(self, name: str, value: bytes | None) -> Iterator[str]:
        if value is None:
            self._generations.pop(name, None)
            return
        old, new = self._generations.get(name, 0), group_metadata.read_group(name, value).generation
        if new < old:
            yield f"group {name} goes from generation {old} back to {new} (E8)"
        self._generations[name] = new
        self.highest_generation = max(self.highest_generation, new)

    def end(self, producer_id: int, *, commit: bool) -> None:
        """The producer's marker is in this log."""
        places = self._pending.pop(producer_id, [])
        if commit:
            self._hidden.difference_update(places)
            for place in places:
                group, partition, offset = self._written[place]
                self.offsets[group, partition] = offset

    def has_shown(self, group: str, partition: TopicPartition, at: int, offset: int) -> str | None:
        """What is wrong with an offset that a group fetched, by the place of its record (E10)."""
        what = f"group {group} fetched {offset} for {partition}, from the record at {at}"
        if self._written.get(at) != (group, partition, offset):
            return f"{what}, which says {self._written.get(at)}"
        if at in self._hidden:
            return f"{what}, whose transaction was not committed (E10)"
        return None


View = TransactionView | VersionedView | GroupView | OwnershipView


class Coordinators:
    """The views of all coordinator logs."""

    def __init__(self, partitions: Partitions) -> None:
        """No log yet."""
        self.shared = Shared(partitions)
        self.grants = Grants()
        self._views: dict[TopicPartition, View] = {}

    def take(self, name: TopicPartition, records: Iterable[tuple[int, LogRecord]]) -> list[str]:
        """Take the records of one batch of a coordinator's log over; what is wrong with them."""
        view = self._views.get(name)
        if view is None:
            view = self._views[name] = self._new_view(name)
        problems: list[str] = []
        for offset, record in records:
            problems += view.take(record, offset)
        return problems

    def end(self, name: TopicPartition, producer_id: int, *, commit: bool) -> None:
        """A marker is in this coordinator's log: what its transaction wrote there counts or not."""
        view = self._views.get(name)
        if isinstance(view, GroupView):
            view.end(producer_id, commit=commit)

    def highest_generation(self, name: TopicPartition) -> int:
        """Of all groups in this log."""
        view = self._views.get(name)
        return view.highest_generation if isinstance(view, GroupView) else -1

    def has_shown(
        self, name: TopicPartition, group: str, partition: TopicPartition, at: int, offset: int
    ) -> str | None:
        """What is wrong with a committed offset that a group fetched, by its record's place."""
        view = self._views.get(name)
        if not isinstance(view, GroupView):
            return f"group {group} fetched {offset} for {partition}, which no log has"
        return view.has_shown(group, partition, at, offset)

    def forget(self, name: TopicPartition) -> None:
        """A crash lost records of this log: the remaining ones are applied again."""
        self._views.pop(name, None)
        for grants in self.shared.grants.values():
            for partition in [p for p, grant in grants.items() if grant.place.log == name]:
                del grants[partition]

    def _new_view(self, name: TopicPartition) -> View:
        if name.topic == TRANSACTION_TOPIC:
            return TransactionView(name, self.shared)
        if name.topic == VERSIONED_TOPIC:
            return VersionedView(name, self.shared)
        if name.topic == OWNERSHIP_TOPIC:
            return OwnershipView(self.grants)
        assert name.topic == GROUP_TOPIC, name
        return GroupView(self.shared)

    def check_begin(self, partition: TopicPartition, header: BatchHeader) -> str | None:
        """What is wrong with a batch that opens a transaction on a partition (E14, V5)."""
        grant = self.shared.grants.get(header.producer_id, {}).get(partition)
        if grant is None:
            return "opens a transaction that no coordinator knows here (E14)"
        if grant.epoch != header.producer_epoch:
            return f"opens a transaction in epoch {header.producer_epoch}, not {grant.epoch} (E14)"
        if not self.shared.partitions.is_committed(grant.place):
            return "opens a transaction before the coordinator's record of it is committed (E16)"
        return None

    def check(
        self, partition: TopicPartition, header: BatchHeader, marker: Marker, *, serving: bool
    ) -> str | None:
        """What is wrong with a transaction marker. It ends the producer's grant on the partition.

        ``serving``: only a start may end what no coordinator lists, by the recorded decision or
        else by an abort (E17).
        """
        self.shared.grants.get(header.producer_id, {}).pop(partition, None)
        for view in self._views.values():
            if isinstance(view, TransactionView) and header.producer_id in view.ids:
                return view.check(partition, header, marker, serving=serving)
            if isinstance(view, VersionedView) and header.producer_id in view.producers:
                return view.check(partition, header, marker)
        if serving or marker.commit:
            return "a marker that no coordinator decided (E16)"
        return None

    def siblings(self, producer_id: int, partition: TopicPartition) -> list[int]:
        """The producers whose markers belong in one append with this one's (V6)."""
        for view in self._views.values():
            if isinstance(view, VersionedView) and producer_id in view.producers:
                return view.siblings(producer_id, partition)
        return []
