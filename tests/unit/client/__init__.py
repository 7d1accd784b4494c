"""Tests of the client, room by room; real brokers are in ``tests/conformance``."""
