"""The table of settings is whole: names, defaults, fields, and the page that is written from it."""

from pathlib import Path

import pytest

from fencelog.broker.config import BrokerConfig
from fencelog.coordination.streams.settings import StreamSettings
from fencelog.log.config import LogConfig
from fencelog.settings.fields import bound
from fencelog.settings.kafka_names import CHECKED, LISTENER_KEYS, NO_EFFECT, REMOVED
from fencelog.settings.setting import Setting
from fencelog.settings.table import BROKER_KEYS, BROKER_SETTINGS, SETTINGS
from fencelog.settings.topic_table import TOPIC_SETTINGS
from tools.settings_page import COMMAND, PAGE, page

ROOT = Path(__file__).parents[3]
ADDRESSES = {"listeners", "advertised.listeners"}
"""Whose fields are host and port."""


def test_a_name_stands_in_one_place() -> None:
    names = [alias.key for setting in SETTINGS for alias in setting.names if alias.key]
    names += [*CHECKED, *LISTENER_KEYS, *NO_EFFECT, *REMOVED]
    assert len(names) == len(set(names))
    topic_keys = [setting.topic_key for setting in TOPIC_SETTINGS]
    assert len(topic_keys) == len(set(topic_keys))


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda s: s.key or s.topic_key)
def test_a_default_is_a_value_under_each_of_its_names(setting: Setting) -> None:
    assert setting.kind.parse(setting.default_text) == setting.default
    alias = setting.default_alias
    assert setting.in_own_unit(alias, setting.default_of(alias)) == setting.default_text


def test_every_setting_that_is_used_has_a_field_and_no_field_is_without_one() -> None:
    configs = (LogConfig, StreamSettings, BrokerConfig)
    fields = {_name(each.setting) for config in configs for each in bound(config)}
    assert fields == {_name(s) for s in SETTINGS if s.effect == "sets"} - ADDRESSES


def _name(setting: Setting) -> str:
    return setting.key or setting.topic_key


def test_without_a_word_the_broker_listens_where_the_table_says() -> None:
    config = BrokerConfig(data_dir="d")
    assert BROKER_KEYS["listeners"].default == f"PLAINTEXT://{config.host}:{config.port}"


def test_only_defaults_of_topics_change_while_a_broker_runs() -> None:
    assert all(setting.dynamic for setting in TOPIC_SETTINGS)
    assert not any(setting.dynamic for setting in BROKER_SETTINGS)
    assert BROKER_KEYS["broker.id"] is BROKER_KEYS["node.id"]


def test_the_page_has_the_tables_of_the_settings() -> None:
    text = (ROOT / PAGE).read_text("utf-8")
    assert page(text) == text, f"the page is behind the table: run {COMMAND}"
