"""What a name means that is no setting: a typing error, another scope, or nothing here."""

from collections.abc import Iterable

from fencelog.settings.kafka_names import KAFKA_KEYS, REMOVED
from fencelog.settings.table import BROKER_KEYS, TOPIC_KEYS

NAME_LENGTH_MAX = 100
"""What is longer is compared with no name: it is none of ours misspelt."""
_PER_LISTENER = "listener.name."


def is_kafkas(key: str) -> bool:
    """Whether a Kafka broker knows this name and it sets nothing here."""
    if key.startswith(_PER_LISTENER):
        _, _, of_listener = key.removeprefix(_PER_LISTENER).partition(".")
        _, _, of_mechanism = of_listener.partition(".")  # of a SASL mechanism on that listener
        return any(
            each in KAFKA_KEYS or each in BROKER_KEYS for each in (of_listener, of_mechanism)
        )
    return key in KAFKA_KEYS


def is_known(key: str) -> bool:
    """Whether a broker's file or environment may have this name."""
    return key in BROKER_KEYS or is_kafkas(key)


def unknown_broker_key(key: str) -> str:
    """A sentence on a name that ``is_known`` does not know."""
    setting = TOPIC_KEYS.get(key)
    if setting is not None:
        default = f"; the default of all topics is {setting.key}" if setting.key else ""
        return f"{key} is a setting of a topic, not of the broker{default}"
    if key in REMOVED:
        return f"{key} is no setting of Kafka any more; write {REMOVED[key]}"
    return f"{key} is not a setting of fencelog{suggestion(key, [*BROKER_KEYS, *KAFKA_KEYS])}"


def unknown_topic_key(key: str) -> str:
    """A clause on a name that is not in ``TOPIC_KEYS``."""
    setting = BROKER_KEYS.get(key)
    if setting is not None and setting.topic_key:
        return f"is a setting of the broker; a topic's own is {setting.topic_key}"
    if setting is not None or is_kafkas(key):
        return "is a setting of the broker, not of a topic"
    return f"no such topic config{suggestion(key, TOPIC_KEYS)}"


def suggestion(name: str, known: Iterable[str]) -> str:
    """A clause with the known name that is nearest, or nothing where none is near."""
    nearest = closest(name, known, likeness=0.7)
    return "" if nearest is None else f"; did you mean {nearest}?"


def closest(name: str, known: Iterable[str], *, likeness: float) -> str | None:
    """The known name that is nearest, if it is near enough: 1 is the same."""
    from difflib import get_close_matches  # when there is a mistake, which is seldom

    if len(name) > NAME_LENGTH_MAX:
        return None
    return next(iter(get_close_matches(name, list(known), n=1, cutoff=likeness)), None)
