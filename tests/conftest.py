"""Fixtures that any test may use, and the rule that real clients and Spark are never skipped."""

import itertools
import signal
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest

from fencelog_demo.stage import lay_out_spark
from tests.support.broker import BrokerProcess
from tests.support.frozen import freeze_all
from tests.support.hangs import hanging
from tests.support.loops import REAL, choose
from tests.support.spark import class_archive
from tests.support.unclosed import left_open, watch

HERE = Path(__file__).parent
NEVER_SKIPPED = ("conformance", "spark")
SPARK = "spark"
"""Of whatever uses the session of this name: it lives in one process."""
SHARED = {"jvm": "jvm", "clients": "clients"}
"""Folders whose tests share what is dear to start: one process has all of it. Of all others but
those that use the session, a process has whole files."""
FIRST = ("spark/test_crashes.py", "jvm", "clients", SPARK)
"""What takes minutes in one process begins first."""

# How long an example takes is the machine's affair.
hypothesis.settings.register_profile("fencelog", deadline=None)
hypothesis.settings.load_profile("fencelog")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell ignores it in what it runs in the background, and so would every process of a test.
    signal.signal(signal.SIGINT, signal.default_int_handler)

_numbers = itertools.count(1)


def pytest_addoption(parser: pytest.Parser) -> None:
    """``--loop``: see ``tests.support.loops``."""
    parser.addoption("--loop", choices=REAL, help="the event loop of all tests and processes")


def pytest_configure(config: pytest.Config) -> None:
    """Use the chosen loop everywhere, and see what is left open on asyncio's."""
    watch()
    if name := config.getoption("--loop"):
        choose(name)


@pytest.fixture(scope="session", autouse=True)
def _light_spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Every Spark that a test starts, in whatever process, starts in a fraction of the time."""
    home = tmp_path_factory.mktemp("spark") / "home"
    lay_out_spark(home)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPARK_HOME", str(home))
        options = class_archive.options()
        for name in ("SPARK_SUBMIT_OPTS", "SPARK_DAEMON_JAVA_OPTS"):
            patch.setenv(name, options)
        yield


@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> Generator[None, None, None]:
    """Where several processes share the tests (``./dev test``), say which stay together."""
    if not hasattr(config, "workerinput"):
        return (yield)  # one process: any order
    for item in items:
        item.add_marker(pytest.mark.xdist_group(_group(item)))
    yield  # they are shuffled
    turns = {group: turn for turn, group in enumerate(FIRST)}
    items.sort(key=lambda item: turns.get(_group(item), len(turns)))


def pytest_collection_finish() -> None:
    """Keep the tests themselves out of all collections to come."""
    freeze_all()


def _group(item: pytest.Item) -> str:
    if SPARK in getattr(item, "fixturenames", ()):
        return SPARK
    place = item.path.relative_to(HERE)
    return SHARED.get(place.parts[0], str(place))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown() -> Generator[None, None, None]:
    """A test that closes an event loop has closed its transports."""
    yield
    if left := left_open():
        pytest.fail("left open on a closed event loop:\n" + "\n".join(left), pytrace=False)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, Any, Any]:
    """Real clients and Spark may not be skipped: a skip of theirs is a failure with its reason."""
    report = yield
    never = any(item.get_closest_marker(name) for name in NEVER_SKIPPED)
    if report.skipped and never and not hasattr(report, "wasxfail"):
        report.outcome = "failed"
        report.longrepr = f"{item.nodeid} may never be skipped: {report.longrepr}"
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Generator[None, Any, Any]:
    """The same for a whole module that skips itself."""
    report = yield
    folders = collector.path.parts if collector.path else ()
    if report.outcome == "skipped" and any(name in folders for name in NEVER_SKIPPED):
        report.outcome = "failed"
        report.longrepr = f"{collector.nodeid} may never be skipped: {report.longrepr}"
    return report


@pytest.fixture
def fresh_name(request: pytest.FixtureRequest) -> Callable[[str], str]:
    """A maker of names (topics, groups, transactional ids) that no other test uses."""

    def name(kind: str) -> str:
        return f"{kind}-{next(_numbers)}-{request.node.name.partition('[')[0][-40:]}"

    return name


@pytest.fixture
def topic(fresh_name: Callable[[str], str]) -> str:
    """A topic name that no other test uses; nothing is created."""
    return fresh_name("topic")


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    """A broker process of this test alone, to be killed at will. ``os`` durability for speed.

    Whatever the test did to it, no transaction may hang in the end.
    """
    with BrokerProcess(tmp_path / "data") as process:
        yield process
        _nothing_hangs(process)


@pytest.fixture
def fsync_broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    """Like ``broker``, with the single node's default durability."""
    with BrokerProcess(tmp_path / "data", durability="fsync") as process:
        yield process
        _nothing_hangs(process)


def _nothing_hangs(process: BrokerProcess) -> None:
    if process.running:
        assert hanging(process.address) == []


@pytest.fixture(scope="session")
def shared_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """One broker process for all tests that only talk to it and bring their own names."""
    with BrokerProcess(tmp_path_factory.mktemp("shared-broker") / "data") as process:
        yield process
