"""DescribeConfigs, AlterConfigs and IncrementalAlterConfigs: settings of topics and of the broker.

Behaviour: what a topic sets for itself goes before what the broker was told while it runs, that
before what it was started with, that before the default; DescribeConfigs shows each of them as a
synonym. A change holds from the next append and upkeep on. Of the broker's own settings only the
defaults of topic settings change while it runs; any other is refused by name.
"""

from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from enum import IntEnum
from typing import NamedTuple

from fencelog.broker.config import LOG_KEYS, BrokerConfig
from fencelog.broker.context import Broker
from fencelog.broker.metadata.settings import ALL_BROKERS, SOURCE_START, Settings, Value
from fencelog.broker.network.connection import Request
from fencelog.errors import ErrorCode, RequestError
from fencelog.log.config import TOPIC_KEYS
from fencelog.wire.messages import alter_configs as alter_messages
from fencelog.wire.messages import incremental_alter_configs as incremental_messages
from fencelog.wire.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    DescribeConfigsSynonym,
)

Resource = tuple[int, str]
"""Its kind and its name."""
TOPIC_RESOURCE = 2
BROKER_RESOURCE = 4
TYPES = {"boolean": 1, "string": 2, "int": 3, "long": 5, "double": 6, "list": 7}


class Operation(IntEnum):
    """What IncrementalAlterConfigs does to one setting."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


class Step(NamedTuple):
    """One change of one setting."""

    key: str
    operation: int
    value: str | None


# -- describing ------------------------------------------------------------------------------------


async def describe_configs(
    broker: Broker, message: DescribeConfigsRequest, request: Request
) -> DescribeConfigsResponse:
    """The settings in force of topics and of this broker, each with where it comes from."""
    del request
    synonyms, resources = message.include_synonyms, broker.time_slices.each(message.resources)
    return DescribeConfigsResponse(
        results=[_describe(broker, one, synonyms) async for one in resources]
    )


def _describe(
    broker: Broker, asked: DescribeConfigsResource, synonyms: bool
) -> DescribeConfigsResult:
    error, text = ErrorCode.NONE, None
    entries: list[DescribeConfigsResourceResult] = []
    try:
        if asked.resource_type == TOPIC_RESOURCE:
            entries = _topic_entries(broker, asked.resource_name, synonyms)
        elif asked.resource_type == BROKER_RESOURCE:
            entries = _broker_entries(broker, asked.resource_name, synonyms)
        else:
            raise _no_settings(asked.resource_type)
    except RequestError as refused:
        error, text = refused.code, str(refused)
    wanted = None if asked.configuration_keys is None else set(asked.configuration_keys)
    return DescribeConfigsResult(
        error_code=error,
        error_message=text,
        resource_type=asked.resource_type,
        resource_name=asked.resource_name,
        configs=[entry for entry in entries if not wanted or entry.name in wanted],
    )


def _no_settings(resource_type: int) -> RequestError:
    text = f"resource type {resource_type} has no settings here"
    return RequestError(ErrorCode.INVALID_REQUEST, text)


def _topic_entries(
    broker: Broker, name: str, synonyms: bool
) -> list[DescribeConfigsResourceResult]:
    topic = broker.catalog.get(name)
    if topic is None:
        raise RequestError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {name}")
    return [
        _entry(key, broker.settings.values(key, topic.settings), synonyms, read_only=False)
        for key in TOPIC_KEYS
    ]


def _broker_entries(
    broker: Broker, scope: str, synonyms: bool
) -> list[DescribeConfigsResourceResult]:
    _check_scope(broker.settings, scope)
    changed = broker.settings.changed(scope)
    found = {key: broker.settings.values(LOG_KEYS[key], {}) for key in LOG_KEYS}
    if scope == ALL_BROKERS:
        # Nobody is that broker: there is only what was said to all.
        return [
            _entry(key, found[key], synonyms, read_only=False) for key in LOG_KEYS if key in changed
        ]
    entries = [_entry(key, values, synonyms, read_only=False) for key, values in found.items()]
    entries += [
        _entry(key, [Value(key, text, SOURCE_START)], synonyms, read_only=True)
        for key, text in _fixed(broker.config).items()
    ]
    return entries


def _fixed(config: BrokerConfig) -> dict[str, str]:
    """What the broker was started with and keeps."""
    return {
        "node.id": str(config.node_id),
        "num.partitions": str(config.num_partitions),
        "auto.create.topics.enable": str(config.auto_create_topics).lower(),
        "durability": config.durability,
        "log.dirs": config.data_dir,
        "socket.request.max.bytes": str(config.frame_bytes_max),
        "max.connections": str(config.connections_max),
        "transaction.max.timeout.ms": str(config.transaction_timeout_ms_max),
        "transactional.id.expiration.ms": str(config.transactional_id_expiration_ms),
        "producer.id.expiration.ms": str(config.producer_expiration_ms),
    }


def _entry(
    key: str, values: list[Value], synonyms: bool, *, read_only: bool
) -> DescribeConfigsResourceResult:
    in_force = values[0]
    return DescribeConfigsResourceResult(
        name=key,
        value=in_force.text,
        read_only=read_only,
        config_source=in_force.source,
        config_type=TYPES[_kind(key, in_force.text)],
        documentation=None,
        synonyms=[
            DescribeConfigsSynonym(name=each.key, value=each.text, source=each.source)
            for each in (values if synonyms else ())
        ],
    )


def _kind(key: str, text: str) -> str:
    known = TOPIC_KEYS.get(LOG_KEYS.get(key, key))
    if known is not None:
        return known.kind
    if text in ("true", "false"):
        return "boolean"
    return "long" if text.isdecimal() else "string"


# -- changing --------------------------------------------------------------------------------------


async def alter_configs(
    broker: Broker, message: alter_messages.AlterConfigsRequest, request: Request
) -> alter_messages.AlterConfigsResponse:
    """Let the settings named be all that a resource sets for itself."""
    del request
    changes = [
        (
            (asked.resource_type, asked.resource_name),
            [Step(one.name, Operation.SET, one.value) for one in asked.configs],
        )
        for asked in message.resources
    ]
    return alter_messages.AlterConfigsResponse(
        responses=[
            alter_messages.AlterConfigsResourceResponse(
                error_code=error, error_message=text, resource_type=kind, resource_name=name
            )
            async for (kind, name), error, text in _changed(
                broker, changes, whole=True, dry=message.validate_only
            )
        ]
    )


async def incremental_alter_configs(
    broker: Broker, message: incremental_messages.IncrementalAlterConfigsRequest, request: Request
) -> incremental_messages.IncrementalAlterConfigsResponse:
    """Change the settings named and leave the others (KIP-339)."""
    del request
    changes = [
        (
            (asked.resource_type, asked.resource_name),
            [Step(one.name, one.config_operation, one.value) for one in asked.configs],
        )
        for asked in message.resources
    ]
    return incremental_messages.IncrementalAlterConfigsResponse(
        responses=[
            incremental_messages.AlterConfigsResourceResponse(
                error_code=error, error_message=text, resource_type=kind, resource_name=name
            )
            async for (kind, name), error, text in _changed(
                broker, changes, whole=False, dry=message.validate_only
            )
        ]
    )


async def _changed(
    broker: Broker, changes: list[tuple[Resource, list[Step]]], *, whole: bool, dry: bool
) -> AsyncIterator[tuple[Resource, ErrorCode, str | None]]:
    """Change each resource by itself; yields it with why it was not, else NONE."""
    times = Counter(resource for resource, _ in changes)
    async for resource, steps in broker.time_slices.each(changes):
        error, text = await _change(broker, resource, steps, times[resource], whole=whole, dry=dry)
        yield resource, error, text


async def _change(
    broker: Broker,
    resource: Resource,
    steps: list[Step],
    times: int,
    *,
    whole: bool,
    dry: bool,
) -> tuple[ErrorCode, str | None]:
    """Change one resource; returns why not, else NONE."""
    kind, name = resource
    try:
        _check_steps(name, times, steps)
        if kind == TOPIC_RESOURCE:
            await _change_topic(broker, name, steps, whole=whole, dry=dry)
        elif kind == BROKER_RESOURCE:
            await _change_broker(broker, name, steps, whole=whole, dry=dry)
        else:
            raise _no_settings(kind)
    except RequestError as refused:
        return refused.code, str(refused)
    return ErrorCode.NONE, None


def _check_steps(name: str, times: int, steps: list[Step]) -> None:
    repeated = [name] if times > 1 else []
    repeated += [key for key, count in Counter(step.key for step in steps).items() if count > 1]
    if repeated:
        raise RequestError(ErrorCode.INVALID_REQUEST, f"{repeated[0]} is named more than once")
    for step in steps:
        if step.operation not in tuple(Operation):
            raise RequestError(ErrorCode.INVALID_REQUEST, f"operation {step.operation} is unknown")
        if step.value is None and step.operation != Operation.DELETE:
            raise RequestError(ErrorCode.INVALID_REQUEST, f"{step.key} has no value")


async def _change_topic(
    broker: Broker, name: str, steps: list[Step], *, whole: bool, dry: bool
) -> None:
    topic = broker.catalog.get(name)
    if topic is None:
        raise RequestError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {name}")
    if topic.internal and any(step.key == "cleanup.policy" for step in steps):
        raise RequestError(
            ErrorCode.POLICY_VIOLATION, f"{name} is compacted: its broker needs every newest value"
        )
    kept = {"cleanup.policy"} if topic.internal else set()

    def change(settings: Mapping[str, str]) -> dict[str, str]:
        base = {key: text for key, text in settings.items() if not whole or key in kept}
        return _applied(steps, base, lambda key: broker.settings.values(key, settings)[0].text)

    if dry:
        broker.controller.valid(change(topic.settings))
    else:
        await broker.controller.configure_topic(name, change)


def _check_scope(settings: Settings, scope: str) -> None:
    if scope not in (ALL_BROKERS, settings.this_broker):
        raise RequestError(
            ErrorCode.INVALID_REQUEST, f"this is broker {settings.this_broker}, not {scope!r}"
        )


async def _change_broker(
    broker: Broker, scope: str, steps: list[Step], *, whole: bool, dry: bool
) -> None:
    settings = broker.settings
    _check_scope(settings, scope)
    fixed = sorted(step.key for step in steps if step.key not in LOG_KEYS)
    if fixed:
        raise RequestError(
            ErrorCode.INVALID_REQUEST,
            f"{', '.join(fixed)}: not to be changed while the broker runs",
        )

    def change(changed: Mapping[str, str]) -> dict[str, str]:
        base = {} if whole else dict(changed)
        return _applied(steps, base, lambda key: settings.values(LOG_KEYS[key], {})[0].text)

    if dry:
        after = settings.topic_defaults_with(scope, change(settings.changed(scope)))
        broker.controller.valid({}, after)
    else:
        await broker.controller.configure_broker(scope, change)


def _applied(
    steps: Iterable[Step], settings: dict[str, str], in_force: Callable[[str], str]
) -> dict[str, str]:
    """The settings after these steps; raises RequestError where one makes no sense."""
    for key, operation, value in steps:
        if operation == Operation.DELETE:
            settings.pop(key, None)
            continue
        assert value is not None, key
        if operation == Operation.SET:
            settings[key] = value
            continue
        known = TOPIC_KEYS.get(LOG_KEYS.get(key, key))
        if known is None or known.kind != "list":
            raise RequestError(ErrorCode.INVALID_CONFIG, f"{key} is no list")
        items = [one for one in settings.get(key, in_force(key)).split(",") if one]
        named = [one for one in value.split(",") if one]
        if operation == Operation.APPEND:
            items += [one for one in named if one not in items]
        else:
            items = [one for one in items if one not in named]
        settings[key] = ",".join(items)
    return settings
