"""Who may kill a mutant: each stage runs something on the mutants that the last ones left alive."""

import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from functools import cache
from hashlib import sha256
from pathlib import Path
from shutil import copytree, ignore_patterns

from tests.proofs._hunt import hunt
from tests.proofs._mutant_tests import LIMIT_OF_TEST_S, ORDER
from tests.proofs._mutants import Mutant, place_of
from tests.support.faults import ROOT, SOURCE

QUICK = ("tests/unit", "tests/contracts", "tests/scenarios")
ROOM_TESTS: Mapping[str, Sequence[str]] = {
    "coordination": ("tests/unit/coordination", "tests/scenarios"),
}
"""Where a room's own tests are not in its folder of ``tests/unit`` alone."""
PROCESS_TESTS: Mapping[str, Sequence[str]] = {
    "log": ("tests/conformance/test_records.py", "tests/conformance/test_compaction_kills.py"),
    "storage": (
        "tests/conformance/test_log_admin.py",
        "tests/conformance/test_compaction_kills.py",
    ),
    "coordination": ("tests/conformance",),
    "broker": ("tests/conformance", "tests/cli"),
    "client": ("tests/conformance", "tests/cli"),
    "spark": ("tests/spark",),
}
ROOM_CPU_S = 20.0
"""What a mutant may cost that nothing fast sees: mypy may, and all tests come later."""
KERNELS = ("src/fencelog/client/kernel.py", "src/fencelog/client/kernel_encode.py")
"""Their functions are compiled at the import, so their code cannot be exchanged afterwards."""
KERNEL_TESTS = (
    "tests/unit/client/test_kernel.py",
    "tests/unit/client/test_varint_edges.py",
    "tests/unit/client/test_encode.py",
    "tests/unit/client/test_decode.py",
)
WORKLOADS = ("queue", "copy", "versioned")
SEEDS = 15
LONGEST_S = 7 * 24 * 3600
FRESH_LIMIT_S, PROCESSES_LIMIT_S = 600, 1800
TESTS_FAILED = 1  # pytest's exit status


def digest(paths: Iterable[Path]) -> str:
    """Twelve hex digits of the names and the contents of files."""
    found = sha256()
    for path in paths:
        found.update(f"{path}\n".encode() + path.read_bytes())
    return found.hexdigest()[:12]


@cache
def sources(stage: str, room: str) -> str:
    """What the result of a survivor holds for: a digest of the source, and what tried it."""
    tests: Sequence[str] = {
        "room": _tests_of(room),
        "fresh": _tests_of(room),
        "quick": QUICK,
        "processes": PROCESS_TESTS[room],
    }.get(stage, ())
    folders = ["src", *tests, *(["tests/support"] if tests else [])]
    found = [ROOT / each for each in folders]
    files = [path for each in found for path in ([each] if each.is_file() else each.rglob("*"))]
    return digest(sorted(path for path in files if path.suffix in {".py", ".txt"}))


@dataclass(frozen=True, kw_only=True)
class Work:
    """What a stage is given."""

    folder: Path
    """Where the coverage is kept."""
    results: Path
    """Gets a line of JSON for each mutant."""
    jobs: int
    deadline: float
    """On the monotonic clock."""

    @property
    def is_over(self) -> bool:
        """Whether the time is up."""
        return time.monotonic() >= self.deadline

    def tell(self, mutant: Mutant, stage: str, by: str) -> None:
        """Keep a result; empty where the mutant survived."""
        line = {"name": mutant.name, "body": mutant.body, "stage": stage, "by": by}
        with self.results.open("a", encoding="utf-8") as file:
            print(json.dumps({**line, "sources": sources(stage, mutant.room)}), file=file)


def by_tests_of_room(work: Work, mutants: Sequence[Mutant]) -> None:
    """Try each with the fast ones of its room's tests."""
    by_room: dict[str, list[Mutant]] = {}
    for each in mutants:
        by_room.setdefault(each.room, []).append(each)
    for room, mine in by_room.items():
        try_mutants(work, mine, "room", room, _tests_of(room), ROOM_CPU_S)


