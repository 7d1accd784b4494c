"""fencelog: an exactly-once event log that speaks the Kafka protocol."""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("fencelog")
except PackageNotFoundError:
    # Run from a source tree that was never installed.
    __version__ = "0.0.0"
