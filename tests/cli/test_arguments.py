"""Arguments that no command can use: each is a usage error that names it, and never a traceback."""

import inspect
import io
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, get_args

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from fencelog.cli.main import build
from fencelog.cli.output import UsageError
from fencelog.cli.record_input import InputForm, read_input
from fencelog.cli.stream_cut import parse_place
from tests.support.cli import Cli

NOBODY = "127.0.0.1:1"
COMMAND = get_command(build())
FILES = {
    ("serve", "config"),
    ("dev", "config"),
    ("topic", "produce", "files"),
}
VALUES = {int: "1", str: "a", Path: "/nowhere"}


@pytest.fixture
def cli() -> Cli:
    """The command line; there is no broker at its address."""
    return Cli(NOBODY)


class Parameter(NamedTuple):
    """An option or argument of a command of the tree."""

    path: tuple[str, ...]
    name: str
    kind: type
    shown: str
    flag: str | None
    """None for an argument."""
    options: tuple[str, ...]
    before: tuple[str, ...]
    """What else the command cannot do without: options, arguments before and after this one."""
    after: tuple[str, ...]

    def given(self, value: str) -> list[str]:
        """Return a command line with this value."""
        if self.flag is not None:
            option = [f"{self.flag}={value}"] if self.flag[1] == "-" else [self.flag, value]
            return [*self.path, *self.options, *option, *self.before]
        escape = ["--"] if value.startswith("-") else []
        return [*self.path, *self.options, *escape, *self.before, value, *self.after]