def by_quick_tier(work: Work, mutants: Sequence[Mutant]) -> None:
    """Try each with all quick tests that call the function."""
    try_mutants(work, mutants, "quick", "quick", QUICK)


def _tests_of(room: str) -> Sequence[str]:
    return ROOM_TESTS.get(room, (f"tests/unit/{room}",))


def try_mutants(
    work: Work,
    mutants: Sequence[Mutant],
    stage: str,
    name: str,
    paths: Sequence[str],
    seconds: float = math.inf,
) -> None:
    """Try each with those of the tests that call its function, the fastest ones first.

    ``seconds``: no more than these together.
    """
    if work.is_over:
        return
    tried_with = sources(stage, mutants[0].room)
    cover = work.folder / f"cover-{name}-{tried_with}.json"
    order = {
        "cover": str(cover),
        "mutants": [],
        "seconds": seconds,
        "results": str(work.results),
        "stage": stage,
        "sources": tried_with,
    }
    if not cover.exists():
        for old in work.folder.glob(f"cover-{name}-*.json"):
            old.unlink()
        _in_one_process(work, order, paths, 0)
        for failed in (
            json.loads(cover.read_text(encoding="utf-8"))["failed"] if cover.exists() else ()
        ):
            print(f"fails on the sound source, so it is left out: {failed}", file=sys.stderr)
    shares = [mutants[i :: work.jobs] for i in range(work.jobs)]
    running = []
    with ThreadPoolExecutor(work.jobs) as pool:
        for number, share in enumerate(filter(None, shares)):
            listed = {**order, "mutants": [asdict(each) for each in share]}
            running.append(pool.submit(_in_one_process, work, listed, paths, number))
    for each in running:
        each.result()


def _in_one_process(
    work: Work, order: Mapping[str, object], paths: Sequence[str], number: int
) -> None:
    """Run the plugin; it is ended where the time is up, and has told what it knows by then."""
    with tempfile.TemporaryDirectory(prefix="fencelog-mutants-") as folder:
        file = Path(folder, "order.json")
        file.write_text(json.dumps(order), encoding="utf-8")
        command = [*_pytest(paths, Path(folder, "temp")), "-p", "tests.proofs._mutant_tests"]
        environment = {**os.environ, ORDER: str(file), "TMPDIR": folder}
        log = work.folder / f"pytest-{order['stage']}-{number if order['mutants'] else 'cover'}.log"
        with (
            log.open("w") as output,
            subprocess.Popen(
                command, cwd=ROOT, env=environment, stdout=output, stderr=output
            ) as process,
        ):
            try:
                status = process.wait(min(LONGEST_S, max(1, work.deadline - time.monotonic())))
            except subprocess.TimeoutExpired:
                process.terminate()
                return
        if status not in {0, TESTS_FAILED}:
            raise RuntimeError(f"pytest ended with {status}: see {log}")


def _pytest(paths: Sequence[str], folder: Path) -> list[str]:
    options = ["-q", "-m", "not slow", f"--timeout={LIMIT_OF_TEST_S}", f"--basetemp={folder}"]
    without = ["-p", "no:randomly", "-p", "no:cacheprovider", "-p", "no:xdist"]
    return [sys.executable, "-m", "pytest", *options, *without, *paths]


def by_types(work: Work, mutants: Sequence[Mutant]) -> None:
    """Look at each with mypy, at many together, as far as it is clear whose a problem is.

    Types are declared, so a problem is in the function that was changed; but the attributes that
    an ``__init__`` assigns have their types from there, and may be used all over the file.
    """
    inits = [each for each in mutants if each.where.endswith("__init__")]
    others = [each for each in mutants if not each.where.endswith("__init__")]
    with tempfile.TemporaryDirectory(prefix="fencelog-types-") as folder:
        here = Path(folder)
        copytree(SOURCE, here / "src")
        (here / "pyproject.toml").write_bytes((ROOT / "pyproject.toml").read_bytes())
        if problems := _mypy(here, work.folder):
            raise RuntimeError(f"mypy refuses the sound source: {problems}")
        for left, has in ((inits, _file_of), (others, _place_of)):
            while left and not work.is_over:
                together = {has(each): each for each in left}
                # The last lines first, so that a change moves no other.
                in_turn = sorted(together.values(), key=lambda each: each.line, reverse=True)
                with ExitStack() as mutated:
                    for each in in_turn:
                        mutated.enter_context(_mutated(each, here))
                    problems = _mypy(here, work.folder)
                for each in in_turn:
                    left.remove(each)
                    work.tell(each, "types", problems.get(has(each), ""))


