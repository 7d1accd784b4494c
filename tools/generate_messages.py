"""Writes typed classes with straight-line code for each message and each coordinator record.

Sources are Kafka's own message definitions, as the kafka-python package ships them, and in the same
form ``src/fencelog/wire/definitions``, fencelog's own requests and Kafka's with a tagged field of
fencelog's, and ``src/fencelog/coordination/definitions``, the records of the coordinators (type
``data``).
``ApiKey`` and ``BrokerApiKey`` say which requests are spoken. After a change to any of these, run
it and commit what it writes::

    .venv/bin/python -m tools.generate_messages

The definitions are read as files, kafka-python is never imported. A test compares what this
writes with what is committed.
"""

import argparse
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fencelog.wire import api_versions
from fencelog.wire.api_versions import ApiKey, BrokerApiKey
from tools.message_definitions import (
    NULLABLE_METHOD,
    SCALARS,
    Definition,
    Field,
    Versions,
    definitions,
    kafka_definitions,
    load,
    snake,
)

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src/fencelog"
OWN_DEFINITIONS = PACKAGE / "wire/definitions"
RECORD_DEFINITIONS = PACKAGE / "coordination/definitions"
MESSAGES = "wire/messages"
RECORDS = "coordination/schemas"

FLEXIBLE_VERSIONS = "wire/flexible_versions.py"

BY_HAND = ("Produce", "Fetch")
"""Those of Kafka's requests that ``fencelog.wire.hot`` has by hand."""


