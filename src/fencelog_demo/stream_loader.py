"""The loader of streams: fencelog's client commits the flights in transactions.

No other producer can write to a stream, because none divides what it has by the key again when a
segment splits.
"""

from collections.abc import Sequence
from pathlib import Path

import fencelog
from fencelog.client.blocking_writers import Producer
from fencelog.errors import FencelogError
from fencelog_demo.events import write_event
from fencelog_demo.loader import TRIES_MAX, WAIT_S, Row, to_abort
from fencelog_demo.settings import FLIGHTS, PARTITIONS, STREAMS


class StreamLoader:
    """Sends transactions and counts; a broken producer is replaced by a new one."""

    def __init__(self, bootstrap_server: str, folder: Path) -> None:
        """Create streams and topics and connect; ``folder`` has the event log."""
        self._folder = folder
        # A broker that was killed is back well before; a commit goes on until then.
        self._client = fencelog.connect(bootstrap_server, request_timeout_s=2 * WAIT_S)
        for name, count in PARTITIONS.items():
            if name in STREAMS:
                self._client.create_stream(name, count)
            else:
                self._client.create_topic(name, count)
        self._producer = self._connected()
        self.aborted_rows = 0
        self.retries = 0

    def load(self, chunk: Sequence[Row]) -> None:
        """Commit these rows in one transaction, however often it takes.

        Raises FencelogError if a commit is not answered: the rows may be there or not.
        """
        for _ in range(TRIES_MAX):
            try:
                self._send(chunk)
            except FencelogError as problem:
                self._recover(problem)
            else:
                self._producer.commit()
                return
        raise TimeoutError(f"a transaction did not commit in {TRIES_MAX} tries")

    def send_and_abort(self, chunk: Sequence[Row]) -> None:
        """Send these rows, marked, in a transaction that is then aborted on purpose."""
        try:
            self._send(to_abort(chunk))
            self._producer.abort()
            self.aborted_rows += len(chunk)
        except FencelogError as problem:
            self._recover(problem)

    def _connected(self) -> Producer:
        return self._client.producer(transactional_id="flights-loader", compression="lz4")

    def _send(self, chunk: Sequence[Row]) -> None:
        self._producer.begin()
        for key, value in chunk:
            self._producer.send(FLIGHTS, value, key=key)
        self._producer.flush()

    def _recover(self, problem: FencelogError) -> None:
        """Continue with a new producer, which aborts what the older one has open."""
        self.retries += 1
        write_event(self._folder, "producer-replaced", reason=str(problem))
        self._producer.close()
        self._producer = self._connected()
