"""Arbitrary messages made from the definitions, and their likenesses in kafka-python.

Produce and Fetch, which the product has by hand, are generated here to hold the hands against.
"""

import importlib
import random
import uuid
import warnings
from types import ModuleType
from typing import Any

from fencelog.wire.message import Message, Structure
from tools.generate_messages import BY_HAND, OWN_DEFINITIONS, kafka_messages, kafka_module
from tools.message_definitions import Definition, Field, definitions, kafka_definitions, load, snake

KAFKA_NAMES = [name + part for name in kafka_messages() for part in ("Request", "Response")]
OWN_NAMES = sorted({path.stem for path in OWN_DEFINITIONS.glob("*.json")} - set(KAFKA_NAMES))

_BITS = {"int8": 8, "int16": 16, "int32": 32, "int64": 64}
_STRINGS = ("", "a", "orders-0", "Übergröße", "x" * 200, "\N{SNOWMAN}")
_SETS_OF_BITS = {
    "authorized_operations",
    "cluster_authorized_operations",
    "topic_authorized_operations",
}
_BYTES = (b"", b"\0", bytes(range(256)))


def _generated(name: str) -> ModuleType:
    module = ModuleType(f"generated_{snake(name)}")
    exec(compile(kafka_module(name), module.__name__, "exec"), module.__dict__)
    return module


generated = {name: _generated(name) for name in BY_HAND}
"""The messages of a request that no module of the product has, by the request's name."""


class Kind:
    """One message: its definitions, our class, and arbitrary instances of it."""

    def __init__(self, name: str) -> None:
        own = OWN_DEFINITIONS / f"{name}.json"
        source = load(own if own.exists() else kafka_definitions() / f"{name}.json")
        stem = name.removesuffix("Request").removesuffix("Response")
        module = source.get("module", snake(stem))
        self._module = (
            generated[stem]
            if stem in generated
            else importlib.import_module(f"fencelog.wire.messages.{module}")
        )
        self._parts: dict[str, Definition] = {part.name: part for part in definitions(source)}
        self.name = name
        self.message: type[Message] = getattr(self._module, name)

    @property
    def versions(self) -> range:
        """Every version that the message has."""
        return range(self.message.MIN_VERSION, self.message.MAX_VERSION + 1)

    def examples(self, version: int, count: int) -> list[Message]:
        """Return messages that hold any value in the fields of a version, the same every time."""
        dice = random.Random(f"{self.name} {version}")
        return [self._structure(self.name, version, dice) for _ in range(count)]

    def _structure(self, name: str, version: int, dice: random.Random) -> Any:
        values = {
            field.name: self._value(field, version, dice) for field in self._fields(name, version)
        }
        return getattr(self._module, name)(**values)

    def _fields(self, name: str, version: int) -> list[Field]:
        fields = self._parts[name].fields
        return [field for field in fields if field.versions.first <= version <= field.versions.last]

    def _value(self, field: Field, version: int, dice: random.Random) -> Any:
        nullable = field.nullable.first <= version <= field.nullable.last
        if nullable and dice.random() < 0.3:
            return None
        if field.item is None:
            return self._one(field.type, version, dice)
        return [self._one(field.item, version, dice) for _ in range(dice.randrange(4))]

    def _one(self, kind: str, version: int, dice: random.Random) -> Any:
        if kind in _BITS:
            limit = 1 << _BITS[kind] - 1
            return dice.choice((0, 1, -1, limit - 1, -limit, dice.randrange(-limit, limit)))
        if kind in ("bool", "float64"):
            return dice.random() < 0.5 if kind == "bool" else dice.choice((0.0, -1.5, 1e300))
        if kind == "string":
            return dice.choice(_STRINGS)
        if kind in ("bytes", "records"):
            return dice.choice(_BYTES)
        if kind == "uuid":
            return dice.randbytes(16)
        return self._structure(kind, version, dice)

    def likeness(self, message: Message, version: int) -> Any:
        """Return the same message as kafka-python has it."""
        return self._likeness(message, oracle_class(self.name), oracle_class(self.name), version)

    def _likeness(self, one: Structure, like: Any, root: Any, version: int) -> Any:
        fresh = type(one)()
        values = {}
        for field in self._fields(type(one).__name__, version):
            value = getattr(one, field.name)
            if field.tagged and value == getattr(fresh, field.name):
                continue  # kafka-python writes every tagged field that it is given
            if field.name in _SETS_OF_BITS:  # renamed, and a set of bits there
                bits = {bit for bit in range(32) if value >> bit & 1}
                values["authorized_operations"] = bits
                continue
            values[field.name] = self._convert(field, value, like, root, version)
        return like(version=version, **values)

    def _convert(self, field: Field, value: Any, like: Any, root: Any, version: int) -> Any:
        kind = field.item or field.type
        if kind == "uuid" and value is not None:
            return [uuid.UUID(bytes=one) for one in value] if field.item else uuid.UUID(bytes=value)
        if kind not in self._parts or value is None:
            return value
        part = getattr(like, kind, None) or getattr(root, kind)
        if field.item is None:
            return self._likeness(value, part, root, version)
        return [self._likeness(one, part, root, version) for one in value]


def _kafka_python() -> list[Any]:
    """Return kafka-python's packages of messages; it reads its definitions in a deprecated way."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return [
            importlib.import_module(f"kafka.protocol.{package}")
            for package in ("metadata", "admin", "consumer", "producer")
        ]


def oracle_class(name: str) -> Any:
    """Return kafka-python's class of a message."""
    return next(getattr(package, name) for package in _kafka_python() if hasattr(package, name))
