"""Options of the source and the sink: parses text into frozen values.

Names are those of Spark's Kafka connector wherever the thing is the same. Spark hands options over
with lower-case names, so lookups ignore case and errors name the canonical spelling. An option that
nobody would read is refused: a misspelled ``startingOffsets`` or a security setting that silently
does nothing is worse than an error.
"""

import difflib
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, TypeVar, cast

from fencelog.client.model import Compression, Isolation
from fencelog.errors import FencelogError
from fencelog.spark.connector_options import Side, accepted, note, refusal
from fencelog.spark.positions import (
    Positions,
    parse_assignment,
    parse_offsets,
    parse_timestamps,
)
from fencelog.spark.schema import COLUMNS, HEADERS
from fencelog.types import TopicPartition

BOOTSTRAP_VARIABLE: Final = "FENCELOG_BOOTSTRAP_SERVERS"
"""Environment variable with the default servers; ``fencelog run`` sets it."""

T = TypeVar("T")

TRANSACTION_TIMEOUT_MS: Final = 120_000
REQUEST_TIMEOUT_MS: Final = 30_000
API_TIMEOUT_MS: Final = 60_000
INT32_MAX: Final = (1 << 31) - 1
TRIGGER_DELAY_MAX_MS: Final = 900_000
DURATION_UNITS_MS: Final = {
    "": 1,
    "ms": 1,
    "s": 1000,
    "m": 60_000,
    "min": 60_000,
    "h": 3_600_000,
    "d": 86_400_000,
}
"""Spark's names for units of time; a number without one is milliseconds."""

# Those that Spark's Kafka connector lacks; ``connector_options`` has the others.
CONNECTION_OPTIONS = ("bootstrap.servers",)
SOURCE_OPTIONS = ("isolation", "groupId", "columns")
SINK_OPTIONS = ("app", "batch", "takeover", "delivery", "stagingLocation")
# Spark adds these options of its own.
SPARKS_OWN = ("path", "checkpointLocation", "queryName")


class OptionError(FencelogError, ValueError):
    """An option is missing, unknown, malformed, or contradicts another."""


@dataclass(frozen=True, kw_only=True)
class ConnectionOptions:
    """How to reach the cluster.

    ``request_timeout_ms`` limits one request, ``api_timeout_ms`` one with all of its retries: how
    long an outage may last.
    """

    bootstrap_servers: str
    client_id: str = "fencelog-spark"
    request_timeout_ms: int = REQUEST_TIMEOUT_MS
    api_timeout_ms: int = API_TIMEOUT_MS


@dataclass(frozen=True, kw_only=True)
class Subscription:
    """Which partitions are read: exactly one of the three is set."""

    topics: tuple[str, ...] = ()
    pattern: str | None = None
    partitions: tuple[TopicPartition, ...] = ()


@dataclass(frozen=True, kw_only=True)
class SourceOptions:
    """The options of a batch or streaming read."""

    connection: ConnectionOptions
    subscription: Subscription
    starting: Positions
    ending: Positions
    columns: tuple[str, ...]
    isolation: Isolation = "transactional"
    offsets_per_trigger_max: int | None = None
    offsets_per_trigger_min: int | None = None
    trigger_delay_max_ms: int = TRIGGER_DELAY_MAX_MS
    partitions_min: int | None = None
    partition_offsets_max: int | None = None
    fail_on_data_loss: bool = True
    group_id: str | None = None


@dataclass(frozen=True, kw_only=True)
class SinkOptions:
    """The options of a batch or streaming write. ``exactly_once`` false is at-least-once.

    ``batch``: the number of a batch write within its app; None for a stream, and for a write that
    is not to be recognised when it is repeated.
    """

    connection: ConnectionOptions
    topic: str | None = None
    app: str | None = None
    batch: int | None = None
    takeover: bool = False
    exactly_once: bool = True
    compression: Compression = "none"
    transaction_timeout_ms: int = TRANSACTION_TIMEOUT_MS
    checkpoint_location: str | None = None
    staging_location: str | None = None


