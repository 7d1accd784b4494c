"""The broker's log on stderr: one line for each event, written by a thread of its own.

Nobody may be reading stderr, and a write to a full pipe waits. So the loop only queues lines; what
does not fit is dropped and counted. A line may quote what a client sent (its id, a topic's name):
it is escaped and cut, so that no client can forge another line. Lines that one peer causes again
and again are counted after the first few.
"""

import logging
import os
import threading
import time  # noqa: TID251 - the writer's thread has no loop
from collections import OrderedDict, deque
from collections.abc import Hashable
from typing import Self

LINES_MAX = 2_000
"""Lines that wait for the writer; above it, lines are dropped."""
LINE_CHARACTERS_MAX = 4_000
TRACE_CHARACTERS_MAX = 200_000
REPEATED_MAX = 10
"""Lines of one kind from one peer in an interval; the others are counted."""
INTERVAL_S = 60.0
KINDS_MAX = 1_000
FLUSH_S = 2.0
"""How long an end waits for what is queued."""
_STDERR = 2
_TRACE_PREFIX = "    | "


class LogOutput(logging.Handler):
    """Formats records where they are logged, and writes them in its own thread."""

    def __init__(self, descriptor: int = _STDERR) -> None:
        """Start the thread; ``close`` ends it."""
        super().__init__()
        self.setFormatter(OneLine("%(asctime)s %(levelname)s %(name)s: %(message)s"))
        self._descriptor = descriptor
        self._repetition = Repetition()
        self._changed = threading.Condition()
        self._lines: deque[str] = deque()
        self._dropped = 0
        self._closing = False
        self._thread = threading.Thread(target=self._write_all, name="fencelog-log", daemon=True)
        self._thread.start()

    @classmethod
    def install(cls) -> Self:
        """Make it the output of everything that is logged in this process."""
        output = cls()
        logging.basicConfig(handlers=[output], level=logging.INFO, force=True)
        return output

    def emit(self, record: logging.LogRecord) -> None:
        """Queue a record, unless its peer has caused too many like it."""
        peer = getattr(record, "peer", None)
        if peer is not None:
            with self._changed:
                if not self._repetition.admits((peer, record.msg), time.monotonic()):
                    return
        self.line(self.format(record))

    def line(self, text: str) -> None:
        """Queue a line as it is."""
        with self._changed:
            if len(self._lines) < LINES_MAX:
                self._lines.append(text)
                self._changed.notify()
            else:
                self._dropped += 1

    def close(self) -> None:
        """Write what is queued, as far as stderr takes it in time, and end the thread."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join(FLUSH_S)
        super().close()

    def _write_all(self) -> None:
        is_open = True
        while is_open:
            with self._changed:
                if not self._lines and not self._closing:
                    self._changed.wait(INTERVAL_S)
                is_open = not self._closing
                lines = list(self._lines)
                self._lines.clear()
                dropped, self._dropped = self._dropped, 0
                lines += self._repetition.counted(None if self._closing else time.monotonic())
            if dropped:
                lines.append(f"{dropped} lines of the log were dropped: nobody reads stderr")
            for line in lines:
                _write(self._descriptor, f"{line}\n".encode(errors="backslashreplace"))


def _write(descriptor: int, data: bytes) -> None:
    """Write all bytes; where stderr is closed, nothing is left to tell it to."""
    try:
        while data:
            data = data[os.write(descriptor, data) :]
    except OSError:
        return


class OneLine(logging.Formatter):
    """A record as one line; the lines of a traceback follow it with a mark before each."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's name
        """Return the line, escaped and cut."""
        return escaped(super().formatMessage(record), LINE_CHARACTERS_MAX)

    def formatException(self, ei: object) -> str:  # noqa: N802 - logging's name
        """Return the traceback."""
        trace = super().formatException(ei)  # type: ignore[arg-type]
        return marked(trace)


def marked(text: str) -> str:
    """Return a text of many lines that none can take for lines of the log."""
    lines = text[:TRACE_CHARACTERS_MAX].split("\n")
    return "\n".join(_TRACE_PREFIX + escaped(line, LINE_CHARACTERS_MAX) for line in lines)


def escaped(text: str, characters_max: int) -> str:
    """Return a text without control characters or line ends, cut where it is long."""
    if len(text) > characters_max:
        text = f"{text[:characters_max]}… ({len(text) - characters_max} more characters)"
    if text.isprintable():
        return text
    return "".join(
        each if each.isprintable() else each.encode("unicode_escape").decode() for each in text
    )


class Repetition:
    """Lets the first lines of a kind through in each interval, and counts the others."""

    def __init__(self) -> None:
        """Start without kinds."""
        self._begun: OrderedDict[Hashable, float] = OrderedDict()
        self._seen: dict[Hashable, int] = {}
        self._ended: list[tuple[Hashable, int]] = []

    def admits(self, kind: Hashable, now: float) -> bool:
        """Whether another line of this kind is written now."""
        self._end_old(now)
        if kind not in self._begun:
            if len(self._begun) >= KINDS_MAX:
                self._end(next(iter(self._begun)))
            self._begun[kind] = now
            self._seen[kind] = 0
        self._seen[kind] += 1
        return self._seen[kind] <= REPEATED_MAX

    def counted(self, now: float | None) -> list[str]:
        """Return a line for each ended interval that had more; None ends all of them."""
        self._end_old(float("inf") if now is None else now)
        ended, self._ended = self._ended, []
        return [
            escaped(f"{count} more lines like this, within {INTERVAL_S:.0f} s: {kind}", 400)
            for kind, count in ended
        ]

    def _end_old(self, now: float) -> None:
        while self._begun:
            kind, begun = next(iter(self._begun.items()))
            if now - begun < INTERVAL_S:
                return
            self._end(kind)

    def _end(self, kind: Hashable) -> None:
        del self._begun[kind]
        more = self._seen.pop(kind) - REPEATED_MAX
        if more > 0:
            self._ended.append((kind, more))