class Writer:
    """Writes the code of one structure."""

    def __init__(self, definition: Definition, sizes: dict[str, int]) -> None:
        self.definition = definition
        self.sizes = sizes
        self.always_flexible = definition.flexible.covers(definition.versions)
        self.never_flexible = not definition.flexible.within(definition.versions)
        self.plain = [f for f in definition.fields if not f.tagged and f.versions]
        self.tagged = sorted((f for f in definition.fields if f.tagged), key=lambda f: f.tag)

    def lines(self) -> Iterator[str]:
        """Yield the class, line by line."""
        one = self.definition
        yield f"class {one.name}({one.base}):"
        yield f'    """{docstring(one.about)}"""'
        yield ""
        yield from wrapped("    __slots__ = (", [f'"{f.name}"' for f in self.all_fields], ")")
        if one.api_key is not None:
            yield f"    API_KEY = {one.api_key}"
        if one.base != "Structure":
            yield f"    MIN_VERSION = {one.versions.first}"
            yield f"    MAX_VERSION = {one.versions.last}"
        yield ""
        yield from self.init_lines()
        yield ""
        yield from self.read_lines()
        yield ""
        yield from self.write_lines()

    @property
    def all_fields(self) -> list[Field]:
        """Fields that some version has, in the order of the definition."""
        return [f for f in self.definition.fields if f.versions]

    def init_lines(self) -> Iterator[str]:
        """Yield the constructor."""
        if not self.all_fields:
            yield "    def __init__(self) -> None:"
            yield "        pass"
            return
        yield "    def __init__("
        yield "        self,"
        yield "        *,"
        for one in self.all_fields:
            optional = " | None" if one.is_structure and not one.hint.endswith("None") else ""
            yield f"        {one.name}: {one.hint}{optional} = {one.default_code},"
        yield "    ) -> None:"
        for one in self.all_fields:
            value = one.name
            if one.default_code == "EMPTY":
                value = f"[] if {one.name} is EMPTY else {one.name}"
            elif one.is_structure and not one.hint.endswith("None"):
                value = f"{one.type}() if {one.name} is None else {one.name}"
            yield f"        self.{one.name} = {value}"

    def groups(self) -> Iterator[list[Field]]:
        """Yield the fields without a tag; neighbours of fixed size and equal versions together."""
        group: list[Field] = []
        for one in self.plain:
            fixed = one.type in SCALARS and SCALARS[one.type].code
            if group and not (fixed and group[-1].versions == one.versions):
                yield group
                group = []
            group.append(one)
            if not fixed:
                yield group
                group = []
        if group:
            yield group

    def flexible_lines(self) -> Iterator[str]:
        """Yield the line that says whether the version is flexible, where that is a question."""
        if not self.always_flexible and not self.never_flexible:
            test = self.definition.flexible.test(self.definition.versions)
            yield f"        flexible = {test}"

    @property
    def flexible(self) -> str:
        """Expression for whether the version is flexible."""
        if self.always_flexible:
            return "True"
        return "False" if self.never_flexible else "flexible"

    def guarded(self, test: str | None, body: list[str], indent: str) -> Iterator[str]:
        """Yield lines, under a condition where there is one."""
        if test is None:
            yield from (indent + line for line in body)
        else:
            yield f"{indent}if {test}:"
            yield from (indent + "    " + line for line in body)

    # --- reading

    def read_lines(self) -> Iterator[str]:
        """Yield ``read_from``."""
        yield "    @classmethod"
        yield "    def read_from(cls, reader: Reader, version: int) -> Self:"
        yield from self.flexible_lines()
        yield "        self = cls.__new__(cls)"
        for group in self.groups():
            test = group[0].versions.test(self.definition.versions)
            yield from self.guarded(test, self.read_group(group), "        ")
            if test is not None:
                yield "        else:"
                yield from (f"            self.{one.name} = {one.fresh_code}" for one in group)
        for one in self.tagged:
            yield f"        self.{one.name} = {one.fresh_code}"
        if not self.never_flexible:
            test = None if self.always_flexible else "flexible"
            yield from self.guarded(test, self.read_tags(), "        ")
        yield "        return self"

    def read_tags(self) -> list[str]:
        """Return the loop over tagged fields, unknown ones passed over."""
        if not self.tagged:
            return ["reader.skip_tags()"]
        lines = ["for tag, field in reader.tags():"]
        context = self.definition.flexible.within(self.definition.versions)
        for number, one in enumerate(self.tagged):
            test = one.tagged.test(context)
            condition = f"tag == {one.tag}" + (f" and {test}" if test else "")
            lines.append(f"    {'elif' if number else 'if'} {condition}:")
            lines += ["        " + line for line in self.read_field(one, "field")]
            lines.append("        field.expect_end()")
        return lines

    def read_group(self, group: list[Field]) -> list[str]:
        """Return the lines that read neighbours, numbers together."""
        if len(group) == 1:
            return self.read_field(group[0], "reader")
        names = ", ".join(f"self.{one.name}" for one in group)
        return [f"{names} = reader.unpack({layout(group)})"]

    def read_field(self, one: Field, reader: str) -> list[str]:
        """Return the lines that read one field in the versions that have it."""
        nullable = one.nullable.test(one.versions) if one.nullable else "never"
        if one.item is not None:
            return self.read_array(one, reader, nullable)
        assert not (one.is_structure and one.nullable), f"nullable structure {one.name}"
        value = self.read_value(one.type, reader)
        if nullable != "never":
            maybe = f"{reader}.{NULLABLE_METHOD[one.type]}({self.flexible})"
            value = maybe if nullable is None else f"{maybe} if {nullable} else {value}"
        return [f"self.{one.name} = {value}"]

    def read_array(self, one: Field, reader: str, nullable: str | None) -> list[str]:
        """Return the lines that read an array."""
        assert one.item is not None
        size_min = self.size_min(one.item)
        least = "" if size_min == 1 else f", {size_min}"
        length = f"{reader}.array_length({self.flexible}{least})"
        items = f"[{self.read_value(one.item, reader)} for _ in range({{}})]"
        if nullable == "never":
            return [f"self.{one.name} = {items.format(length)}"]
        maybe = f"{reader}.nullable_array_length({self.flexible}{least})"
        count = maybe if nullable is None else f"{maybe} if {nullable} else {length}"
        return [
            f"count = {count}",
            f"self.{one.name} = None if count < 0 else {items.format('count')}",
        ]

    def read_value(self, kind: str, reader: str) -> str:
        """Return the expression that reads one value that is not null."""
        if kind not in SCALARS:
            return f"{kind}.read_from({reader}, version)"
        argument = self.flexible if kind in NULLABLE_METHOD else ""
        return f"{reader}.{SCALARS[kind].method}({argument})"

    def size_min(self, kind: str) -> int:
        """Return how many bytes a value takes at least."""
        return SCALARS[kind].size_min if kind in SCALARS else max(1, self.sizes[kind])

    def own_size_min(self) -> int:
        """Return how many bytes this structure takes at least, in any version."""
        size = 1 if self.always_flexible else 0
        for one in self.plain:
            if one.versions.covers(self.definition.versions):
                size += 1 if one.item is not None else self.size_min(one.type)
        return size

    # --- writing

    def write_lines(self) -> Iterator[str]:
        """Yield ``write_to``."""
        yield "    def write_to(self, out: bytearray, version: int) -> None:"
        if not self.plain and self.never_flexible:
            yield "        pass"
            return
        yield from self.flexible_lines()
        for group in self.groups():
            test = group[0].versions.test(self.definition.versions)
            yield from self.guarded(test, self.write_group(group), "        ")
        if not self.never_flexible:
            test = None if self.always_flexible else "flexible"
            yield from self.guarded(test, self.write_tags(), "        ")

    def write_tags(self) -> list[str]:
        """Return the lines that write the tagged fields which differ from their defaults."""
        if not self.tagged:
            return ["out.append(0)"]
        lines = ["tags: list[tuple[int, bytearray]] = []"]
        context = self.definition.flexible.within(self.definition.versions)
        for one in self.tagged:
            test = one.tagged.test(context)
            condition = f"self.{one.name} != {one.fresh_code}" + (f" and {test}" if test else "")
            lines.append(f"if {condition}:")
            lines.append("    field = bytearray()")
            lines += ["    " + line for line in self.write_field(one, "field")]
            lines.append(f"    tags.append(({one.tag}, field))")
        lines.append("write_tags(out, tags)")
        return lines

    def write_group(self, group: list[Field]) -> list[str]:
        """Return the lines that write neighbours, numbers together."""
        if len(group) == 1:
            return self.write_field(group[0], "out")
        names = ", ".join(f"self.{one.name}" for one in group)
        return [f"out += {layout(group)}.pack({names})"]

    def write_field(self, one: Field, out: str) -> list[str]:
        """Return the lines that write one field in the versions that have it."""
        lines = []
        if one.hint.endswith("None") and not one.nullable.covers(one.versions):
            test = one.nullable.test(one.versions) if one.nullable else None
            exempt = f"{test} or " if test else ""
            lines.append(f'assert {exempt}self.{one.name} is not None, "{one.name}"')
        if one.name == "error_message":
            written = f"write_error_message({out}, self.{one.name}, {self.flexible})"
            return [*lines, written]
        if one.item is None:
            return [*lines, self.write_value(one.type, f"self.{one.name}", out)]
        lines.append(f"write_length({out}, self.{one.name}, {self.flexible})")
        absent = " or ()" if one.hint.endswith("None") else ""
        lines.append(f"for one_of_{one.name} in self.{one.name}{absent}:")
        lines.append("    " + self.write_value(one.item, f"one_of_{one.name}", out))
        return lines

    def write_value(self, kind: str, value: str, out: str) -> str:
        """Return the statement that writes one value."""
        if kind not in SCALARS:
            return f"{value}.write_to({out}, version)"
        if kind == "string":
            return f"write_string({out}, {value}, {self.flexible})"
        if kind in ("bytes", "records"):
            return f"write_bytes({out}, {value}, {self.flexible})"
        if kind == "uuid":
            return f"write_uuid({out}, {value})"
        if kind == "bool":
            return f"{out}.append({value})"
        return f"{out} += {SCALARS[kind].pack}({value})"


