"""A plugin of pytest that runs chosen tests once for each mutant, each in a child of one process.

The process collects the tests once. A child puts the mutated function's code in place of the sound
one's, wherever the function is referred to, and runs the tests that call it until one fails. Which
tests call it is known from one run of all of them on the sound source (``COVER``).
"""

import ast
import gc
import json
import os
import resource
import select
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from types import CodeType, FrameType, FunctionType

import hypothesis
import pytest

from tests.proofs._mutants import Mutant
from tests.support.frozen import freeze_all

ROOT = Path(__file__).parent.parent.parent
ORDER = "FENCELOG_MUTANTS"
"""The environment variable that names a file of JSON: where ``cover`` is kept, the ``mutants``,
the ``results`` file that gets a line for each, the ``stage`` and ``sources`` that it names, and how
many ``seconds`` of processor time a mutant may cost if it survives. Without mutants it is ``cover``
that is written."""
PACKAGE = f"{ROOT}/src/fencelog/"
CPU_MIN_S = 10.0
"""Of processor time, for a test; beyond, and ten times what it needs, it hangs."""
BYTES_MAX = 4 << 30
LIMIT_S, LIMIT_OF_TEST_S = 600.0, 300


_codes: dict[int, CodeType] = {}
"""All that was called, by their ids: equal code may be in two files."""


def _place(code: CodeType) -> str | None:
    if not code.co_filename.startswith(PACKAGE):
        return None
    return f"{code.co_filename[len(PACKAGE) :]} {code.co_qualname.partition('.<locals>')[0]}"


def _profile(frame: FrameType, event: str, _: object) -> None:
    if event == "call":
        _codes[id(frame.f_code)] = frame.f_code


def _called() -> frozenset[str]:
    called = frozenset(place for code in [*_codes.values()] if (place := _place(code)))
    _codes.clear()
    return called


ORDERED = json.loads(Path(os.environ[ORDER]).read_text()) if ORDER in os.environ else None
if ORDERED is not None and not ORDERED["mutants"]:
    sys.setprofile(_profile)
    threading.setprofile(_profile)


@dataclass(frozen=True)
class Exchange:
    """A function, and what it is to become."""

    function: FunctionType
    code: CodeType
    old: ast.arguments
    new: ast.arguments

    def carry_out(self) -> None:
        """Make the function the mutated one; of defaults, only literals are ever mutated."""
        function, old, new = self.function, self.old, self.new
        function.__code__ = self.code
        by_place = list(function.__defaults__ or ())
        for i, (was, now) in enumerate(zip(old.defaults, new.defaults, strict=True)):
            if ast.dump(was) != ast.dump(now):
                by_place[i] = ast.literal_eval(now)
        function.__defaults__ = tuple(by_place) or None
        for name, was, now in zip(new.kwonlyargs, old.kw_defaults, new.kw_defaults, strict=True):
            if was and now and ast.dump(was) != ast.dump(now):
                assert function.__kwdefaults__ is not None
                function.__kwdefaults__[name.arg] = ast.literal_eval(now)


