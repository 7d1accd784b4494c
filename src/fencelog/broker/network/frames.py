"""Assembles what arrives on one connection into frames.

What arrives first goes to a buffer that all connections share, and is split there. A frame that is
not complete then gets a buffer of its own, into which the rest is received.
"""

from collections import deque
from typing import Protocol

from fencelog.types import Instant
from fencelog.wire.framing import SIZE_BYTES, frame_size

EAGER_FRAME_BYTES = 2 * 1024 * 1024
"""Memory that a frame gets at once, whatever size its prefix announces."""
SCARCE_FRAME_BYTES = 16 * 1024
"""The same while the shared budget is used up."""


class Memory(Protocol):
    """What all connections share."""

    scratch: memoryview
    frame_bytes_max: int

    def reserve(self, size: int) -> bool:
        """Take bytes of the shared budget for queued requests; False when it is used up."""
        ...

    def release(self, size: int) -> None:
        """Return bytes to the budget."""
        ...


class Frames:
    """The frame that is being received, and the start of a size before it."""

    __slots__ = ("_complete", "_filled", "_head", "_memory", "_size", "begun", "open")

    def __init__(self, memory: Memory, complete: deque[bytearray]) -> None:
        """Frames that are complete are appended to ``complete``; they count in the budget."""
        self._memory = memory
        self._complete = complete
        self._head = b""
        self.open: bytearray | None = None
        """The frame that has a buffer of its own: the next bytes belong to it."""
        self._size = 0
        self._filled = 0
        self.begun: Instant | None = None
        """When the first byte of the incomplete frame arrived."""

    @property
    def is_full(self) -> bool:
        """Whether the open frame has no memory for what follows."""
        return self.open is not None and self._filled == len(self.open)

    def target(self) -> memoryview:
        """Return where the next bytes of the open frame go. Raises MemoryError."""
        assert self.open is not None
        if self._filled == len(self.open):
            self._grow(self.open)
        return memoryview(self.open)[self._filled :]

    def fill(self, nbytes: int) -> bool:
        """Take bytes that were received into the open frame; return whether it is complete."""
        frame = self.open
        assert frame is not None
        self._filled += nbytes
        if self._filled < self._size:
            return False
        self.open = self.begun = None
        self._complete.append(frame)
        return True

    def split(self, nbytes: int, now: Instant) -> bool:
        """Split what was received into the shared buffer; return what ``is_full`` says then.

        Raises WireError and MemoryError; frames before a malformed one are complete then.
        """
        view: memoryview = self._memory.scratch[:nbytes]
        begun = self.begun if self._head else None
        self.begun = None
        if self._head:
            view = memoryview(self._head + bytes(view))
            self._head = b""
        position, end = 0, len(view)
        while end - position >= SIZE_BYTES:
            size = frame_size(view[position : position + SIZE_BYTES], self._memory.frame_bytes_max)
            position += SIZE_BYTES
            if end - position < size:
                self._begin(size, view[position:end])
                self.begun = begun or now
                return self.is_full
            frame = bytearray(view[position : position + size])
            self._memory.reserve(size)
            position += size
            begun = None
            self._complete.append(frame)
        if position < end:
            self._head = bytes(view[position:end])
            self.begun = begun or now
        return False

    def close(self) -> None:
        """Drop the open frame."""
        if self.open is not None:
            self._memory.release(len(self.open))
            self.open = None

    def _begin(self, size: int, received: memoryview) -> None:
        """Give a frame its own buffer, with what has arrived of it."""
        has_space = self._memory.reserve(0)
        space = EAGER_FRAME_BYTES if has_space else max(SCARCE_FRAME_BYTES, len(received))
        self.open = bytearray(min(size, space))
        self._memory.reserve(len(self.open))
        self._size = size
        self._filled = len(received)
        # Through a view: assigning to a bytearray's slice would copy twice.
        memoryview(self.open)[: self._filled] = received

    def _grow(self, frame: bytearray) -> None:
        """Give a large frame memory only as its bytes arrive, not for the size it announces."""
        more = min(self._size - len(frame), len(frame))
        grown = bytearray(len(frame) + more)
        self._memory.reserve(more)
        grown[: self._filled] = frame
        self.open = grown
