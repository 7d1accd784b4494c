"""Whether a partition's files may be used: nothing is written or synced after a failure (D2)."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from fencelog.errors import ExhaustedError, StorageError


class Usable:
    """Until it is closed, or a write or sync has failed."""

    def __init__(self, directory: str, when_failed: Callable[[], None]) -> None:
        """Name the directory in errors; call ``when_failed`` at each failure before a close."""
        self._directory = directory
        self._when_failed: Callable[[], None] | None = when_failed
        self.is_closed = False
        self.failure: str | None = None
        """Why no more writes are accepted, or None."""

    def __bool__(self) -> bool:
        """Tell whether ``check`` passes."""
        return not self.is_closed and self.failure is None

    def close(self) -> None:
        """Refuse everything from now on; nobody is told of a failure any more."""
        self.is_closed = True
        self._when_failed = None

    def check(self) -> None:
        """Raise StorageError after a close or a failure."""
        if self.is_closed:
            raise StorageError(f"{self._directory} is closed")
        if self.failure is not None:
            raise StorageError(
                f"{self._directory} accepts no more writes: {self.failure}; restart the broker"
            )

    @contextmanager
    def fails_on_error(self) -> Iterator[None]:
        """Fail on any exception in the block, also on cancellation.

        Not if something ran out before anything was done: the caller may try again.
        """
        try:
            yield
        except ExhaustedError:
            raise
        except BaseException as error:
            self.fail(error)
            raise

    def fail(self, error: BaseException) -> None:
        """Store why no more writes are accepted; a missing file raises StorageError."""
        if self._when_failed is not None:
            self._when_failed()
        if isinstance(error, FileNotFoundError):
            self.failure = f"a file is missing: {error}"
            raise StorageError(f"{self._directory}: {self.failure}") from error
        self.failure = str(error) or type(error).__name__
