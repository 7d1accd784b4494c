"""The table of settings knows every setting of Kafka's broker, with its type."""

import pytest

from fencelog.settings.kafka_names import KAFKA_KEYS
from fencelog.settings.table import BROKER_KEYS, TOPIC_KEYS
from tests.support.jvm.host import ToolHost

Types = dict[str, str]
INTERNAL = {"internal.segment.bytes"}
"""Topic configs that Kafka's own tests set."""


@pytest.fixture(scope="module")
def kafkas(tools: ToolHost) -> dict[str, Types]:
    """The type of each setting, by scope and name."""
    return {
        scope: dict(line.lower().split() for line in tools.done("ConfigNames", scope).lines)
        for scope in ("broker", "topic")
    }


def test_every_setting_of_kafkas_broker_is_known(kafkas: dict[str, Types]) -> None:
    assert kafkas["broker"].keys() - BROKER_KEYS.keys() - KAFKA_KEYS == set()
    assert len(kafkas["broker"]) > 300


def test_every_setting_of_kafkas_topics_is_known(kafkas: dict[str, Types]) -> None:
    assert kafkas["topic"].keys() - TOPIC_KEYS.keys() - INTERNAL == set()
    assert len(kafkas["topic"]) > 30


def test_a_setting_that_kafka_has_too_has_its_type(kafkas: dict[str, Types]) -> None:
    broker = {alias.key: alias.kind for s in BROKER_KEYS.values() for alias in s.names}
    topic = {key: setting.kind for key, setting in TOPIC_KEYS.items()}
    for ours, theirs in ((broker, kafkas["broker"]), (topic, kafkas["topic"])):
        common = {key: kind.config_type for key, kind in ours.items() if key in theirs}
        assert common == {key: theirs[key] for key in common}
