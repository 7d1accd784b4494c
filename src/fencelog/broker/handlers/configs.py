"""DescribeConfigs, AlterConfigs and IncrementalAlterConfigs: settings of topics and of the broker.

Behaviour: what a topic sets for itself overrides what the broker was told while it runs, that what
it was started with, that the default; DescribeConfigs shows each of them as a synonym. A change
holds from the next append and upkeep on. Of the broker's own settings only the defaults of topic
settings change while it runs; any other is refused by name.
"""

from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from enum import IntEnum
from typing import NamedTuple

from fencelog.broker.context import Broker
from fencelog.broker.metadata.settings import (
    ALL_BROKERS,
    SOURCE_DEFAULT,
    SOURCE_START,
    Settings,
    Value,
)
from fencelog.broker.metadata.topic_rules import existing_topic
from fencelog.broker.network.connection import Request
from fencelog.errors import ErrorCode, RequestError
from fencelog.settings.kinds import INT32_MAX, ConfigType, Text, Whole
from fencelog.settings.names import is_known, unknown_broker_key
from fencelog.settings.setting import Setting
from fencelog.settings.setting import broker as broker_setting
from fencelog.settings.stream_table import STREAM_KEYS
from fencelog.settings.table import (
    BROKER_KEYS,
    BROKER_SETTINGS,
    DYNAMIC_KEYS,
    TOPIC_KEYS,
    default_of,
)
from fencelog.settings.topic_table import TOPIC_SETTINGS
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
CLIENT_METRICS = 16
GROUP_RESOURCE = 32
WITHOUT_SETTINGS = (CLIENT_METRICS, GROUP_RESOURCE)
"""Kinds of which nothing is set here: there are no metrics subscriptions, and Kafka's settings of
a group are those of protocols that are not offered (KIP-848 and later).
"""
TYPES: Mapping[ConfigType, int] = {
    "boolean": 1,
    "string": 2,
    "int": 3,
    "short": 4,
    "long": 5,
    "double": 6,
    "list": 7,
}


_DATA_DIR = broker_setting("log.dirs", Text("list"), "", "where everything is kept (--data-dir)")
_ROLES = broker_setting(
    "process.roles",
    Text("list"),
    "broker,controller",
    "a broker that is its own controller",
)
_OFFSETS_PARTITIONS = broker_setting(
    "offsets.topic.num.partitions",
    Whole(1, INT32_MAX),
    default_of("transaction.state.log.num.partitions"),
    "partitions of __consumer_offsets (transaction.state.log.num.partitions sets them)",
)
"""Set by no file under these names, and read by Kafka's tools."""


class Described(NamedTuple):
    """A setting under the name that was asked for, with every place that sets it."""

    key: str
    setting: Setting
    values: list[Value]


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
    version = request.header.api_version
    return DescribeConfigsResponse(
        results=[
            _describe(broker, asked, message).encoded(version)
            async for asked in broker.time_slices.each(message.resources)
        ]
    )


def _describe(
    broker: Broker, asked: DescribeConfigsResource, message: DescribeConfigsRequest
) -> DescribeConfigsResult:
    error, text = ErrorCode.NONE, None
    found: list[Described] = []
    try:
        if asked.resource_type == TOPIC_RESOURCE:
            found = _of_topic(broker, asked.resource_name)
        elif asked.resource_type == BROKER_RESOURCE:
            found = _of_broker(broker, asked.resource_name)
        elif asked.resource_type not in WITHOUT_SETTINGS:
            raise _no_settings(asked.resource_type)
    except RequestError as refused:
        error, text = refused.code, str(refused)
    wanted = None if asked.configuration_keys is None else set(asked.configuration_keys)
    return DescribeConfigsResult(
        error_code=error,
        error_message=text,
        resource_type=asked.resource_type,
        resource_name=asked.resource_name,
        configs=[_entry(each, message) for each in found if not wanted or each.key in wanted],
    )


def _no_settings(resource_type: int) -> RequestError:
    text = f"resource type {resource_type} has no settings here"
    return RequestError(ErrorCode.INVALID_REQUEST, text)


def _of_topic(broker: Broker, name: str) -> list[Described]:
    topic = existing_topic(broker.catalog, name)
    return [
        Described(each.topic_key, each, broker.settings.values(each.topic_key, topic.settings))
        for each in TOPIC_SETTINGS
        if topic.stream is not None or each.topic_key not in STREAM_KEYS
    ]


