"""The generated modules: up to date, light, and in step with the hand-written tables."""

import subprocess
import sys

import pytest

from fencelog.wire.api_versions import FLEXIBLE_FROM, SUPPORTED, ApiKey
from fencelog.wire.message import Message
from tests.unit.wire.message_values import KAFKA_NAMES, OWN_NAMES, Kind
from tools.generate_messages import committed, generate

REQUESTS = [name for name in KAFKA_NAMES + OWN_NAMES if name.endswith("Request")]
# These two are read and written by hand; their ranges are tested with the hot path.
BY_HAND = {ApiKey.PRODUCE, ApiKey.FETCH}


def test_what_is_committed_is_what_the_generator_writes() -> None:
    assert committed() == generate(), "run: .venv/bin/python -m tools.generate_messages"


@pytest.mark.parametrize("name", REQUESTS)
def test_the_header_table_knows_from_which_version_a_request_is_flexible(name: str) -> None:
    message = Kind(name).message
    assert FLEXIBLE_FROM[ApiKey(message.API_KEY)] == message.FLEXIBLE_FROM


def test_every_advertised_version_has_a_message() -> None:
    made: dict[int, type[Message]] = {}
    for name in REQUESTS:
        message = Kind(name).message
        made[message.API_KEY] = message
    missing = [
        (key, versions)
        for key, versions in SUPPORTED.items()
        if key not in BY_HAND
        and not (
            versions.minimum >= made[key].MIN_VERSION and versions.maximum <= made[key].MAX_VERSION
        )
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
