"""How ``fencelog run`` leaves, and when a signal may end it at once."""

from contextlib import suppress
from pathlib import Path

import pytest

from fencelog.cli.run import _leave, _Phases, _spark_log, run

MISSING = "fencelog.errors.RequestError: topic t does not exist (UNKNOWN_TOPIC_OR_PARTITION)"


@pytest.mark.parametrize(
    ("cause", "status", "hint"),
    [
        (MISSING, 4, "`fencelog topic list` shows the topics"),
        ("fencelog.errors.RequestError: refused (NETWORK_EXCEPTION)", 3, "check that the broker"),
        ("ZeroDivisionError: division by zero", 1, "nothing is lost"),
    ],
)
def test_a_failed_query_gives_the_status_of_its_error(
    cause: str, status: int, hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as left:
        _leave({"q": cause}, interrupted=True)
    assert left.value.code == status
    error, said = capsys.readouterr().err.splitlines()
    assert error == f"error: query 'q' failed: {cause}"
    assert said.startswith(f"hint: {hint}")


def test_an_interrupt_has_its_status_and_an_end_has_none() -> None:
    with pytest.raises(SystemExit) as left:
        _leave({}, interrupted=True)
    assert left.value.code == 130
    _leave({}, interrupted=False)


def test_a_pipeline_is_owned_on_a_broker_that_is_named(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    with pytest.raises(SystemExit) as left:
        run(tmp_path / "orders.py", own=True)
    assert left.value.code == 2
    assert capsys.readouterr().err.startswith("error: --own needs a broker: -b HOST:PORT\n")


def test_a_signal_ends_the_process_at_once_only_while_no_query_runs() -> None:
    phases = _Phases()
    assert not phases.may_leave
    phases.stop.set()
    assert phases.may_leave
    phases.begun.set()
    assert not phases.may_leave
    phases.hurry.set()
    assert phases.may_leave
    phases.started.set()
    assert not phases.may_leave


@pytest.mark.parametrize(
    ("ending", "is_kept"),
    [(None, False), (SystemExit(130), False), (SystemExit(1), True), (RuntimeError("x"), True)],
)
def test_the_log_of_spark_is_kept_and_named_if_the_run_fails(
    ending: BaseException | None,
    is_kept: bool,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with suppress(SystemExit, RuntimeError), _spark_log("orders") as path:
        path.write_text("what Spark says")
        if ending is not None:
            raise ending
    assert path.parent == tmp_path
    assert path.exists() == is_kept
    assert (capsys.readouterr().err == f"Spark's log is in {path}\n") == is_kept
