"""Kafka's names and formats in a data directory, so that Kafka's own tools can read and check it.

Names: ``<topic>-<partition>/<base offset, 20 digits>.log`` and its ``.index`` (int32 relative
offset, int32 position), ``.timeindex`` (int64 timestamp, int32 relative offset), ``.txnindex``
(aborted transactions), ``.snapshot`` (producers); text checkpoints with a version and a count.
"""

import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Iterable, Mapping
from struct import Struct

from crc32c import crc32c

from fencelog.errors import CorruptionError
from fencelog.log.values import AbortedTransaction, EpochStart
from fencelog.types import Offset, ProducerId, TopicId, TopicPartition

LOG = ".log"
INDEX = ".index"
TIME_INDEX = ".timeindex"
TXN_INDEX = ".txnindex"
SNAPSHOT = ".snapshot"
CLEANED = ".cleaned"
"""After a segment's name: it is being written, and is not used yet."""
SWAP = ".swap"
"""After a segment's name: it is complete, and replaces every segment in its range."""
SEGMENT_SUFFIXES = (LOG, INDEX, TIME_INDEX, TXN_INDEX)

LEADER_EPOCH_CHECKPOINT = "leader-epoch-checkpoint"
RECOVERY_POINT_CHECKPOINT = "recovery-point-offset-checkpoint"
HIGH_WATERMARK_CHECKPOINT = "replication-offset-checkpoint"
LOG_START_CHECKPOINT = "log-start-offset-checkpoint"
PARTITION_METADATA = "partition.metadata"
RECOVERY_CHECKPOINT = "recovery-checkpoint"
"""In a partition's directory (``recovery_checkpoint``); Kafka has no such file and ignores it."""
META_PROPERTIES = "meta.properties"
CLEANER_CHECKPOINT = "cleaner-offset-checkpoint"
CLEAN_SHUTDOWN = ".kafka_cleanshutdown"

_FILE_NAME = re.compile(r"(\d{20})(\.log|\.index|\.timeindex|\.txnindex|\.snapshot)")
_DIRECTORY = re.compile(r"([a-zA-Z0-9._-]{1,249})-(\d{1,10})")
_DELETED_DIRECTORY = re.compile(r".+\.[0-9a-zA-Z_-]{22,32}-delete")

ABORTED_BYTES = 34
_ABORTED = Struct(">hqqqq")
_CHECKPOINT_VERSION = "0"
_CHECKSUM = "#crc32c"
"""Takes the topic's place in a line of Kafka's format; no topic can have this name."""


def file_name(base_offset: int, suffix: str) -> str:
    """Return the name of a segment's file, or of the snapshot taken at an offset."""
    return f"{base_offset:020d}{suffix}"


def parse_file_name(name: str) -> tuple[Offset, str] | None:
    """Return base offset and suffix; None if the name is not that of a log's file."""
    match = _FILE_NAME.fullmatch(name)
    return None if match is None else (Offset(int(match[1])), match[2])


def parse_swap_name(name: str) -> Offset | None:
    """Return the base offset in the name of a ``.swap`` file; None for other names."""
    parsed = parse_file_name(name.removesuffix(SWAP)) if name.endswith(SWAP) else None
    return parsed[0] if parsed is not None and parsed[1] == LOG else None


def directory_name(partition: TopicPartition) -> str:
    """Return the name of a partition's directory."""
    return str(partition)


def parse_directory_name(name: str) -> TopicPartition | None:
    """Return the partition whose directory has this name; None for other names."""
    match = _DIRECTORY.fullmatch(name)
    return None if match is None else TopicPartition(match[1], int(match[2]))


def deleted_directory_name(partition: TopicPartition, topic_id: TopicId) -> str:
    """Return the name of a directory that is to be removed."""
    return f"{partition}.{topic_id.hex()}-delete"


def is_deleted_directory_name(name: str) -> bool:
    """Tell whether a directory is to be removed."""
    return _DELETED_DIRECTORY.fullmatch(name) is not None


def encode_aborted(transactions: Iterable[AbortedTransaction]) -> bytes:
    """Return entries of a ``.txnindex``."""
    return b"".join(_ABORTED.pack(0, *transaction) for transaction in transactions)


def decode_aborted(data: bytes) -> list[AbortedTransaction]:
    """Return the entries of a ``.txnindex``; raises CorruptionError on anything else."""
    if len(data) % ABORTED_BYTES:
        raise CorruptionError(
            f"transaction index of {len(data)} bytes is not a multiple of {ABORTED_BYTES}"
        )
    entries: list[AbortedTransaction] = []
    for version, producer_id, first, last, stable in _ABORTED.iter_unpack(data):
        entry = AbortedTransaction(
            ProducerId(producer_id), Offset(first), Offset(last), Offset(stable)
        )
        if version != 0 or first > last or (entries and entries[-1].last_offset >= last):
            raise CorruptionError(f"entry {len(entries)} of the transaction index is damaged")
        entries.append(entry)
    return entries


