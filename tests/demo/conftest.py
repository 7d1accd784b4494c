"""The one Spark session of the test run: a second one with other settings cannot live beside it."""

from tests.spark.conftest import spark

__all__ = ["spark"]