def _commands(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    for name, each in getattr(command, "commands", {}).items():
        yield from _commands(each, (*path, name))
    if not hasattr(command, "commands"):
        yield path, command


def _kinds(annotation: Any) -> Iterator[Any]:
    yield annotation
    for each in get_args(annotation):
        yield from _kinds(each)


def _kind(command: Any, name: str) -> type | None:
    signature = inspect.signature(command.callback, eval_str=True)
    found = (
        set(_kinds(signature.parameters[name].annotation)) if name in signature.parameters else ()
    )
    return next((each for each in (int, str, Path) if each in found), None)


def _flag(parameter: Any) -> str | None:
    return max(parameter.opts, key=len) if parameter.opts[0].startswith("-") else None


def _parameters() -> Iterator[Parameter]:
    for path, command in _commands(COMMAND):
        kinds = {each.name: _kind(command, each.name) for each in command.params}
        for at, each in enumerate(command.params):
            kind, flag = kinds[each.name], _flag(each)
            if kind is None:
                continue
            options: list[str] = []
            before: list[str] = []
            after: list[str] = []
            for place, other in enumerate(command.params):
                if place == at or not other.required:
                    continue
                value, named = VALUES[kinds[other.name] or str], _flag(other)
                if named is not None:
                    options += [named, value]
                else:
                    (after if flag is None and place > at else before).append(value)
            yield Parameter(
                path=path,
                name=each.name,
                kind=kind,
                shown=" / ".join(each.opts) if flag else each.metavar or each.name,
                flag=flag,
                options=tuple(options),
                before=tuple(before),
                after=tuple(after),
            )


PARAMETERS = list(_parameters())


def named(parameter: Parameter) -> str:
    return " ".join((*parameter.path, parameter.name))


def run(*arguments: str) -> Any:
    """Run the command line in this process, without a broker."""
    return CliRunner(env=Cli(NOBODY).environment).invoke(build(arguments[0]), arguments)


@pytest.mark.parametrize(
    "parameter",
    # What serve is given is checked with its other settings.
    [each for each in PARAMETERS if each.kind is int and each.name != "node_id"],
    ids=named,
)
@pytest.mark.parametrize("number", [1 << 63, -1 << 63, 10**4000])
def test_every_number_has_a_range(parameter: Parameter, number: int) -> None:
    done = run(*parameter.given(str(number)))
    assert (done.exit_code, done.stdout) == (2, ""), done.output
    assert "Invalid value for" in done.stderr


@pytest.mark.parametrize("number", ["9223372036854775808", "9" * 5000])
@pytest.mark.parametrize(
    "command",
    [
        "topic consume t -o {}",
        "topic consume t -o -{}",
        "topic consume t -o @{}",
        "topic consume t -o @-{}d",
        "topic delete-records t -o {}",
        "group seek g -t t -o {}",
        "partition elect t/{}",
        "stream create s --rate {}/s",
        "stream create s --rate {}MB/s",
        'stream group reset g --to {{"segments":{{"0":{}}}}}',
        'stream group reset g --to {{"segments":{{"{}":0}}}}',
        "topic list -X request.timeout.ms={}",
    ],
)
def test_a_number_in_a_text_has_a_range(command: str, number: str) -> None:
    done = run(*command.format(number).split())
    assert (done.exit_code, done.stdout) == (2, ""), done.output
    error, hint = done.stderr.splitlines()
    assert error.startswith("error: ")
    assert "expected" in error
    assert hint.startswith("hint: ")


@pytest.mark.parametrize("time", ["@0001-01-01", "@1969-12-31T23:59:59", "@-30000d"])
def test_a_time_before_1970_is_refused(time: str) -> None:
    done = run("topic", "consume", "t", "-o", time)
    assert done.exit_code == 2
    assert f"error: -o {time}: expected a time from 1970 on" in done.stderr


@pytest.mark.parametrize(
    "parameter",
    [each for each in PARAMETERS if each.kind is str and (*each.path, each.name) not in FILES],
    ids=named,
)
def test_a_text_that_is_not_utf8_is_refused_by_its_name(parameter: Parameter) -> None:
    done = run(*parameter.given("a=\udcff"))
    assert (done.exit_code, done.stdout) == (2, ""), done.output
    error, hint = done.stderr.splitlines()
    assert error == f"error: {parameter.shown}: a=\\xff is not UTF-8"
    assert hint.startswith("hint: ")


@pytest.mark.parametrize(
    "arguments",
    [
        ["topic", "describe", b"\xff"],
        ["own", "claim", b"\xff", "--", "true"],
        ["dev", "--listen", b"\xff:1"],
        ["cluster", "info", "-b", b"\xff:1"],
    ],
)
def test_an_argument_of_a_shell_that_is_not_utf8_is_refused(
    cli: Cli, arguments: list[str | bytes]
) -> None:
    refused = cli.refused(2, *(os.fsdecode(each) for each in arguments))
    assert "\\xff" in refused
    assert "is not UTF-8\nhint: " in refused
    assert refused.count("\n") == 2


def test_an_address_of_the_environment_that_is_not_utf8_is_refused() -> None:
    cli = Cli(os.fsdecode(b"\xff:1"))
    assert "-b / --bootstrap-server: \\xff:1 is not UTF-8" in cli.refused(2, "topic", "list")


@pytest.mark.parametrize(
    "command",
    [["serve", "--data-dir", "/nowhere", "--config"], ["topic", "produce", "t"], ["check"]],
)
def test_the_name_of_a_file_may_have_any_bytes(cli: Cli, command: list[str]) -> None:
    refused = cli.refused(2, *command, os.fsdecode(b"/nowhere/\xff"))
    assert "/nowhere/\\udcff: No such file or directory" in refused


NESTED = "[" * 100_000


@pytest.mark.parametrize("line", [NESTED, '{"value": ' + NESTED, '{"timestamp": ' + NESTED])
def test_a_record_that_is_nested_too_deeply_is_refused_by_its_number(line: str) -> None:
    with pytest.raises(UsageError, match=r"^--json: record 1 .*: it is nested too deeply$"):
        list(read_input(io.BytesIO(line.encode()), InputForm(as_json=True)))


@pytest.mark.parametrize("text", ["{" + NESTED, '{"segments": {"0": ' + NESTED, '{"segments": 1}'])
def test_a_stream_cut_that_cannot_be_read_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match=r"^--to: expected a stream cut"):
        parse_place(text, "--to")


def test_a_stream_cut_of_stdin_that_is_not_utf8_is_refused(cli: Cli) -> None:
    refused = cli.refused(2, "stream", "group", "reset", "g", "--to", "-", stdin=b"\xff")
    assert "error: --to: expected a stream cut" in refused


@pytest.mark.parametrize(
    ("command", "text"),
    [(["check"], NESTED), (["serve", "--data-dir", "/nowhere", "--config"], f"a = {NESTED}")],
)
def test_a_file_that_is_nested_too_deeply_is_named(
    cli: Cli, command: list[str], text: str, tmp_path: Path
) -> None:
    file = tmp_path / "nested.toml"
    file.write_text(text, encoding="utf-8")
    refused = cli.refused(2, *command, str(file))
    assert str(file) in refused
    assert "nested too deeply" in refused