class _Options(Mapping[str, str]):
    """Options by case-insensitive name, with typed access and errors that name the option."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._by_lower_name = {name.lower(): value for name, value in options.items()}

    def __getitem__(self, name: str) -> str:
        return self._by_lower_name[name.lower()]

    def __iter__(self) -> Iterator[str]:
        return iter(self._by_lower_name)

    def __len__(self) -> int:
        return len(self._by_lower_name)

    def text(self, *names: str) -> str | None:
        """The trimmed value of the first of these names that is set; an empty one is an error."""
        for name in names:
            value = self.get(name)
            if value is not None:
                if not value.strip():
                    raise OptionError(f"option '{name}' is empty: give it a value or remove it")
                return value.strip()
        return None

    def flag(self, name: str, *, default: bool) -> bool:
        value = self.text(name)
        if value is None:
            return default
        if value.lower() not in ("true", "false"):
            raise OptionError(f"option '{name}' is '{value}': write true or false")
        return value.lower() == "true"

    def whole(self, name: str) -> int | None:
        value = self.text(name)
        if value is None:
            return None
        if not value.isdecimal() or int(value) >= 1 << 63:
            raise OptionError(f"option '{name}' is '{value}': write a whole number from 0 on")
        return int(value)

    def positive(self, name: str) -> int | None:
        value = self.text(name)
        if value is None:
            return None
        if not value.isdecimal() or int(value) == 0:
            raise OptionError(f"option '{name}' is '{value}': write a whole number above 0")
        return int(value)

    def milliseconds(self, name: str) -> int | None:
        value = self.positive(name)
        if value is not None and value > INT32_MAX:
            raise OptionError(f"option '{name}' is '{value}': write at most {INT32_MAX}")
        return value

    def duration_ms(self, name: str, default: int) -> int:
        value = self.text(name)
        if value is None:
            return default
        found = re.fullmatch(r"(\d+)\s*([a-z]*)", value.lower())
        if found is None or found[2] not in DURATION_UNITS_MS:
            raise OptionError(f"option '{name}' is '{value}': write a time as 500ms, 30s, 15m, 1h")
        return int(found[1]) * DURATION_UNITS_MS[found[2]]

    def only(self, name: str, *values: str) -> None:
        """Raise OptionError if the option is set to anything else than these."""
        value = self.text(name)
        if value is not None and value.lower() not in values:
            raise OptionError(f"option '{name}' is '{value}': {note(name)}")

    def choice(self, name: str, choices: Collection[str], default: str) -> str:
        value = self.text(name)
        if value is None:
            return default
        if value.lower() not in choices:
            raise OptionError(f"option '{name}' is '{value}': write one of {', '.join(choices)}")
        return value.lower()

    def refuse_unknown(self, side: Side, job: str) -> None:
        """Raise OptionError for the first option that this job does not have."""
        known = _known(side)
        canonical = {name.lower(): name for name in known}
        for name in self:
            if name in canonical:
                continue
            if (reason := refusal(name)) is not None:
                raise OptionError(f"option '{name}' is refused: {reason}")
            other: Side = "sink" if side == "source" else "source"
            close = difflib.get_close_matches(name, canonical, n=1, cutoff=0.75)
            if name in {each.lower() for each in _known(other)}:
                hint = f"it is for the {other}: remove it"
            else:
                hint = f"did you mean '{canonical[close[0]]}'?" if close else "remove it"
            raise OptionError(f"option '{name}' is unknown for a fencelog {job}: {hint}")


def _known(side: Side) -> tuple[str, ...]:
    own = SOURCE_OPTIONS if side == "source" else SINK_OPTIONS
    return (*accepted(side), *CONNECTION_OPTIONS, *own, *SPARKS_OWN)


def check_read(options: Mapping[str, str], environment: Mapping[str, str]) -> None:
    """Raise OptionError for what is wrong in a stream and in a batch read alike.

    Spark does not say which of them it is when it asks for the columns (``load``).
    """
    _source(options, environment, streaming=None)


def source_options(
    options: Mapping[str, str], environment: Mapping[str, str], *, streaming: bool
) -> SourceOptions:
    """Parse the options of a read. Raises OptionError."""
    return _source(options, environment, streaming=streaming)


def _source(
    options: Mapping[str, str], environment: Mapping[str, str], *, streaming: bool | None
) -> SourceOptions:
    """The options of a stream, of a batch read, or (None) of either."""
    given = _Options(options)
    jobs = {True: "stream source", False: "batch read", None: "read"}
    given.refuse_unknown("source", jobs[streaming])
    given.only("kafka.security.protocol", "plaintext")
    isolation = _isolation(given)
    if streaming:
        _refuse_in_streams(given, isolation)
    subscription = _subscription(given)
    starting = _starting(given, streaming=streaming)
    _check_named(starting, subscription, "startingOffsets")
    most, least = given.positive("maxOffsetsPerTrigger"), given.positive("minOffsetsPerTrigger")
    if most is not None and least is not None and least > most:
        raise OptionError(
            f"option 'minOffsetsPerTrigger' is '{least}', above 'maxOffsetsPerTrigger' ('{most}')"
        )
    return SourceOptions(
        connection=_connection(given, environment),
        subscription=subscription,
        starting=starting,
        ending=_ending(given),
        columns=columns(options),
        isolation=isolation,
        offsets_per_trigger_max=most,
        offsets_per_trigger_min=least,
        trigger_delay_max_ms=given.duration_ms("maxTriggerDelay", TRIGGER_DELAY_MAX_MS),
        partitions_min=given.positive("minPartitions"),
        partition_offsets_max=given.positive("maxRecordsPerPartition"),
        fail_on_data_loss=given.flag("failOnDataLoss", default=True),
        group_id=given.text("groupId", "kafka.group.id"),
    )


def sink_options(
    options: Mapping[str, str], environment: Mapping[str, str], *, streaming: bool
) -> SinkOptions:
    """Parse the options of a write. Raises OptionError."""
    given = _Options(options)
    job = "stream sink" if streaming else "batch write"
    given.refuse_unknown("sink", job)
    given.only("asyncProgressTrackingEnabled", "false")
    given.only("kafka.acks", "all", "-1")
    given.only("kafka.enable.idempotence", "true")
    given.only("kafka.security.protocol", "plaintext")
    delivery = given.choice("delivery", ("exactly-once", "at-least-once"), "exactly-once")
    _check_batch(given, streaming=streaming, exactly_once=delivery == "exactly-once")
    codecs = ("none", "gzip", "snappy", "lz4", "zstd")
    return SinkOptions(
        connection=_connection(given, environment),
        topic=given.text("topic"),
        app=given.text("app"),
        batch=given.whole("batch"),
        takeover=given.flag("takeover", default=False),
        exactly_once=delivery == "exactly-once",
        compression=cast(Compression, given.choice("kafka.compression.type", codecs, "none")),
        transaction_timeout_ms=given.milliseconds("kafka.transaction.timeout.ms")
        or TRANSACTION_TIMEOUT_MS,
        checkpoint_location=given.text("checkpointLocation"),
        staging_location=given.text("stagingLocation"),
    )


def columns(options: Mapping[str, str]) -> tuple[str, ...]:
    """The columns that a read returns, in order: all seven, the chosen ones, or with headers."""
    given = _Options(options)
    chosen = given.text("columns")
    with_headers = given.flag("includeHeaders", default=False)
    if chosen is None:
        return (*COLUMNS, HEADERS) if with_headers else COLUMNS
    by_lower_name = {name.lower(): name for name in (*COLUMNS, HEADERS)}
    names = [part.strip().lower() for part in chosen.split(",")]
    for name in names:
        if name not in by_lower_name:
            raise OptionError(
                f"option 'columns' is '{chosen}': '{name}' is not a column;"
                f" columns are {', '.join((*COLUMNS, HEADERS))}"
            )
    if len(set(names)) < len(names):
        raise OptionError(f"option 'columns' is '{chosen}': name each column once")
    if with_headers and HEADERS not in names:
        names.append(HEADERS)
    return tuple(by_lower_name[name] for name in names)


def _connection(given: _Options, environment: Mapping[str, str]) -> ConnectionOptions:
    servers = given.text("kafka.bootstrap.servers", "bootstrap.servers")
    servers = servers or environment.get(BOOTSTRAP_VARIABLE, "").strip() or None
    if servers is None:
        raise OptionError(
            "option 'kafka.bootstrap.servers' is missing: write the broker's HOST:PORT"
            f" (or set {BOOTSTRAP_VARIABLE})"
        )
    for server in servers.split(","):
        if not re.fullmatch(r"\s*\S+:\d{1,5}\s*", server):
            raise OptionError(
                f"option 'kafka.bootstrap.servers' is '{servers}': '{server}' is not HOST:PORT"
            )
    return ConnectionOptions(
        bootstrap_servers=",".join(server.strip() for server in servers.split(",")),
        client_id=given.text("kafka.client.id") or "fencelog-spark",
        request_timeout_ms=given.milliseconds("kafka.request.timeout.ms") or REQUEST_TIMEOUT_MS,
        # Kafka's name of the consumer's limit, and of the producer's; a job has one of them.
        api_timeout_ms=given.milliseconds("kafka.default.api.timeout.ms")
        or given.milliseconds("kafka.delivery.timeout.ms")
        or API_TIMEOUT_MS,
    )


def _subscription(given: _Options) -> Subscription:
    names = [name for name in ("subscribe", "subscribePattern", "assign") if name in given]
    if len(names) != 1:
        found = " and ".join(f"'{name}'" for name in names) or "none of them"
        raise OptionError(
            f"exactly one of 'subscribe', 'subscribePattern' and 'assign' is required"
            f" (found {found})"
        )
    value = given.text(names[0]) or ""
    match names[0]:
        case "subscribe":
            topics = tuple(part.strip() for part in value.split(","))
            if not all(topics):
                raise OptionError(f"option 'subscribe' is '{value}': a topic name is empty")
            return Subscription(topics=tuple(dict.fromkeys(topics)))
        case "subscribePattern":
            try:
                re.compile(value)
            except re.error as error:
                raise OptionError(
                    f"option 'subscribePattern' is '{value}': not a regular expression ({error})"
                ) from error
            return Subscription(pattern=value)
        case _:
            return Subscription(partitions=_explained("assign", value, parse_assignment))


def _isolation(given: _Options) -> Isolation:
    kafkas = {"read_committed": "transactional", "read_uncommitted": "replicated"}
    level = given.choice("kafka.isolation.level", tuple(kafkas), "read_committed")
    levels = ("transactional", "replicated", "tail")
    return cast(Isolation, given.choice("isolation", levels, kafkas[level]))


def _refuse_in_streams(given: _Options, isolation: Isolation) -> None:
    if isolation == "tail":
        # S2: records above the high watermark may be lost, so a replay could see other input.
        raise OptionError(
            "option 'isolation' is 'tail': a repeated batch would not see the same input;"
            " write transactional or replicated"
        )
    for name in ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp"):
        if name in given:
            raise OptionError(
                f"option '{name}' is for batch reads only: remove it,"
                " or use trigger(availableNow=True)"
            )


def _check_batch(given: _Options, *, streaming: bool, exactly_once: bool) -> None:
    """``app`` and ``batch`` identify a batch write; a stream's batches have Spark's numbers."""
    if streaming:
        if "batch" in given:
            raise OptionError(
                "option 'batch' is for batch writes: Spark numbers a stream's batches"
            )
        return
    if ("app" in given) != ("batch" in given):
        raise OptionError(
            "options 'app' and 'batch' of a batch write go together: they identify it, so that it"
            " is written once however often it is repeated"
        )
    if "takeover" in given and "app" not in given:
        raise OptionError("option 'takeover' needs the options 'app' and 'batch'")
    if "batch" in given and not exactly_once:
        raise OptionError("option 'batch' needs delivery exactly-once: at-least-once repeats rows")


def _starting(given: _Options, *, streaming: bool | None) -> Positions:
    strategy = given.choice("startingOffsetsByTimestampStrategy", ("error", "latest"), "error")
    fallback = "latest" if strategy == "latest" else None
    by_time = _by_timestamp(given, "starting", fallback)
    if by_time is not None:
        return by_time
    value = given.text("startingOffsets") or ("latest" if streaming else "earliest")
    if value.lower() in ("earliest", "latest"):
        starting = Positions(everywhere="earliest" if value.lower() == "earliest" else "latest")
    else:
        starting = _explained("startingOffsets", value, parse_offsets)
    if streaming is False and (
        starting.everywhere == "latest" or "latest" in dict(starting.named).values()
    ):
        raise OptionError(
            f"option 'startingOffsets' is '{value}': a batch read from the end is empty;"
            " write earliest or offsets"
        )
    return starting


def _ending(given: _Options) -> Positions:
    by_time = _by_timestamp(given, "ending", "latest")
    if by_time is not None:
        return by_time
    value = given.text("endingOffsets") or "latest"
    if value.lower() == "latest":
        return Positions(everywhere="latest")
    if value.lower() == "earliest":
        raise OptionError("option 'endingOffsets' is 'earliest': write latest or offsets")
    ending = _explained("endingOffsets", value, parse_offsets)
    if "earliest" in dict(ending.named).values():
        raise OptionError(f"option 'endingOffsets' is '{value}': -2 (earliest) cannot be an end")
    return ending


def _by_timestamp(given: _Options, side: str, fallback: str | None) -> Positions | None:
    """``startingTimestamp`` overrides ``startingOffsetsByTimestamp``, as in Spark's connector."""
    name = f"{side}Timestamp"
    value = given.text(name)
    if value is not None:
        if not value.isdecimal():
            raise OptionError(f"option '{name}' is '{value}': write milliseconds since 1970")
        return Positions(everywhere_at_ms=int(value), beyond_the_end=fallback)
    name = f"{side}OffsetsByTimestamp"
    value = given.text(name)
    if value is None:
        return None
    timestamps = _explained(name, value, parse_timestamps)
    return Positions(named_at_ms=timestamps, beyond_the_end=fallback)


def _check_named(starting: Positions, subscription: Subscription, name: str) -> None:
    """Raise OptionError for offsets of partitions that are not read."""
    for partition in dict(starting.named) | dict(starting.named_at_ms):
        read = partition.topic in subscription.topics or partition in subscription.partitions
        if not read and subscription.pattern is None:
            raise OptionError(f"option '{name}' names {partition}, which is not subscribed to")


def _explained(name: str, value: str, parse: Callable[[str], T]) -> T:
    try:
        return parse(value)
    except ValueError as error:
        raise OptionError(f"option '{name}' is '{value}': {error}") from error