def layout(group: list[Field]) -> str:
    """Return the name of the layout of fields of fixed size: ``LAYOUT_ihq`` is ``>ihq``."""
    codes = "".join(SCALARS[one.type].code for one in group)
    return "LAYOUT_" + codes.replace("?", "t")


def layouts(code: str) -> list[str]:
    """Return the layouts that the code uses, as statements."""
    used = sorted(set(re.findall(r"\bLAYOUT_(\w+)", code)))
    made = [f'LAYOUT_{codes} = Struct(">{codes.replace("t", "?")}")' for codes in used]
    return ["", *made] if made else []


def docstring(about: str) -> str:
    """Return the first sentence, on one line."""
    sentence = re.split(r"(?<=\.)\s", about.strip())[0].rstrip(".")
    return (sentence[:88].rsplit(" ", 1)[0] + " …" if len(sentence) > 90 else sentence) + "."


def wrapped(opening: str, items: list[str], closing: str) -> Iterator[str]:
    """Yield a tuple on one line, or with an item per line."""
    if len(items) == 1:
        yield f"{opening}{items[0]},{closing}"
        return
    line = opening + ", ".join(items) + closing
    if len(line) <= 100:
        yield line
        return
    yield opening
    yield from (f"        {item}," for item in items)
    yield f"    {closing}"


def _shape(definition: Definition) -> list[tuple[str, str, int]]:
    """What two records have to agree on to share a structure, whatever versions each has."""
    return [(each.name, each.type, each.versions.first) for each in definition.fields]


def module_text(title: str, sources: list[dict[str, Any]]) -> str:
    """Return the text of one module, for the messages that share it."""
    body: list[str] = []
    exports: dict[str, Definition] = {}
    sizes: dict[str, int] = {}
    for source in sources:
        for definition in definitions(source):
            known = exports.get(definition.name)
            if known is not None:
                assert _shape(known) == _shape(definition), f"two structures {definition.name}"
                continue
            exports[definition.name] = definition
            writer = Writer(definition, sizes)
            sizes[definition.name] = writer.own_size_min()
            body += ["", "", *writer.lines()]
    code = "\n".join(body)
    lines = [
        f'"""{title} Generated by tools.generate_messages: do not edit."""',
        "",
        "# ruff: noqa",
        "# fmt: off",
        "",
        *imports("struct", ["Struct"], "Struct" if layouts(code) else ""),
        "from typing import Self",
        "",
        *imports("fencelog.coordination.encoding", ["Data"], code),
        *imports("fencelog.types", ["NO_TOPIC_ID", "Buffer"], code),
        *imports("fencelog.wire.message", ["EMPTY", "Message", "Structure"], code),
        *imports("fencelog.wire.primitives", ["Reader", *PRIMITIVES], code),
        *layouts(code),
    ]
    return "\n".join(lines) + "\n" + code + "\n"


