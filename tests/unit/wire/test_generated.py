"""The generated modules: up to date, light, and in step with the hand-written tables."""

import subprocess
import sys

from fencelog.wire.api_versions import ApiKey, BrokerApiKey
from tests.unit.wire.message_values import KAFKA_NAMES, OWN_NAMES, Kind
from tools.generate_messages import committed, generate

REQUESTS = [name for name in KAFKA_NAMES + OWN_NAMES if name.endswith("Request")]
# These two are read and written by hand; their ranges are tested with the hot path.
BY_HAND = {ApiKey.PRODUCE, ApiKey.FETCH}


def test_what_is_committed_is_what_the_generator_writes() -> None:
    assert committed() == generate(), "run: .venv/bin/python -m tools.generate_messages"


def test_each_request_of_the_table_has_a_message_in_every_version_that_is_spoken() -> None:
    made = {kind.API_KEY: kind for kind in (Kind(name).message for name in REQUESTS)}
    assert made.keys() == set(ApiKey) | set(BrokerApiKey)
    missing = [
        (key, key.versions)
        for key in (set(ApiKey) | set(BrokerApiKey)) - BY_HAND
        if key.versions.minimum < made[key].MIN_VERSION
        or key.versions.maximum > made[key].MAX_VERSION
    ]
    assert not missing


def test_messages_load_without_kafka_python() -> None:
    probe = (
        "import sys, fencelog.wire.messages.metadata, fencelog.wire.hot, fencelog.wire.records;"
        "print(sorted({'kafka', 'lz4', 'cramjam', 'asyncio'} & set(sys.modules)))"
    )
    result = subprocess.run(
        [sys.executable, "-c", probe], capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == "[]"
