"""A setting as somebody wrote it, and the error that says where it is wrong."""

from typing import NamedTuple

from fencelog.errors import FencelogError


class ConfigError(FencelogError):
    """A setting has no meaning; the text names place, key and value, and what is allowed."""


class Given(NamedTuple):
    """One setting in one source."""

    key: str
    """Its broker config name."""
    text: str
    name: str
    """What the source calls it: the key, an environment variable, a flag."""
    where: str
    """The source and, in a file, the line; empty for a flag."""

    def refused(self, reason: str) -> ConfigError:
        """The error that says why it is not taken."""
        return ConfigError(f"{self.place}={self.text!r}: {reason}")

    @property
    def place(self) -> str:
        """Where and under which name it was written."""
        return f"{self.where}: {self.name}" if self.where else self.name


class Source(NamedTuple):
    """What one file, the environment or the command line says, later entries over earlier ones."""

    given: list[Given]
    notices: list[str]
    """What the operator should read, of things that are no error."""
