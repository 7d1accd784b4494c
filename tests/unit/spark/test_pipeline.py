"""The pipeline file: what is accepted, and what is said about the rest."""

from pathlib import Path

import pytest

from fencelog.spark.pipeline import PipelineError, _named, load, one_line


class Writer:
    def trigger(self) -> None:
        """What distinguishes a writer from other values."""


def write(folder: Path, text: str) -> Path:
    file = folder / "my_pipeline.py"
    file.write_text(text)
    return file


def test_the_function_named_pipeline_is_found(tmp_path: Path) -> None:
    function = load(write(tmp_path, "def pipeline(spark):\n    return spark\n"))
    assert function(7) == 7


def test_a_helper_beside_the_file_can_be_imported(tmp_path: Path) -> None:
    (tmp_path / "my_helper.py").write_text("VALUE = 5\n")
    file = write(tmp_path, "import my_helper\ndef pipeline(spark):\n    return my_helper.VALUE\n")
    assert load(file)(None) == 5


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("x = 1", r"has no function pipeline\(spark\)"),
        ("import no_such_module", "ModuleNotFoundError: No module named 'no_such_module'"),
        ("def pipeline(", "SyntaxError"),
    ],
)
def test_a_file_that_is_no_pipeline_is_refused(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(PipelineError, match=says):
        load(write(tmp_path, text))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match=r"file .*gone.py does not exist"):
        load(tmp_path / "gone.py")


def test_one_writer_is_named_after_the_file_and_several_by_their_keys(tmp_path: Path) -> None:
    writer = Writer()
    assert _named(writer, tmp_path / "delays.py") == {"delays": writer}
    assert _named({"a": writer, "b": writer}, tmp_path / "delays.py") == {"a": writer, "b": writer}


@pytest.mark.parametrize(
    ("returned", "says"),
    [
        (None, "returned NoneType for 'p'"),
        ({"a b": Writer()}, "'a b' is not a valid query name"),
        ({}, "returned no query"),
    ],
)
def test_another_answer_is_refused(returned: object, says: str) -> None:
    with pytest.raises(PipelineError, match=says):
        _named(returned, Path("p.py"))


def test_the_innermost_python_error_is_what_went_wrong() -> None:
    spark = (
        "[STREAM_FAILED] Query [id = 1] terminated with exception: Job aborted\n"
        "org.apache.spark.SparkException: Job aborted\n"
        "Traceback (most recent call last):\n"
        '  File "x.py", line 5, in write\n'
        "fencelog.errors.FencedError: a newer run of this query has taken over\n"
        "\tat org.apache.spark.api.python.Base(Python.scala:5)\n"
        "java.lang.IllegalStateException: no\n"
    )
    assert (
        one_line(spark) == "fencelog.errors.FencedError: a newer run of this query has taken over"
    )
    assert one_line("[X] first line\nsecond") == "[X] first line"
    planned = "[PYTHON_DATA_SOURCE_ERROR] Failed to plan: fencelog.errors.RequestError: no topic"
    assert one_line(planned) == "fencelog.errors.RequestError: no topic"
