"""``fencelog`` in a process that notes each write, sync, rename and answer in a trace file.

Run as ``python _launcher.py TRACE ARGUMENTS…``. It wraps the calls through which the product meets
the world, and nothing inside it: the functions of ``os``, the connections of ``sqlite3``, and the
transport of each client's connection. A sync is noted when it begins and when it has ended.
"""

import asyncio
import json
import os
import sqlite3
import sys
import threading
from collections import deque

from fencelog.broker.network.connection import Connection
from fencelog.broker.network.server import Server

SIZE_BYTES = 4


class Trace:
    """Lines of JSON, in the order in which things happened in this process."""

    def __init__(self, path: str) -> None:
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        self._write = os.write
        self._lock = threading.Lock()

    def note(self, what: str, **facts: object) -> None:
        """Add an event."""
        line = json.dumps({"what": what, **facts}) + "\n"
        with self._lock:
            self._write(self._descriptor, line.encode())


def watch_files(trace: Trace) -> None:
    """Note what happens to files by descriptor, name and directory."""
    paths: dict[int, str] = {}
    os_open, os_mkdir, os_replace = os.open, os.mkdir, os.replace

    def opened(path, flags, *args, **kwargs):
        is_new = bool(flags & os.O_CREAT) and not os.path.exists(path)
        descriptor = os_open(path, flags, *args, **kwargs)
        paths[descriptor] = os.path.abspath(path)
        if is_new:
            trace.note("made", path=paths[descriptor])
        return descriptor

    def made(path, *args, **kwargs):
        os_mkdir(path, *args, **kwargs)
        trace.note("made directory", path=os.path.abspath(path))

    def replaced(old, new, *args, **kwargs):
        os_replace(old, new, *args, **kwargs)
        trace.note("renamed", path=os.path.abspath(new), old=os.path.abspath(old))

    def after(what, call):
        def wrapped(descriptor, *args):
            result = call(descriptor, *args)
            trace.note(what, path=paths.get(descriptor, "?"))
            return result

        return wrapped

    def around(call):
        def wrapped(descriptor):
            path = paths.get(descriptor, "?")
            trace.note("sync begins", path=path)
            call(descriptor)
            trace.note("synced", path=path)

        wrapped.__name__ = call.__name__
        return wrapped

    os.open, os.mkdir, os.replace = opened, made, replaced
    os.pwritev = after("wrote", os.pwritev)
    os.fdatasync, os.fsync = around(os.fdatasync), around(os.fsync)


class WatchedConnection(sqlite3.Connection):
    """Notes each commit of the metadata, and how much SQLite syncs for one (2 is FULL)."""

    trace: Trace

    def execute(self, sql, *args):
        done = super().execute(sql, *args)
        if sql.startswith(("COMMIT", "DELETE")):
            (level,) = super().execute("PRAGMA synchronous").fetchone()
            self.trace.note("metadata", synchronous=level)
        return done


def watch_metadata(trace: Trace) -> None:
    """Note the commits of the metadata store."""
    WatchedConnection.trace = trace
    connect = sqlite3.connect

    def watched(*args, **kwargs):
        return connect(*args, factory=WatchedConnection, **kwargs)

    sqlite3.connect = watched


class WatchedTransport:
    """Notes each answer when it is handed to the socket, with the request that it answers."""

    def __init__(self, inner: asyncio.Transport, trace: Trace) -> None:
        self._inner = inner
        self._trace = trace
        self._rest = b""
        self.asked: deque[int] = deque()

    def write(self, data) -> None:
        self.writelines([data])

    def writelines(self, parts) -> None:
        parts = list(parts)
        self._rest += b"".join(parts)
        while len(self._rest) >= SIZE_BYTES:
            end = SIZE_BYTES + int.from_bytes(self._rest[:SIZE_BYTES], "big")
            if len(self._rest) < end:
                break
            self._rest = self._rest[end:]
            self._trace.note("answered", api=self.asked.popleft())
        self._inner.writelines(parts)

    def __getattr__(self, name: str):
        return getattr(self._inner, name)


def watch_answers(trace: Trace) -> None:
    """Note requests when they are taken and answers when they leave."""
    connection_made, handle = Connection.connection_made, Server.handle

    def connected(self, transport) -> None:
        connection_made(self, WatchedTransport(transport, trace))

    def handled(self, frame, connection):
        api = int.from_bytes(frame[:2], "big")
        connection._transport.asked.append(api)
        trace.note("asked", api=api)
        return handle(self, frame, connection)

    Connection.connection_made, Server.handle = connected, handled


def main() -> None:
    """Wrap, then be the command."""
    trace = Trace(sys.argv.pop(1))
    trace.note("started")
    watch_files(trace)
    watch_metadata(trace)
    watch_answers(trace)
    from fencelog.cli.main import main as fencelog

    fencelog()


if __name__ == "__main__":
    main()