class _Watch:
    """Notes whether a test failed."""

    def __init__(self) -> None:
        self.problem = ""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.problem = self.problem or f"{report.nodeid} ({report.when})"


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    """Let examples be the same in each run, and let failing ones be as they are."""
    phases = (hypothesis.Phase.explicit, hypothesis.Phase.generate)
    hypothesis.settings.register_profile(
        "mutants",
        deadline=None,
        derandomize=True,
        database=None,
        phases=phases,
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    hypothesis.settings.load_profile("mutants")


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> object:
    """Cover, or try each mutant."""
    if ORDERED is None or session.testsfailed:
        return None
    if ORDERED["mutants"]:
        _try_all(session, [Mutant.from_json(each) for each in ORDERED["mutants"]])
    else:
        _cover_all(session, Path(ORDERED["cover"]))
    return True


def _run(
    session: pytest.Session, items: Sequence[pytest.Item]
) -> Iterator[tuple[pytest.Item, str]]:
    watch = _Watch()
    session.config.pluginmanager.register(watch)
    for item, following in zip(items, [*items[1:], None], strict=True):
        watch.problem = ""
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        yield item, watch.problem


def _cover_all(session: pytest.Session, path: Path) -> None:
    at_import, found, failed, began = sorted(_called()), {}, [], time.process_time()
    for item, problem in _run(session, session.items):
        sys.setprofile(_profile)  # a test may have used it
        ended = time.process_time()
        if problem:
            failed.append(problem)
        else:
            found[item.nodeid] = {"seconds": ended - began, "places": sorted(_called())}
        began = time.process_time()
    sys.setprofile(None)
    path.write_text(json.dumps({"at import": at_import, "tests": found, "failed": failed}))


def _try_all(session: pytest.Session, mutants: Sequence[Mutant]) -> None:
    assert ORDERED is not None
    cover = json.loads(Path(ORDERED["cover"]).read_text())
    items = {each.nodeid: each for each in session.items}
    tests: dict[str, list[tuple[float, str]]] = {}
    for nodeid, each in cover["tests"].items():
        if nodeid in items:
            for place in each["places"]:
                tests.setdefault(place, []).append((each["seconds"], nodeid))
    gc.unfreeze()  # what is frozen is not among gc.get_objects()
    functions, at_import = _functions(), set(cover["at import"])
    freeze_all()
    with Path(ORDERED["results"]).open("a", encoding="utf-8") as results:
        for mutant in mutants:
            mine = sorted(tests.get(mutant.place, []))
            spent = accumulate(cost for cost, _ in mine)
            timed = [
                (items[name], cost)
                for (cost, name), until in zip(mine, spent, strict=True)
                if until <= ORDERED["seconds"]
            ]
            exchanges = _exchanges(mutant, functions.get(mutant.place, []))
            line = {
                "name": mutant.name,
                "body": mutant.body,
                "stage": ORDERED["stage"],
                "by": _try(session, exchanges, timed) if exchanges and timed else "",
                "sources": ORDERED["sources"],
                "tests": len(timed),
                "needs process": mutant.place in at_import or not exchanges,
            }
            print(json.dumps(line), file=results, flush=True)


def _functions() -> dict[str, list[FunctionType]]:
    found: dict[str, list[FunctionType]] = {}
    for each in gc.get_objects():
        if type(each) is not FunctionType or "<locals>" in each.__code__.co_qualname:
            continue
        if place := _place(each.__code__):
            found.setdefault(place, []).append(each)
    return found


def _try(
    session: pytest.Session,
    exchanges: Sequence[Exchange],
    timed: Sequence[tuple[pytest.Item, float]],
) -> str:
    """Run tests on a mutant in a child; returns the one that failed, empty where none did."""
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        os.close(reader)
        _be_mutant(session, exchanges, timed, writer)
    os.close(writer)
    limit_s = LIMIT_S + 100 * sum(seconds for _, seconds in timed)
    told, has_ended = _read(reader, time.monotonic() + limit_s)
    if not has_ended:
        os.killpg(child, signal.SIGKILL)
    os.close(reader)
    _, status = os.waitpid(child, 0)
    last = told.splitlines()[-1] if told else "the start"
    if os.WIFSIGNALED(status):
        return f"{signal.Signals(os.WTERMSIG(status)).name} in {last}"
    return last if os.WEXITSTATUS(status) else ""


def _read(reader: int, deadline: float) -> tuple[str, bool]:
    """What the child told, and whether that was all of it in time."""
    told = b""
    while (left := deadline - time.monotonic()) > 0:
        if select.select([reader], [], [], left)[0]:
            part = os.read(reader, 65536)
            if not part:
                return told.decode(), True
            told += part
    return told.decode(), False


def _be_mutant(
    session: pytest.Session,
    exchanges: Sequence[Exchange],
    timed: Sequence[tuple[pytest.Item, float]],
    writer: int,
) -> None:
    """The child: it never returns."""
    status = 2
    try:
        os.setsid()
        os.dup2(os.open(os.devnull, os.O_RDWR), 1)
        os.dup2(1, 2)
        resource.setrlimit(resource.RLIMIT_DATA, (BYTES_MAX, BYTES_MAX))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        for each in exchanges:
            each.carry_out()
        signal.signal(signal.SIGPROF, signal.SIG_DFL)
        running = _run(session, [item for item, _ in timed])
        status = 0
        for item, needed_s in timed:
            os.write(writer, f"{item.nodeid}\n".encode())
            signal.setitimer(signal.ITIMER_PROF, CPU_MIN_S + 10 * needed_s)
            if next(running)[1]:
                status = 1
                break
    except BaseException as error:  # noqa: BLE001 - whatever a mutant does
        os.write(writer, f"{error!r}\n".encode())
        status = 3
    finally:
        os._exit(status)


def _exchanges(mutant: Mutant, functions: Sequence[FunctionType]) -> list[Exchange]:
    """What makes sound functions the mutated ones; nothing where that cannot be done in place.

    Raises ValueError where the source has changed since the mutants were listed.
    """
    path = ROOT / mutant.file
    sound = path.read_text(encoding="utf-8")
    text = mutant.applied_to(sound)
    codes = list(_codes_below(compile(text, str(path), "exec", dont_inherit=True)))
    found = []
    for function in functions:
        old = function.__code__
        code = next(
            each
            for each in codes
            if (each.co_qualname, each.co_firstlineno) == (old.co_qualname, old.co_firstlineno)
        )
        if len(code.co_freevars) != len(old.co_freevars):
            return []
        found.append(Exchange(function, code, _arguments(sound, code), _arguments(text, code)))
    return found


def _codes_below(code: CodeType) -> Iterator[CodeType]:
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield each
            yield from _codes_below(each)


def _arguments(text: str, code: CodeType) -> ast.arguments:
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            first = min([node.lineno, *(each.lineno for each in node.decorator_list)])
            if (first, node.name) == (code.co_firstlineno, code.co_name):
                return node.args
    raise LookupError(code.co_qualname)
