"""The newest Java client, unmodified: what ``Checks.java`` does with it, each check a claim."""

import re
import subprocess

import pytest

from tests.jvm.conftest import class_path_of
from tests.support.broker import BrokerProcess
from tests.support.jvm.host import SOURCES, java_command

DEADLINE_S = 200.0
CHECK = re.compile(r"^    public static void (\w+)\(Stage stage\)", re.MULTILINE)
RESULT = re.compile(r"^(ok|failed) (\w+)$", re.MULTILINE)
CHECKS = sorted(
    name
    for path in (SOURCES / "client").glob("*Checks.java")
    for name in CHECK.findall(path.read_text("utf-8"))
)


@pytest.fixture(scope="module")
def results(java_broker: BrokerProcess, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What each check came to: the empty text, or its trace. One JVM runs all of them."""
    folder = tmp_path_factory.mktemp("checks")
    path = class_path_of("client", SOURCES / "client", folder)
    log = folder / "log"
    done = subprocess.run(
        java_command(path, "Checks", java_broker.address, log=log),
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert done.stdout.endswith("done\n"), done.stdout + done.stderr
    parts = RESULT.split(done.stdout)[1:]
    return dict(zip(parts[1::3], parts[2::3], strict=True))


def in_words(check: str) -> str:
    return re.sub(r"(?<!^)([A-Z])", lambda found: "_" + found[1].lower(), check)


@pytest.mark.parametrize("check", CHECKS, ids=in_words)
def test_the_java_client_finds_that(results: dict[str, str], check: str) -> None:
    assert not results[check].strip().removesuffix("done"), results[check]


def test_every_check_was_run(results: dict[str, str]) -> None:
    assert sorted(results) == CHECKS
