"""The blocking client that Spark, the CLI and scripts use.

One event loop in one thread does all I/O; every method runs a coroutine in it and waits.
A client may be used from several threads, and in a forked child, which opens its own connections
at the first call.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from fencelog.client.admin import Admin
from fencelog.client.blocking_writers import ArrowWriter, Producer
from fencelog.client.elections import Elections
from fencelog.client.groups import Groups
from fencelog.client.model import (
    ANY_WRITER,
    AlreadyCommitted,
    AppDescription,
    ClusterDescription,
    Compression,
    GroupDescription,
    GroupListing,
    Isolation,
    Joined,
    OffsetSpec,
    OpenBatch,
    OwnershipDescription,
    ProduceIsolation,
    ProducerDescription,
    Record,
    ReleasedResource,
    ReplicaEnds,
    TopicDescription,
    TransactionDescription,
    TransactionListing,
    WriterInfo,
)
from fencelog.client.reader import FETCH_BYTES_MAX, Chunk, FetchOptions, PartitionReader, records_of
from fencelog.client.records_buffer import BATCH_BYTES
from fencelog.client.sender import ProducerOptions, Sender, open_sender, producer_options
from fencelog.client.streams.blocking import BlockingStreams
from fencelog.client.topic_changes import TopicChanges
from fencelog.client.transaction_admin import TransactionAdmin
from fencelog.client.versioned_transactions import Transactions
from fencelog.errors import RequestError
from fencelog.types import TopicId, TopicPartition

if TYPE_CHECKING:
    import pyarrow as pa

    from fencelog.client.blocking_claim import Claim

ALL_COLUMNS = frozenset(
    ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType")
)


class Client(BlockingStreams):
    """A client of one cluster. A context manager; ``Client.shared`` keeps one per process."""

    # --- topics and cluster

    def partitions(self, topics: Sequence[str]) -> dict[str, list[int]]:
        """Partition numbers of each topic, sorted.

        Raises RequestError (UNKNOWN_TOPIC_OR_PARTITION) if a topic does not exist.
        """
        return self._loop().run(self._admin().partitions(topics))

    def topics(self, names: Sequence[str] | None = None) -> list[TopicDescription]:
        """These topics, or all, including internal ones, sorted by name.

        Raises RequestError (UNKNOWN_TOPIC_OR_PARTITION) if a named topic does not exist.
        """
        return self._loop().run(self._admin().topics(names))

    def create_topic(
        self,
        name: str,
        partitions: int = 1,
        configs: Mapping[str, str] | None = None,
        replication: int = -1,
    ) -> None:
        """Create a topic. Raises RequestError (TOPIC_ALREADY_EXISTS, INVALID_CONFIG …)."""
        self._loop().run(self._admin().create_topic(name, partitions, configs or {}, replication))

    def delete_topic(self, name: str) -> None:
        """Delete a topic. Raises RequestError (UNKNOWN_TOPIC_OR_PARTITION …)."""
        self._loop().run(self._admin().delete_topic(name))

    def configure_topic(self, name: str, changes: Mapping[str, str | None]) -> None:
        """Set topic configs; None resets one to the broker's default. Raises RequestError."""
        self._loop().run(TopicChanges(self._cluster).configure(name, changes))

    def add_partitions(self, name: str, count: int) -> None:
        """Raise a topic's partition count. Raises RequestError (INVALID_PARTITIONS …)."""
        self._loop().run(TopicChanges(self._cluster).add_partitions(name, count))

    def delete_records(self, offsets: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Delete the records before these offsets; return each partition's log start (D4).

        -1 stands for the high watermark. Raises RequestError (OFFSET_OUT_OF_RANGE …).
        """
        return self._loop().run(TopicChanges(self._cluster).delete_records(offsets))

    def replica_ends(self, partition: TopicPartition, replicas: Sequence[int]) -> list[ReplicaEnds]:
        """Where the log of each replica ends, whoever leads; before an unclean election."""
        return self._loop().run(Elections(self._cluster).replica_ends(partition, replicas))

    def elect_leader(self, partition: TopicPartition, leader: int | None) -> None:
        """Elect a replica that may lack committed records; None: the first one, if in sync.

        Raises RequestError (ELECTION_NOT_NEEDED, ELIGIBLE_LEADERS_NOT_AVAILABLE …).
        """
        self._loop().run(Elections(self._cluster).elect(partition, leader))

    def elect_preferred_leaders(self) -> dict[TopicPartition, RequestError | None]:
        """Elect the first replica of every partition that it does not lead, if it is in sync.

        Returns these partitions, each with the reason if it was not elected. Raises RequestError.
        """
        return self._loop().run(Elections(self._cluster).elect_all())

    def describe_topic(self, name: str) -> TopicDescription:
        """One topic with its configs. Raises RequestError (UNKNOWN_TOPIC_OR_PARTITION)."""
        return self._loop().run(self._admin().describe_topic(name))

    def cluster(self) -> ClusterDescription:
        """Brokers, controller and id of the cluster."""
        return self._loop().run(self._admin().cluster())

    def broker_configs(self, node_id: int) -> dict[str, str | None]:
        """Configs of one broker, by name."""
        return self._loop().run(self._admin().broker_configs(node_id))

    # --- reading

    def offsets(
        self,
        partitions: Iterable[TopicPartition],
        spec: OffsetSpec,
        isolation: Isolation = "transactional",
    ) -> dict[TopicPartition, int]:
        """Offsets of each partition: log start, end, or the first at or after a timestamp (ms).

        ``latest`` is the LSO at ``transactional``, HW at ``replicated``. For a timestamp
        after all records the offset is -1.
        """
        return self._loop().run(self._admin().offsets(list(partitions), spec, isolation))

    def fetch_arrow(
        self,
        partition: TopicPartition,
        start: int,
        end: int,
        *,
        isolation: Isolation = "transactional",
        columns: frozenset[str] | None = None,
        topic_id: TopicId | None = None,
        max_bytes: int = FETCH_BYTES_MAX,
    ) -> Iterator["pa.RecordBatch"]:
        """Records with start ≤ offset < end, as Arrow batches; the next fetch is sent ahead.

        Columns: key, value (binary), topic (string), partition (int32), offset (int64), timestamp
        (us, UTC), timestampType (int32) and, if selected, headers
        (list<struct<key: string, value: binary>>); in that order, those of ``columns`` only (None:
        all but headers). Control records never appear, nor at ``transactional`` isolation aborted
        ones (E10). Raises DataLossError if the log no longer has ``start``, or ends before
        ``end``, or if the topic's id is not ``topic_id`` (None: any).
        """
        from fencelog.client.arrow import decode

        wanted = ALL_COLUMNS if columns is None else columns
        options = FetchOptions(isolation=isolation, max_bytes=max_bytes, topic_id=topic_id)
        for chunk in self._chunks(partition, start, end, options):
            yield from decode(
                chunk.records, chunk.batches, partition, columns=wanted, start=start, end=end
            )

    def fetch(
        self,
        partition: TopicPartition,
        start: int,
        end: int | None = None,
        *,
        isolation: Isolation = "transactional",
        max_bytes: int = FETCH_BYTES_MAX,
    ) -> Iterator[Record]:
        """Records from ``start`` as Python values; without ``end`` it waits for more."""
        options = FetchOptions(isolation=isolation, max_bytes=max_bytes)
        for chunk in self._chunks(partition, start, end, options):
            yield from records_of(chunk, partition, start, end)

    def commit_offsets(self, group: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Commit offsets of a group, as a consumer without membership does (S6)."""
        self._loop().run(self._admin().commit_offsets(group, offsets))

    def committed_offsets(self, group: str) -> dict[TopicPartition, int]:
        """All committed offsets of a group."""
        return self._loop().run(self._admin().committed_offsets(group))

    # --- writing

    def producer(
        self,
        *,
        idempotent: bool = True,
        transactional_id: str | None = None,
        compression: Compression | None = None,
        isolation: ProduceIsolation = "read_committed",
        transaction_timeout_ms: int = 60_000,
        batch_bytes: int = BATCH_BYTES,
    ) -> Producer:
        """A producer of Python records, for the CLI and scripts.

        ``read_uncommitted`` is acks=1 and never idempotent (F5): a batch whose response is lost is
        sent again, and may be stored twice. With a transactional id the previous producer is fenced
        before this returns (E7).
        """
        options = producer_options(
            transactional_id,
            compression,
            transaction_timeout_ms,
            idempotent=idempotent,
            isolation=isolation,
        )
        loop = self._loop()
        sender = loop.run(open_sender(self._cluster, options))
        return Producer(loop, self._cluster, sender, batch_bytes=batch_bytes)

    def arrow_writer(
        self,
        *,
        topic: str | None = None,
        compression: Compression | None = None,
        batch_bytes: int = BATCH_BYTES,
    ) -> ArrowWriter:
        """An idempotent writer of Arrow batches without a transaction (at-least-once sinks)."""
        options = ProducerOptions(compression=compression or "none")
        sender = self.run(lambda cluster: open_sender(cluster, options))
        return self.writer_of(sender, topic=topic, batch_bytes=batch_bytes)

    def versioned_writer(
        self,
        joined: Joined,
        *,
        topic: str | None = None,
        compression: Compression | None = None,
        batch_bytes: int = BATCH_BYTES,
    ) -> ArrowWriter:
        """A writer of Arrow batches for one attempt; renews its transaction until closed (V7)."""
        options = ProducerOptions(joined=joined, compression=compression or "none")
        sender = self.run(lambda cluster: open_sender(cluster, options))
        return self.writer_of(sender, topic=topic, batch_bytes=batch_bytes)

    def writer_of(
        self, sender: Sender, *, topic: str | None = None, batch_bytes: int = BATCH_BYTES
    ) -> ArrowWriter:
        """A writer of Arrow batches over a sender that was opened in this client's loop."""
        loop = self._loop()
        return ArrowWriter(loop, self._cluster, sender, topic=topic, batch_bytes=batch_bytes)

    # --- versioned transactions

    def join_transaction(
        self,
        app: str,
        query_id: str,
        run_id: str,
        version: int,
        timeout_ms: int = 60_000,
        takeover: bool = False,
        writer: WriterInfo = ANY_WRITER,
        allow_gaps: bool = False,
    ) -> Joined | AlreadyCommitted:
        """Open transaction (app, version) or join it; a new producer for this attempt.

        ``allow_gaps``: versions may be left out.
        Raises RequestError: RUN_FENCED (V2), STALE_VERSION, VERSION_GAP (V3), APP_IN_USE (V4).
        """
        transactions = Transactions(self._cluster)
        return self._loop().run(
            transactions.join(
                app, query_id, run_id, version, timeout_ms, takeover, writer, allow_gaps
            )
        )

    def renew_transaction(self, app: str, query_id: str, run_id: str, version: int) -> None:
        """Restart the timeout of the open transaction (V7)."""
        self._loop().run(Transactions(self._cluster).renew(app, query_id, run_id, version))

    def commit_transaction(
        self,
        app: str,
        query_id: str,
        run_id: str,
        version: int,
        fingerprint: bytes,
        producer_ids: Sequence[int],
        takeover: bool = False,
        allow_gaps: bool = False,
    ) -> None:
        """Commit (app, version): the named producers commit, all others abort.

        A repeated commit has no effect (V3). Raises RequestError: TRANSACTION_ABORTED (V1),
        RUN_FENCED, VERSION_CONFLICT, STALE_VERSION.
        """
        transactions = Transactions(self._cluster)
        self._loop().run(
            transactions.commit(
                app, query_id, run_id, version, fingerprint, producer_ids, takeover, allow_gaps
            )
        )

    def abort_transaction(
        self, app: str, query_id: str, run_id: str, version: int, *, ends_run: bool = False
    ) -> None:
        """Abort the open incarnation, unless it is committed; ``ends_run``: no more of the run."""
        transactions = Transactions(self._cluster)
        self._loop().run(transactions.abort(app, query_id, run_id, version, ends_run))

    def describe_app(self, app: str) -> AppDescription:
        """The state of an app: its last version and open transaction."""
        return self._loop().run(Transactions(self._cluster).describe(app))

    # --- transactions, for operators

    def list_transactions(
        self,
        *,
        states: Collection[str] = (),
        producer_ids: Collection[int] = (),
        longer_than_ms: int | None = None,
    ) -> list[TransactionListing]:
        """All transactional ids, sorted, or those that match the filters.

        ``states`` are Kafka's names; ``longer_than_ms``: whose transaction began longer ago.
        """
        admin = TransactionAdmin(self._cluster)
        return self._loop().run(admin.listed(states, producer_ids, longer_than_ms))

    def describe_transaction(self, transactional_id: str) -> TransactionDescription:
        """One transactional id. Raises RequestError (TRANSACTIONAL_ID_NOT_FOUND)."""
        return self._loop().run(TransactionAdmin(self._cluster).describe(transactional_id))

    def open_batch(self, app: str) -> OpenBatch | None:
        """The app's open or ending transaction. Raises RequestError where no app has the name."""
        return self._loop().run(TransactionAdmin(self._cluster).open_batch(app))

    def abort_open_transaction(self, transactional_id: str) -> TransactionDescription:
        """Let the coordinator abort the id's open transaction and fence its producer (E7).

        Returns what was aborted. Raises RequestError: TRANSACTIONAL_ID_NOT_FOUND, or
        INVALID_TXN_STATE if no transaction is open, or it is decided already.
        """
        return self._loop().run(TransactionAdmin(self._cluster).abort(transactional_id))

    def describe_producers(
        self, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, list[ProducerDescription]]:
        """The active producers of each partition, and their open transactions there."""
        return self._loop().run(TransactionAdmin(self._cluster).producers(list(partitions)))

    def find_hanging_transactions(
        self, partitions: Iterable[TopicPartition] | None = None, *, before_ms: int | None = None
    ) -> list[ProducerDescription]:
        """Hanging transactions, sorted by partition and offset.

        ``partitions``: those to search; None: all. ``before_ms``: only transactions whose newest
        record is older than this time.
        """
        places = None if partitions is None else list(partitions)
        return self._loop().run(TransactionAdmin(self._cluster).find_hanging(places, before_ms))

    def abort_hanging_transaction(
        self, partition: TopicPartition, start_offset: int
    ) -> ProducerDescription:
        """Abort the hanging transaction that begins at this offset.

        Returns what was aborted. Raises RequestError (INVALID_TXN_STATE) if none begins there,
        or a coordinator lists it.
        """
        work = TransactionAdmin(self._cluster).abort_hanging(partition, start_offset)
        return self._loop().run(work)

    # --- groups

    def list_groups(self) -> list[GroupListing]:
        """All groups, sorted by name."""
        return self._loop().run(Groups(self._cluster).list())

    def describe_group(self, group: str) -> GroupDescription:
        """Members and offsets of a group. Raises RequestError (GROUP_ID_NOT_FOUND)."""
        return self._loop().run(Groups(self._cluster).describe(group))

    def delete_group(self, group: str) -> None:
        """Delete a group without members. Raises RequestError (NON_EMPTY_GROUP)."""
        self._loop().run(Groups(self._cluster).delete(group))

    # --- ownership

    def own(
        self,
        resources: str | Iterable[str],
        *,
        group: str | None = None,
        generation: int | None = None,
        wait: bool | float = False,
        transactional_id: str | None = None,
        lease_s: float = 10.0,
        holder: str | None = None,
        on_waiting: "Callable[[int], None] | None" = None,
    ) -> "Claim":
        """Claim resources, all or none; returns once the claim is granted. A context manager.

        A resource is any string; ``topic/partition`` names a partition, of which only the owner
        then writes, or with a ``group`` commits that group's offsets (O8).

        ``generation``: the caller's attempt; a live owner with a lower or equal one is severed,
        one with a higher one refuses the claim (O1, O4). None: the one after the remembered one.
        ``wait``: True, or for so many seconds, waits until the resources are free, and severs
        nobody; ``on_waiting`` is told how many claims are before this one, in the client's thread.
        ``transactional_id``: a name, from which a transactional id is derived for each grant; only
        the newest can write (``Claim.transactional_id``). A claim with the same name in the same
        group takes over from the other one, whatever their resources are. ``lease_s``: how long the
        claim lives without an answer from the broker (0.5 to 900). ``holder``: who claims, to be
        shown to others; host and process id by default.

        Raises ClaimRefusedError if an owner is in the way or the wait is over, ValueError for a
        lease out of range, RequestError (UNKNOWN_TOPIC_OR_PARTITION, UNSUPPORTED_VERSION …) for all
        else.
        """
        from fencelog.client.blocking_claim import Claim
        from fencelog.client.claim import Claim as ClaimCore
        from fencelog.client.grants import claim_options, wait_seconds

        options = claim_options(
            resources,
            group=group,
            generation=generation,
            transactional_id=transactional_id,
            lease_s=lease_s,
            holder=holder,
        )
        loop = self._loop()
        core = ClaimCore(self._cluster, options, on_waiting)
        loop.run(core.open(wait_seconds(wait)))
        return Claim(loop, core)

    def describe_ownership(
        self, resources: Sequence[str] | None = None, *, group: str | None = None
    ) -> list[OwnershipDescription]:
        """The resources of a group that were ever claimed, by name: these, or all."""
        from fencelog.client.ownership import Ownership

        return self._loop().run(Ownership(self._cluster).describe(group, resources))

    def describe_all_ownership(self) -> list[OwnershipDescription]:
        """Every resource that was ever claimed, by group and name."""
        from fencelog.client.ownership import Ownership

        return self._loop().run(Ownership(self._cluster).describe_all())

    def watch_ownership(
        self, resources: Sequence[str] | None = None, *, group: str | None = None
    ) -> Iterator[list[OwnershipDescription]]:
        """The resources of a group as they are, then those that have changed, without end."""
        from fencelog.client.ownership import Ownership

        loop = self._loop()
        changes = Ownership(self._cluster).watch(group, resources)

        async def following() -> list[OwnershipDescription]:
            return await anext(changes)

        while True:
            yield loop.run(following())

    def release_ownership(
        self, resources: Sequence[str], *, group: str | None = None
    ) -> list[ReleasedResource]:
        """Free resources, whoever holds them: each claim that has one of them ends as a whole.

        A holder that runs claims again where nobody waits: stop it first.
        """
        from fencelog.client.ownership import Ownership

        return self._loop().run(Ownership(self._cluster).release(group, resources))

    # --- inside

    def _admin(self) -> Admin:
        return Admin(self._cluster)

    def _chunks(
        self, partition: TopicPartition, start: int, end: int | None, options: FetchOptions
    ) -> Iterator[Chunk]:
        loop = self._loop()
        reader = PartitionReader(self._cluster, partition, start, end, options)
        return loop.one_ahead(reader.next_chunk)