PRIMITIVES = [
    *(scalar.pack for scalar in SCALARS.values() if scalar.pack),
    "write_bytes",
    "write_error_message",
    "write_length",
    "write_string",
    "write_tags",
    "write_uuid",
]


def imports(module: str, names: list[str], code: str) -> list[str]:
    """Return the import of those names that the code uses."""
    used = sorted({name for name in names if re.search(rf"\b{name}\b", code)})
    if not used:
        return []
    line = f"from {module} import {', '.join(used)}"
    if len(line) <= 100:
        return [line]
    return [f"from {module} import (", *(f"    {name}," for name in used), ")"]


def kafka_module(name: str) -> str:
    """Return the text of the module of one of Kafka's requests."""
    folder = kafka_definitions()
    sources = [load(folder / f"{name}{part}.json") for part in ("Request", "Response")]
    return module_text(f"{name}, Kafka's request {sources[0]['apiKey']}.", sources)


def kafka_messages() -> list[str]:
    """Return the names of Kafka's requests that are spoken here, in the order of their numbers."""
    return [
        key.name.title().replace("_", "") for key in sorted(ApiKey) if key < api_versions.OWN_FROM
    ]


def by_module(folder: Path) -> dict[str, list[dict[str, Any]]]:
    """Return the definitions of a folder by the module that they are written to."""
    modules: dict[str, list[dict[str, Any]]] = {}
    for path in sorted(folder.glob("*.json")):
        source = load(path)
        modules.setdefault(source["module"], []).append(source)
    return modules


def flexible_versions() -> str:
    """Return the module with the first flexible version of each request that has one."""
    folders = (kafka_definitions(), OWN_DEFINITIONS)
    requests = [load(path) for folder in folders for path in folder.glob("*Request.json")]
    flexible = {each["apiKey"]: Versions.parse(each["flexibleVersions"]) for each in requests}
    rows = [
        f"    {int(key)}: {flexible[key].first},  # {key.name}"
        for key in (*sorted(ApiKey), *sorted(BrokerApiKey))
        if flexible[key]
    ]
    return "\n".join(
        [
            '"""First flexible version of each request. '
            'Generated by tools.generate_messages: do not edit."""',
            "",
            "FLEXIBLE_FROM = {",
            *rows,
            "}",
            "",
        ]
    )


def generate() -> dict[str, str]:
    """Return the text of every generated module by its path below ``PACKAGE``."""
    texts = {FLEXIBLE_VERSIONS: flexible_versions()}
    for name in kafka_messages():
        if name not in BY_HAND:
            texts[f"{MESSAGES}/{snake(name)}.py"] = kafka_module(name)
    for module, sources in by_module(OWN_DEFINITIONS).items():
        names = " and ".join(source["name"] for source in sources)
        is_own = sources[0]["apiKey"] >= api_versions.OWN_FROM
        whose = "fencelog's own" if is_own else "Kafka's, with fields of fencelog's own"
        texts[f"{MESSAGES}/{module}.py"] = module_text(f"{names}, {whose}.", sources)
    for module, sources in by_module(RECORD_DEFINITIONS).items():
        title = f"Keys and values of {module.replace('_', ' ')} records."
        texts[f"{RECORDS}/{module}.py"] = module_text(title, sources)
    return texts


def committed() -> dict[str, str]:
    """Return the text of every module that was generated before, by its path."""
    modules = [PACKAGE / FLEXIBLE_VERSIONS]
    for folder in (MESSAGES, RECORDS):
        modules += (each for each in (PACKAGE / folder).glob("*.py") if each.name != "__init__.py")
    return {
        path.relative_to(PACKAGE).as_posix(): path.read_text(encoding="utf-8") for path in modules
    }


def main() -> None:
    """Write the modules, and remove those that are generated no more."""
    argparse.ArgumentParser(description=main.__doc__).parse_args()
    texts = generate()
    for name in committed().keys() - texts.keys():
        (PACKAGE / name).unlink()
    for name, text in texts.items():
        (PACKAGE / name).write_text(text, encoding="utf-8")
    print(f"{len(texts)} modules below {PACKAGE.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
