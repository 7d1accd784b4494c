"""Tests of the client, module by module; real brokers are in ``tests/conformance``."""
