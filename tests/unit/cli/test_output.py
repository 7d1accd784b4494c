"""What a script can rely on: statuses, stdout for data, stderr for words."""

import json

import pytest

from fencelog.cli.options import connection, key_values
from fencelog.cli.output import ExitStatus, Format, UsageError, reported_errors, show_rows
from fencelog.errors import ErrorCode, FencelogError, RequestError


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (UsageError("-p 9: no such partition"), ExitStatus.USAGE),
        (RequestError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "topic x"), ExitStatus.NOT_FOUND),
        (RequestError(ErrorCode.INVALID_CONFIG, "retention.ms=x"), ExitStatus.FAILED),
        (RequestError(ErrorCode.NETWORK_EXCEPTION, "no broker"), ExitStatus.UNREACHABLE),
        (OSError("disk full"), ExitStatus.FAILED),
        (ConnectionRefusedError("127.0.0.1:1"), ExitStatus.UNREACHABLE),
        (TimeoutError(), ExitStatus.UNREACHABLE),
        (FencelogError("something"), ExitStatus.FAILED),
        (KeyboardInterrupt(), ExitStatus.INTERRUPTED),
    ],
)
def test_each_kind_of_failure_has_its_exit_status(
    error: BaseException, status: ExitStatus, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as left, reported_errors():
        raise error
    assert left.value.code == status
    assert capsys.readouterr().out == ""


def test_an_error_says_what_was_wrong_and_what_to_do(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit), reported_errors():
        raise RequestError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "topic nowhere does not exist")
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "error: topic nowhere does not exist (UNKNOWN_TOPIC_OR_PARTITION)"
    assert lines[1].startswith("hint: ")
    assert "fencelog topic create" in lines[1]


def test_a_mistake_of_ours_is_not_dressed_up_as_the_users() -> None:
    with pytest.raises(AssertionError), reported_errors():
        raise AssertionError("ours")


def test_a_pipe_gets_one_line_of_json(capsys: pytest.CaptureFixture[str]) -> None:
    show_rows([{"topic": "a", "partitions": 3}], ("topic", "partitions"), None)
    out = capsys.readouterr().out
    assert out.count("\n") == 1
    assert json.loads(out) == [{"topic": "a", "partitions": 3}]


def test_a_table_shows_markup_characters_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    show_rows([{"topic": "[red]a[/red]", "x": None}], ("topic", "x"), Format.TABLE)
    out = capsys.readouterr().out
    assert "[red]a[/red]" in out
    assert "\x1b" not in out


def test_a_property_that_the_verb_does_not_know_is_refused_with_those_it_knows() -> None:
    assert connection("h:1", ["client.id=me"]).properties == {"client.id": "me"}
    with pytest.raises(UsageError, match=r"-X acks: unknown property; known: .*client\.id"):
        connection("h:1", ["acks=all"])


@pytest.mark.parametrize("pair", ["novalue", "=x", ""])
def test_a_pair_without_key_or_equals_is_refused(pair: str) -> None:
    with pytest.raises(UsageError, match="expected KEY=VALUE"):
        key_values([pair], "-H")
