"""A client's connections, and the thread with the event loop that they live in.

A client may be used from several threads, and in a forked child, which opens its own connections
at the first call.
"""

import os
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from types import TracebackType
from typing import Any, ClassVar, Self, TypeVar

from fencelog.client.cluster import Cluster, ClusterOptions
from fencelog.client.loop_thread import LoopThread, keep_for_ever
from fencelog.rpc.failures import client_closed

T = TypeVar("T")


class ConnectedClient:
    """The life of a blocking client: its options, connections, thread and end.

    ``api_timeout_s`` limits every call: until then lost connections are reopened and retriable
    errors retried; then ``RequestError`` is raised. ``request_timeout_s`` limits one request, and
    the call where ``api_timeout_s`` is None.
    """

    _shared: ClassVar[dict[tuple[object, ...], Any]] = {}
    _shared_lock: ClassVar[threading.Lock] = threading.Lock()

    def __init__(
        self,
        bootstrap_servers: str,
        *,
        client_id: str = "fencelog",
        request_timeout_s: float = 30.0,
        api_timeout_s: float | None = None,
    ) -> None:
        """Connect lazily: nothing is sent before the first call."""
        options = ClusterOptions(
            bootstrap_servers=bootstrap_servers,
            client_id=client_id,
            request_timeout_s=request_timeout_s,
            api_timeout_s=api_timeout_s,
        )
        self._begin(options)

    def _begin(self, options: ClusterOptions) -> None:
        self._options, self._cluster = options, Cluster(options)
        self._lock = threading.Lock()
        self._thread: LoopThread | None = None
        self._closed = False

    @classmethod
    def shared(
        cls,
        bootstrap_servers: str,
        *,
        client_id: str = "fencelog",
        request_timeout_s: float = 30.0,
        api_timeout_s: float | None = None,
    ) -> Self:
        """Return this process's client with these options. Do not close it."""
        key = (cls, os.getpid(), bootstrap_servers, client_id, request_timeout_s, api_timeout_s)
        with cls._shared_lock:
            client: Self | None = cls._shared.get(key)
            if client is None or client._closed:  # noqa: SLF001 - of this class
                client = cls(
                    bootstrap_servers,
                    client_id=client_id,
                    request_timeout_s=request_timeout_s,
                    api_timeout_s=api_timeout_s,
                )
                cls._shared[key] = client
            return client

    def __enter__(self) -> Self:
        """Return the client."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close the client."""
        self.close()

    def close(self) -> None:
        """Close connections and stop the thread. Harmless twice."""
        self._closed = True
        thread, self._thread = self._thread, None
        if thread is not None and thread.owned:
            thread.close()

    def run(self, work: Callable[[Cluster], Coroutine[Any, Any, T]]) -> T:
        """Run a coroutine with this client's connections, in its loop, and wait."""
        return self._loop().run(work(self._cluster))

    def submit(self, work: Callable[[Cluster], Coroutine[Any, Any, T]]) -> Future[T]:
        """Start a coroutine as ``run`` does; the future answers in any thread."""
        return self._loop().submit(work(self._cluster))

    def _loop(self) -> LoopThread:
        """Return the loop's thread, started at the first call and again after a fork."""
        if self._closed:
            raise client_closed()
        thread = self._thread
        if thread is not None and thread.owned:
            return thread
        if thread is not None:
            # A thread that does not exist after the fork may have held the lock.
            self._lock = threading.Lock()
        with self._lock:
            if self._thread is thread:
                if thread is not None:
                    keep_for_ever((thread, self._cluster))
                    self._cluster = Cluster(self._options)
                self._thread = LoopThread("fencelog-client", self._cluster.close)
            assert self._thread is not None
            return self._thread

    def __getstate__(self) -> dict[str, Any]:
        """Pickle the options only: the copy opens its own connections."""
        return {"options": self._options}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Connect again, lazily."""
        self._begin(state["options"])


def _after_fork() -> None:
    ConnectedClient._shared_lock = threading.Lock()  # noqa: SLF001 - the parent may have held it


os.register_at_fork(after_in_child=_after_fork)