def encode_leader_epochs(entries: Iterable[EpochStart]) -> str:
    """Return the content of a ``leader-epoch-checkpoint``."""
    return _checkpoint([f"{epoch} {offset}" for epoch, offset in entries])


def decode_leader_epochs(text: str) -> list[EpochStart]:
    """Return the entries of a ``leader-epoch-checkpoint``; raises CorruptionError."""
    entries: list[EpochStart] = []
    for line in _checkpoint_lines(text):
        epoch, offset = _integers(line, 2)
        if entries and (epoch <= entries[-1].epoch or offset < entries[-1].offset):
            raise CorruptionError(f"leader epochs decrease at line {line!r}")
        entries.append(EpochStart(epoch, Offset(offset)))
    return entries


def encode_offsets(offsets: Mapping[TopicPartition, Offset]) -> str:
    """Return the content of an offset checkpoint (recovery point, log start, ...).

    Its last line is a checksum: a changed digit could raise the log start, and everything below it
    would be deleted.
    """
    lines = [f"{tp.topic} {tp.partition} {offset}" for tp, offset in sorted(offsets.items())]
    return _checkpoint([*lines, f"{_CHECKSUM} 0 {_checksum(lines)}"])


def decode_offsets(text: str) -> dict[TopicPartition, Offset]:
    """Return the offsets of an offset checkpoint; raises CorruptionError.

    One without a checksum is Kafka's own.
    """
    offsets = {}
    lines = _checkpoint_lines(text)
    for number, line in enumerate(lines):
        topic, _, numbers = line.partition(" ")
        partition, offset = _integers(numbers, 2)
        if topic != _CHECKSUM:
            offsets[TopicPartition(topic, partition)] = Offset(offset)
        elif offset != _checksum(lines[:number]):
            raise CorruptionError("the checksum of the checkpoint is wrong")
    return offsets


def _checksum(lines: list[str]) -> int:
    return crc32c("\n".join(lines).encode("ascii", "replace"))


def _checkpoint(lines: list[str]) -> str:
    return "\n".join([_CHECKPOINT_VERSION, str(len(lines)), *lines, ""])


def _checkpoint_lines(text: str) -> list[str]:
    version, *rest = text.split("\n")
    if version != _CHECKPOINT_VERSION or not rest:
        raise CorruptionError(f"checkpoint version {version!r} is not supported, only 0")
    (count,) = _integers(rest[0], 1)
    lines = rest[1 : 1 + count]
    if len(lines) != count or any(rest[1 + count :]) or len(rest) == 1 + count:
        raise CorruptionError(f"the checkpoint does not have the {count} lines that it announces")
    return lines


def _integers(text: str, count: int) -> list[int]:
    words = text.split()
    if len(words) != count or not all(word.isascii() and word.isdigit() for word in words):
        raise CorruptionError(f"checkpoint line {text!r} is not {count} numbers")
    return [int(word) for word in words]


def topic_id_text(topic_id: TopicId) -> str:
    """Return a topic id as Kafka prints it: base64 for URLs, without padding."""
    return urlsafe_b64encode(topic_id).decode().rstrip("=")


def parse_topic_id(text: str) -> TopicId:
    """Return the topic id of Kafka's text form; raises CorruptionError."""
    try:
        raw = urlsafe_b64decode(text + "==")
    except ValueError:
        raw = b""
    if len(raw) != 16:
        raise CorruptionError(f"{text!r} is not a topic id")
    return TopicId(raw)


def encode_partition_metadata(topic_id: TopicId) -> str:
    """Return the content of ``partition.metadata``."""
    return f"version: 0\ntopic_id: {topic_id_text(topic_id)}"


def decode_partition_metadata(text: str) -> TopicId:
    """Return the topic id in a ``partition.metadata``; raises CorruptionError."""
    values = dict(line.split(": ", 1) for line in text.splitlines() if ": " in line)
    if values.get("version") != "0" or "topic_id" not in values:
        raise CorruptionError("partition.metadata has no topic id of version 0")
    return parse_topic_id(values["topic_id"])


def encode_properties(values: Mapping[str, str]) -> str:
    """Return the content of a properties file such as ``meta.properties``."""
    return "".join(f"{key}={value}\n" for key, value in sorted(values.items()))


def decode_properties(text: str) -> dict[str, str]:
    """Return the properties of a file; raises CorruptionError on a line without ``=``."""
    values = {}
    for line in text.splitlines():
        if not line.strip() or line.lstrip().startswith(("#", "!")):
            continue
        key, separator, value = line.partition("=")
        if not separator:
            raise CorruptionError(f"property line {line!r} has no =")
        values[key.strip()] = value.strip()
    return values