def _of_broker(broker: Broker, scope: str) -> list[Described]:
    settings = broker.settings
    _check_scope(settings, scope)
    changed = settings.changed(scope)
    found = [
        Described(key, setting, settings.values(setting.topic_key, {}))
        for key, setting in DYNAMIC_KEYS.items()
        # Nobody is the broker without a name: there is only what was said to all.
        if scope != ALL_BROKERS or key in changed
    ]
    if scope != ALL_BROKERS:
        found += [
            Described(each.key, each, settings.fixed_values(each)) for each in BROKER_SETTINGS
        ]
        found += [
            Described(alias.key, each, settings.fixed_values(each))
            for each in BROKER_SETTINGS
            for alias in each.names[1:]
        ]
        found += _facts(broker)
    return found


def _facts(broker: Broker) -> list[Described]:
    data_dir, count = broker.config.data_dir, str(broker.groups.partition_count)
    roles = _ROLES.default
    return [
        Described(each.key, each, [Value(each.key, text, source, text)])
        for each, text, source in (
            (_DATA_DIR, data_dir, SOURCE_START),
            (_ROLES, roles, SOURCE_DEFAULT),
            (_OFFSETS_PARTITIONS, count, SOURCE_START),
        )
    ]


def _entry(described: Described, message: DescribeConfigsRequest) -> DescribeConfigsResourceResult:
    key, setting, values = described
    in_force = values[0]
    return DescribeConfigsResourceResult(
        name=key,
        value=in_force.text,
        read_only=not setting.dynamic,
        config_source=in_force.source,
        is_sensitive=False,  # no setting holds a secret
        config_type=TYPES[setting.kind.config_type],
        documentation=setting.text if message.include_documentation else None,
        synonyms=[
            DescribeConfigsSynonym(name=each.key, value=each.written, source=each.source)
            for each in (values if message.include_synonyms else ())
        ],
    )


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
    await broker.controller.refresh([name])
    topic = existing_topic(broker.catalog, name)
    if topic.internal and any(step.key == "cleanup.policy" for step in steps):
        raise RequestError(
            ErrorCode.POLICY_VIOLATION, f"{name} is compacted: its broker needs every newest value"
        )
    kept = {"cleanup.policy"} if topic.internal else set()

    def change(settings: Mapping[str, str]) -> dict[str, str]:
        base = {key: text for key, text in settings.items() if not whole or key in kept}
        return _applied(
            steps, base, TOPIC_KEYS, lambda key: broker.settings.values(key, settings)[0].text
        )

    if dry:
        broker.controller.valid(change(topic.settings), is_stream=topic.stream is not None)
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
    for step in steps:
        _check_dynamic(step.key)

    def change(changed: Mapping[str, str]) -> dict[str, str]:
        after = _applied(
            steps,
            {} if whole else dict(changed),
            DYNAMIC_KEYS,
            lambda key: settings.values(DYNAMIC_KEYS[key].topic_key, {})[0].text,
        )
        for step in steps:
            _check_value(step.key, after.get(step.key))
        return after

    if dry:
        after = settings.topic_defaults_with(scope, change(settings.changed(scope)))
        broker.controller.valid({}, after)
    else:
        await broker.controller.configure_broker(scope, change)


def _check_dynamic(key: str) -> None:
    """Refuse what a running broker cannot change."""
    if key in DYNAMIC_KEYS:
        return
    if not is_known(key):
        raise RequestError(ErrorCode.INVALID_CONFIG, unknown_broker_key(key))
    if key not in BROKER_KEYS:
        reason = "has no effect here"
    elif BROKER_KEYS[key].dynamic:
        reason = f"only {BROKER_KEYS[key].key} can be changed while the broker runs"
    else:
        reason = "cannot be changed while the broker runs; it is set at the start"
    raise RequestError(ErrorCode.INVALID_REQUEST, f"{key}: {reason}")


def _check_value(key: str, text: str | None) -> None:
    """Refuse a value that means nothing, under the name that the client used."""
    try:
        if text is not None:
            DYNAMIC_KEYS[key].kind.parse(text)
    except ValueError as error:
        raise RequestError(ErrorCode.INVALID_CONFIG, f"{key}={text!r}: {error}") from error


def _applied(
    steps: Iterable[Step],
    settings: dict[str, str],
    known: Mapping[str, Setting],
    in_force: Callable[[str], str],
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
        if key not in known or known[key].kind.config_type != "list":
            raise RequestError(ErrorCode.INVALID_CONFIG, f"{key} is no list")
        items = [one for one in settings.get(key, in_force(key)).split(",") if one]
        named = [one for one in value.split(",") if one]
        if operation == Operation.APPEND:
            items += [one for one in named if one not in items]
        else:
            items = [one for one in items if one not in named]
        settings[key] = ",".join(items)
    return settings
