"""What is closed at the end of a ``with`` block."""

from abc import ABC, abstractmethod
from typing import Self


class Closing(ABC):
    """A base for what has to be closed, whatever happens."""

    @abstractmethod
    def close(self) -> None:
        """End it."""

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(self, *exc: object) -> None:
        """Close it."""
        self.close()
