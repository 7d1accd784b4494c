"""What a file's text, the environment and the flags say, as lists of settings by broker name."""

import re
from collections.abc import Mapping

from fencelog.settings.given import ConfigError, Given, Source
from fencelog.settings.kafka_names import KAFKA_KEYS
from fencelog.settings.names import closest, is_known, suggestion, unknown_broker_key
from fencelog.settings.table import BROKER_KEYS

OWN, KAFKAS = "FENCELOG_", "KAFKA_"
OTHER_USES = re.compile(
    "FENCELOG_(?:BOOTSTRAP_SERVERS|PYTHON|MAVEN|REWRITE|(?:DEMO|FUZZ|OWN)_[A-Z_]+)"
)
"""Variables of the command line, of this repository's scripts and of its tests."""
_SERVICE = (
    "(?:FENCELOG|KAFKA)_(?:[A-Z0-9_]+_)?"
    "(?:SERVICE_HOST|SERVICE_PORT(?:_[A-Z0-9_]+)?|PORT(?:_[0-9]+_(?:TCP|UDP|SCTP)[A-Z_]*)?)"
)
"""Variables that Kubernetes makes for a service of that name."""
NEAR_MISS = 0.88
"""How like a setting a variable of Kafka's is that is taken for one misspelt."""


def from_properties(text: str, path: str) -> Source:
    """Read a Java properties file. Raises ConfigError, with the line."""
    from javaproperties import KeyValue, parse

    given, line = [], 1
    try:
        for element in parse(text):
            if isinstance(element, KeyValue):
                where = f"{path}, line {line}"
                given.append(Given(element.key, element.value, element.key, where))
            line += len(re.findall(r"\r\n|\r|\n", element.source))
    except ValueError as error:
        raise ConfigError(f"{path}, line {line}: {error}") from error
    return Source(given, [])


def from_toml(text: str, path: str) -> Source:
    """Read a TOML file: dotted keys, or tables. Raises ConfigError."""
    import tomllib

    try:
        pairs = _flat(tomllib.loads(text))
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path}: {error}") from error
    except RecursionError:
        raise ConfigError(f"{path}: a value is nested too deeply") from None
    return Source([Given(key, value, key, path) for key, value in pairs], [])


def _flat(table: Mapping[str, object], prefix: str = "") -> list[tuple[str, str]]:
    pairs: list[tuple[str, str]] = []
    for key, value in table.items():
        if isinstance(value, dict):
            pairs += _flat(value, f"{prefix}{key}.")
        elif isinstance(value, list):
            pairs.append((f"{prefix}{key}", ",".join(map(str, value))))
        else:
            text = str(value).lower() if isinstance(value, bool) else str(value)
            pairs.append((f"{prefix}{key}", text))
    return pairs


def from_environment(environ: Mapping[str, str]) -> Source:
    """Read variables like ``KAFKA_LOG_RETENTION_MS``, and ``FENCELOG_…``, which overrides it.

    Those with Kafka's prefix that are no setting are other programs'; one that is nearly a setting
    gets a notice. Raises ConfigError for one with our own prefix that is no setting.
    """
    given, notices = [], []
    for prefix in (KAFKAS, OWN):
        for name, value in sorted(environ.items()):
            if not name.startswith(prefix) or _is_of_others(name, value):
                continue
            key = name.removeprefix(prefix).lower().replace("_", ".")
            if is_known(key):
                given.append(Given(key, value, name, "environment"))
            elif prefix == OWN:
                raise ConfigError(f"environment: {_unknown_variable(name, key)}")
            else:
                notices += _near_miss(name, key)
    return Source(given, notices)


def _is_of_others(name: str, value: str) -> bool:
    if re.fullmatch(OTHER_USES, name):
        return True
    of_service = re.fullmatch(_SERVICE, name) is not None
    return of_service and (not name.endswith("_PORT") or "://" in value or "_SERVICE_" in name)


def _unknown_variable(name: str, key: str) -> str:
    if key not in BROKER_KEYS and (sentence := unknown_broker_key(key)).startswith(f"{key} is a "):
        return f"{name}: {sentence}"
    variables = (_variable(OWN, known) for known in (*BROKER_KEYS, *KAFKA_KEYS))
    return f"{name} is not a setting of fencelog{suggestion(name, variables)}"


def _near_miss(name: str, key: str) -> list[str]:
    near = closest(key, (*BROKER_KEYS, *KAFKA_KEYS), likeness=NEAR_MISS)
    if near is None:
        return []
    return [f"environment: {name} is not a setting; did you mean {_variable(KAFKAS, near)}?"]


def _variable(prefix: str, key: str) -> str:
    return prefix + key.upper().replace(".", "_")


def from_flags(flags: Mapping[str, str | None]) -> Source:
    """The settings of the command line: flag name to text, None where it was not given."""
    keys = {
        "--listen": "listeners",
        "--durability": "durability",
        "--metadata": "metadata",
        "--node-id": "node.id",
    }
    return Source(
        [Given(keys[flag], text, flag, "") for flag, text in flags.items() if text is not None], []
    )
