"""``./dev prove fuzz --minutes 60``: requests that no good client sends, for every API and version.

Two parts. A coverage-guided fuzzer (atheris, installed into ``.cache/fuzz`` for this alone) feeds
streams of requests to a node in its process. And damaged and heavy requests go to a broker process
over sockets while bystanders of it, and of one that is left in peace, are timed. A run of half an
hour or more writes the dated report in ``docs/internals/proofs``.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import threading
import time
from datetime import UTC, datetime
from pathlib import Path
from random import Random

from tests.proofs import _fuzz_live as live_part
from tests.proofs._fuzz_report import Guided, Proof, report, tally_of
from tests.proofs._report import ROOT, chosen_seed, conclude, parser
from tests.support.damage import join
from tests.support.requests import KEYS_AND_VERSIONS, a_request

PLACE = ROOT / ".cache/fuzz"
CORPUS = ROOT / ".cache/fuzz-corpus"
ATHERIS = "atheris==3.0.0"
SEEDS_EACH = 5
REPORT_FROM_MINUTES = 30
LIVE_SHARE = 1 / 6
LIMITS = ("-max_len=8192", "-timeout=10", "-rss_limit_mb=1500", "-malloc_limit_mb=64")
"""What one stream may have and take: bytes, seconds, MiB in all, MiB in one allocation."""
RESTARTS_MAX = 50


def _arguments(argv: list[str]) -> argparse.Namespace:
    asked = parser("fuzz", __doc__, full="half an hour or more")
    asked.add_argument("--minutes", type=float, default=60.0)
    wanted = asked.parse_args(argv)
    if wanted.minutes <= 0:
        asked.error(f"--minutes {wanted.minutes}: it has to take some time")
    return wanted


def fuzzing_python() -> Path:
    """The Python that has atheris; makes it where it is missing."""
    python = PLACE / "bin/python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(PLACE)], check=True)
    has_it = subprocess.run([str(python), "-c", "import atheris"], capture_output=True, check=False)
    if has_it.returncode:
        command = [str(python), "-m", "pip", "install", "--quiet", ATHERIS]
        subprocess.run(command, check=True)
    return python


def make_corpus(seed: int) -> None:
    """Well-formed requests of every API and version, beside what earlier runs have found."""
    CORPUS.mkdir(parents=True, exist_ok=True)
    chosen = Random(seed)
    for key, version in KEYS_AND_VERSIONS:
        for number in range(SEEDS_EACH):
            count = chosen.choice((1, 1, 2))
            stream = join([a_request(key, version, chosen) for _ in range(count)])
            name = f"{key.name.lower()}-v{version}-{seed}-{number}"
            (CORPUS / name).write_bytes(stream)


def guided(minutes: float, seed: int, folder: Path) -> Guided:
    """Let libFuzzer drive a node; a process that ends is found, and followed by another."""
    python = fuzzing_python()
    make_corpus(seed)
    found = Guided(seed=seed, corpus=CORPUS)
    ends = time.monotonic() + 60 * minutes
    path = os.pathsep.join([str(ROOT), str(ROOT / "src"), *_packages()])
    environment = {**os.environ, "FENCELOG_FUZZ_PLACE": str(folder), "PYTHONPATH": path}
    for number in range(RESTARTS_MAX):
        left = ends - time.monotonic()
        if left < 1:
            break
        log = folder / f"log-{number}.txt"
        command = [
            *(str(python), "-m", "tests.proofs._fuzz_child", str(CORPUS), *LIMITS),
            *(f"-max_total_time={max(int(left), 1)}", f"-seed={seed + number}"),
            *(f"-artifact_prefix={folder}/ended-", "-print_final_stats=1", "-use_value_profile=0"),
        ]
        with log.open("wb") as out:
            done = subprocess.run(
                command, cwd=ROOT, env=environment, stdout=out, stderr=out, check=False
            )
        found.logs.append(log.read_text(encoding="utf-8", errors="replace"))
        if done.returncode:
            print(f"the fuzzing process ended with {done.returncode}: {log}", file=sys.stderr)
    found.tally = tally_of(folder)
    found.findings = sorted(folder.glob("finding-*.txt"))
    found.ended = sorted(folder.glob("ended-*"))
    return found


def _packages() -> list[str]:
    """Where the packages of this Python are: the other one has none but atheris."""
    return [each for each in sys.path if each.endswith("site-packages")]


def _scratch() -> "tempfile.TemporaryDirectory[str]":
    """A directory in memory, where there is one: disks have their own delays."""
    memory = Path("/dev/shm")
    return tempfile.TemporaryDirectory(
        prefix="fencelog-fuzz-",
        dir=memory if memory.is_dir() else None,
        ignore_cleanup_errors=True,
    )


def main(argv: list[str]) -> int:
    """Run both parts beside each other; returns the exit status."""
    wanted = _arguments(argv)
    seed = chosen_seed(wanted.seed)
    began = datetime.now(UTC)
    shown: list[live_part.Live] = []
    with (
        _scratch() as live,
        _scratch() as place,
    ):
        seconds = 60 * wanted.minutes * LIVE_SHARE
        attack = threading.Thread(
            target=lambda: shown.append(live_part.attack(Path(live), seconds=seconds, seed=seed))
        )
        attack.start()
        found = guided(wanted.minutes, seed, Path(place))
        attack.join()
        proof = Proof(began=began, minutes=wanted.minutes, guided=found, live=shown)
        text = report(proof)
        kept = PLACE / "findings"
        for each in (*found.findings, *found.ended):
            kept.mkdir(exist_ok=True)
            for one in each.parent.glob(f"{each.stem}.*"):
                (kept / one.name).write_bytes(one.read_bytes())
    is_full = wanted.minutes >= REPORT_FROM_MINUTES
    return conclude("fuzz", proof, text, wanted.report, is_full=is_full)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
