"""A task's part: rows become finished record batches, in the message or in a file."""

import math
import os
import uuid
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from fencelog.adapters.system_clock import system_stopwatch
from fencelog.client.arrow_encode import Encoder
from fencelog.client.batches import EncodedBatch
from fencelog.client.blocking import Client
from fencelog.client.blocking_writers import ENCODE_BYTES
from fencelog.client.records_buffer import BATCH_BYTES
from fencelog.errors import ErrorCode, FencelogError, RequestError
from fencelog.spark.driver_commit.staged import Piece, Staged, sealed
from fencelog.spark.driver_commit.staging import Output, Staging, staging_of
from fencelog.spark.identity import BatchIdentity
from fencelog.spark.options import OptionError, SinkOptions
from fencelog.spark.planning import connect
from fencelog.spark.schema import to_write

if TYPE_CHECKING:
    import pyarrow

INLINE_BYTES_MAX: Final = 1 << 20
"""What an attempt hands over in its message; more goes to a file."""
MAX_MESSAGE_BYTES: Final = 1_048_588
"""Kafka's default of ``max.message.bytes``, of one record batch."""
INCOMPRESSIBLE: Final = 0.98
"""A codec may make a batch larger by a few bytes in a thousand."""
LIMIT_VALID_S: Final = 60.0
"""How long a topic's limit is believed: to ask takes two requests, and small batches come often."""

_limits: dict[tuple[int, str, str], tuple[float, int]] = {}
"""What this process has been told, and when: by process, servers and topic."""


def stage(
    options: SinkOptions,
    identity: BatchIdentity,
    roles: tuple[tuple[str, str], ...],
    rows: Iterator["pyarrow.RecordBatch"],
) -> Staged:
    """Encode one attempt's rows for the driver. Nothing of it is on the broker yet."""
    attempt = _Attempt(connect(options.connection), options, identity)
    try:
        for batch in rows:
            if batch.num_rows:
                attempt.write(to_write(batch, roles))
        return attempt.finish()
    except BaseException:
        attempt.discard()
        raise


class _Attempt:
    """Collects rows, encodes them, and keeps the batches."""

    def __init__(self, client: Client, options: SinkOptions, identity: BatchIdentity) -> None:
        self._client = client
        self._options = options
        self._identity = identity
        self._limits: dict[str, int] = {}
        self._encoder: Encoder | None = None
        self._waiting: list[pyarrow.RecordBatch] = []
        self._waiting_bytes = 0
        self._rows = 0
        self._pieces: list[Piece] = []
        self._inline = bytearray()
        self._staging: Staging | None = None
        self._path: str | None = None
        self._file: Output | None = None

    def write(self, batch: "pyarrow.RecordBatch") -> None:
        self._rows += batch.num_rows
        self._waiting.append(batch)
        self._waiting_bytes += batch.nbytes
        if self._waiting_bytes >= ENCODE_BYTES:
            self._encode()

    def finish(self) -> Staged:
        self._encode()
        if self._file is not None and self._staging is not None:
            self._staging.finish(self._file)
        return Staged(
            self._identity, self._rows, tuple(self._pieces), bytes(self._inline), self._path
        )

    def discard(self) -> None:
        """Leave nothing behind."""
        if self._file is not None and self._staging is not None and self._path is not None:
            with suppress(OSError):  # the error that led here is what matters
                self._file.close()
            self._staging.remove(self._path)

    def _encode(self) -> None:
        waiting, self._waiting, self._waiting_bytes = self._waiting, [], 0
        if not waiting:
            return
        encoder = self._encoder or self._new_encoder()
        encoder.check(waiting[0].schema)
        topics, highest = encoder.topics(waiting), encoder.highest_partition(waiting)
        encoder = self._within_limits(encoder, topics)
        counts = self._client.run(lambda cluster: cluster.partition_counts(topics, highest))
        for batches in encoder.encode(waiting, counts):
            for batch in batches:
                self._keep(batch)

    def _new_encoder(self) -> Encoder:
        least = min(self._limits.values(), default=MAX_MESSAGE_BYTES)
        self._encoder = Encoder(
            topic=self._options.topic,
            batch_bytes=min(BATCH_BYTES, max(int(least * INCOMPRESSIBLE), 1)),
            compression=self._options.compression,
        )
        return self._encoder

    def _within_limits(self, encoder: Encoder, topics: Sequence[str]) -> Encoder:
        """An encoder whose batches these topics accept."""
        new = [topic for topic in topics if topic not in self._limits]
        for topic in new:
            self._limits[topic] = self._limit(topic)
        return self._new_encoder() if new else encoder

    def _limit(self, topic: str, *, anew: bool = False) -> int:
        key = (os.getpid(), self._options.connection.bootstrap_servers, topic)
        now_s = system_stopwatch()
        told_s, limit = _limits.get(key, (-math.inf, 0))
        if anew or now_s - told_s > LIMIT_VALID_S:
            limit = _max_message_bytes(self._client, topic)
            _limits[key] = now_s, limit
        return limit

    def _keep(self, batch: EncodedBatch) -> None:
        content = sealed(batch)
        topic, partition = batch.partition
        if len(content) > self._limits[topic]:
            self._limits[topic] = self._limit(topic, anew=True)
        if len(content) > self._limits[topic]:
            raise FencelogError(
                f"a record for topic {topic} makes a record batch of {len(content)} bytes, and the"
                f" topic's max.message.bytes is {self._limits[topic]}: raise it, or write smaller"
                " records. Nothing of this batch was written"
            )
        self._pieces.append(Piece(topic, partition, len(content)))
        if self._file is None and len(self._inline) + len(content) > INLINE_BYTES_MAX:
            self._create()
            self._append(bytes(self._inline))
            self._inline.clear()
        if self._file is None:
            self._inline += content
        else:
            self._append(bytes(content))

    def _append(self, content: bytes) -> None:
        assert self._staging is not None, "the file is created first"
        assert self._file is not None, "the file is created first"
        self._staging.append(self._file, content)

    def _create(self) -> None:
        self._staging = staging_of(self._options)
        if self._staging is None:
            raise OptionError(
                "a task of this write has more than 1 MiB to hand to the driver: set option"
                " 'stagingLocation' to a folder that the driver and all executors share"
            )
        self._path, self._file = self._staging.create(
            self._identity, str(uuid.UUID(bytes=os.urandom(16), version=4))
        )


def _max_message_bytes(client: Client, topic: str) -> int:
    """The topic's limit; Kafka's default where this user may not ask for it."""
    try:
        limit = client.describe_topic(topic).configs.get("max.message.bytes")
    except RequestError as error:
        if error.code is not ErrorCode.TOPIC_AUTHORIZATION_FAILED:
            raise
        limit = None
    return int(limit or MAX_MESSAGE_BYTES)
