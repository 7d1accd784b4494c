"""Reads Kafka's message definitions: fields, and the versions that have them."""

import importlib.util
import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

FOREVER = 1 << 15


@dataclass(frozen=True)
class Versions:
    """A range of versions, both ends included; empty where ``last`` is below ``first``."""

    first: int
    last: int

    @classmethod
    def parse(cls, text: str | None) -> "Versions":
        """Read Kafka's notation: ``3``, ``0-4``, ``2+``, ``none``."""
        if text is None or text == "none":
            return cls(1, 0)
        if text.endswith("+"):
            return cls(int(text[:-1]), FOREVER)
        first, _, last = text.partition("-")
        return cls(int(first), int(last or first))

    def within(self, other: "Versions") -> "Versions":
        """Return what both ranges have."""
        return Versions(max(self.first, other.first), min(self.last, other.last))

    def covers(self, other: "Versions") -> bool:
        """Tell whether every version of ``other`` is in this range."""
        return self.first <= other.first and other.last <= self.last

    def __bool__(self) -> bool:
        """Tell whether any version is in the range."""
        return self.first <= self.last

    def test(self, context: "Versions") -> str | None:
        """Return the condition on ``version`` that holds here, known to be within ``context``."""
        if self.covers(context):
            return None
        if self.last >= context.last:
            return f"version >= {self.first}"
        if self.first <= context.first:
            return f"version <= {self.last}"
        if self.first == self.last:
            return f"version == {self.first}"
        return f"{self.first} <= version <= {self.last}"


@dataclass(frozen=True)
class Scalar:
    """How one elementary type is typed, read and written, and what it needs at least."""

    hint: str
    default: str
    method: str
    size_min: int
    pack: str = ""
    code: str = ""  # in the struct module; empty where the size varies


SCALARS = {
    "bool": Scalar("bool", "False", "boolean", 1, "", "?"),
    "int8": Scalar("int", "0", "int8", 1, "pack_int8", "b"),
    "int16": Scalar("int", "0", "int16", 2, "pack_int16", "h"),
    "int32": Scalar("int", "0", "int32", 4, "pack_int32", "i"),
    "int64": Scalar("int", "0", "int64", 8, "pack_int64", "q"),
    "float64": Scalar("float", "0.0", "float64", 8, "pack_float64", "d"),
    "uuid": Scalar("bytes", "NO_TOPIC_ID", "uuid", 16),
    "string": Scalar("str", '""', "string", 1),
    "bytes": Scalar("bytes", 'b""', "required_bytes", 1),
    "records": Scalar("Buffer", 'b""', "required_view", 1),
}
NULLABLE_METHOD = {
    "string": "nullable_string",
    "bytes": "nullable_bytes",
    "records": "nullable_view",
}


@dataclass
class Field:
    """One field of a structure; ``versions`` are already cut to those of its message."""

    name: str
    type: str
    versions: Versions
    nullable: Versions
    tagged: Versions
    tag: int
    default: object

    @property
    def item(self) -> str | None:
        """Type of an array's items; None where this is no array."""
        return self.type.removeprefix("[]") if self.type.startswith("[]") else None

    @property
    def hint(self) -> str:
        """Annotation of the attribute."""
        if self.item is not None:
            hint = f"list[{SCALARS[self.item].hint if self.item in SCALARS else self.item}]"
        else:
            hint = SCALARS[self.type].hint if self.type in SCALARS else self.type
        return f"{hint} | None" if self.nullable or self.default == "null" else hint

    @property
    def default_code(self) -> str:
        """Expression of the default, as a parameter has it."""
        if self.default == "null":
            return "None"
        if self.item is not None:
            return "EMPTY"
        if self.type not in SCALARS:
            return "None"
        if self.default is None or self.default == "":
            return SCALARS[self.type].default
        if self.type == "bool":
            return str(str(self.default).lower() == "true")
        return str(int(str(self.default), 0))

    @property
    def fresh_code(self) -> str:
        """Expression of the default, as an attribute gets it where the version lacks the field."""
        code = self.default_code
        if code == "EMPTY":
            return "[]"
        return f"{self.type}()" if code == "None" and self.is_structure else code

    @property
    def is_structure(self) -> bool:
        """Whether this is one structure, and no array of them."""
        return self.item is None and self.type not in SCALARS


@dataclass
class Definition:
    """A structure with its fields."""

    name: str
    about: str
    versions: Versions
    flexible: Versions
    fields: list[Field] = field(default_factory=list)
    base: str = "Structure"
    """``Message`` of a request or response, ``Data`` of a record's key or value."""
    api_key: int | None = None
    """Of a message."""


def snake(name: str) -> str:
    """Turn Kafka's names into Python's: ``V3AndBelowTopics`` into ``v3_and_below_topics``."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower()


def kafka_definitions() -> Path:
    """Return the directory of Kafka's definitions in the installed kafka-python."""
    spec = importlib.util.find_spec("kafka")
    assert spec is not None, "kafka-python is not installed"
    assert spec.submodule_search_locations is not None
    return Path(next(iter(spec.submodule_search_locations))) / "protocol/schemas/resources"


def load(path: Path) -> dict[str, Any]:
    """Read one definition; Kafka's JSON has comments on lines of their own."""
    lines = path.read_text(encoding="utf-8").splitlines()
    loaded: dict[str, Any] = json.loads(
        "\n".join(line for line in lines if not line.lstrip().startswith("//"))
    )
    return loaded


def definitions(source: dict[str, Any]) -> list[Definition]:
    """Return the structures of one message or record, inner ones first, the whole one last."""
    valid = Versions.parse(source["validVersions"])
    flexible = Versions.parse(source["flexibleVersions"]).within(valid)
    common = {shared["name"]: shared for shared in source.get("commonStructs", ())}
    done: dict[str, Definition] = {}

    def structure(name: str, about: str, fields: list[dict[str, Any]], within: Versions) -> None:
        made = Definition(name, about, within, flexible)
        for described in fields:
            made.fields.append(one := parse_field(described, within))
            inner = one.item or one.type
            if inner in SCALARS or inner in done:
                continue
            inner_fields = described.get("fields") or common[inner]["fields"]
            # A structure that several fields share is read wherever one of them is.
            inner_within = valid if inner in common else one.versions
            structure(inner, described.get("about", ""), inner_fields, inner_within)
        done[name] = made

    is_data = source["type"] == "data"
    about = f"{source['name']}." if is_data else f"Body of {source['name']}."
    structure(source["name"], about, source["fields"], valid)
    whole = done[source["name"]]
    whole.base = "Data" if is_data else "Message"
    whole.api_key = None if is_data else source["apiKey"]
    return list(done.values())


def parse_field(described: dict[str, Any], within: Versions) -> Field:
    """Read one field's description."""
    versions = Versions.parse(described["versions"]).within(within)
    tagged = Versions.parse(described.get("taggedVersions")).within(within)
    assert not tagged or tagged == versions, f"{described['name']} is tagged in some versions only"
    return Field(
        name=snake(described["name"]),
        type=described["type"],
        versions=versions,
        nullable=Versions.parse(described.get("nullableVersions")).within(versions),
        tagged=tagged,
        tag=described.get("tag", -1),
        default=described.get("default"),
    )