def _file_of(mutant: Mutant) -> str:
    return mutant.file


def _place_of(mutant: Mutant) -> str:
    return mutant.place


def _mypy(folder: Path, caches: Path) -> dict[str, str]:
    """The first problem of each file and of each function below a folder."""
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--cache-dir", str(caches / "mypy")],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    problems: dict[str, str] = {}
    for line in done.stdout.splitlines()[:-1]:
        file, number, _ = line.split(":", 2)
        problems.setdefault(file, line)
        problems.setdefault(place_of(file, (folder / file).read_text(), int(number)), line)
    if bool(done.returncode) != bool(problems):
        raise RuntimeError(f"mypy: {done.stdout}{done.stderr}")
    return problems


@contextmanager
def _mutated(mutant: Mutant, folder: Path) -> Iterator[None]:
    path = folder / mutant.file
    sound = path.read_text(encoding="utf-8")
    path.write_text(mutant.applied_to(sound), encoding="utf-8")
    try:
        yield
    finally:
        path.write_text(sound, encoding="utf-8")


def by_fresh_process(work: Work, mutants: Sequence[Mutant]) -> None:
    """Run the room's tests on a copy: for what is done at the import, and what is compiled."""

    def try_it(mutant: Mutant, source: Path) -> str:
        paths = KERNEL_TESTS if mutant.file in KERNELS else _tests_of(mutant.room)
        return _by_pytest(paths, source, FRESH_LIMIT_S)

    _on_copies(work, mutants, "fresh", try_it)


def by_processes(work: Work, mutants: Sequence[Mutant]) -> None:
    """Run the tests with broker processes or Spark on a copy."""

    def try_it(mutant: Mutant, source: Path) -> str:
        return _by_pytest(PROCESS_TESTS[mutant.room], source, PROCESSES_LIMIT_S)

    _on_copies(work, mutants, "processes", try_it)


def by_simulator(work: Work, mutants: Sequence[Mutant]) -> None:
    """Run a handful of seeds on a copy."""

    def try_it(_: Mutant, source: Path) -> str:
        for workload in WORKLOADS:
            hunted = hunt(source, workload, SEEDS)
            if hunted.problem:
                return f"{workload}, seed {hunted.seeds - 1}: {hunted.problem}"
        return ""

    _on_copies(work, mutants, "simulator", try_it)


def _on_copies(
    work: Work, mutants: Sequence[Mutant], stage: str, try_it: Callable[[Mutant, Path], str]
) -> None:
    def on_copy(mutant: Mutant) -> None:
        if work.is_over:
            return
        with tempfile.TemporaryDirectory(prefix="fencelog-mutant-") as folder:
            # With their times, so that compiled files stay valid for all but the mutated one. But
            # the second kernel has code of the first inside, and is not compiled anew for it.
            machine_code = ignore_patterns("*.nbi") if mutant.file in KERNELS else None
            copytree(SOURCE, Path(folder, "src"), ignore=machine_code)
            with _mutated(mutant, Path(folder)):
                work.tell(mutant, stage, try_it(mutant, Path(folder, "src")))

    with ThreadPoolExecutor(work.jobs) as pool:
        list(pool.map(on_copy, mutants))


def _by_pytest(paths: Sequence[str], source: Path, limit_s: float) -> str:
    """Run tests on a source up to the first that fails; returns it."""
    try:
        done = subprocess.run(
            [*_pytest(paths, source.parent / "temp"), "-x"],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(source), "PYTHONDONTWRITEBYTECODE": "1"},
            capture_output=True,
            text=True,
            timeout=limit_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"no end within {limit_s:.0f} s"
    if not done.returncode:
        return ""
    failed = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    return failed[0] if failed else f"pytest's exit status {done.returncode}"
