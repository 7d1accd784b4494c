"""The process that fuzzes: atheris drives a node through streams of bytes, guided by coverage.

Run by ``tests.proofs.fuzz`` with the Python that has atheris; the arguments are libFuzzer's. What
it finds it writes down and goes on; what ends a process (a crash in native code, a hang, too much
memory) ends this one, and libFuzzer keeps the stream.
"""

import hashlib
import json
import os
import sys
from pathlib import Path
from random import Random

import atheris

with atheris.instrument_imports(include=["fencelog"]):
    from tests.proofs._fuzz_target import Target
    from tests.support.damage import mutated

PLACE = Path(os.environ["FENCELOG_FUZZ_PLACE"])
"""Where the tally and the findings go."""
MEASURED_EVERY = 64
TOLD_EVERY = 2_000
FINDINGS_MAX = 200
BLIND = 0.3
"""Share of streams that libFuzzer changes itself, without a look at what they mean."""


class Fuzzer:
    """What is called with each stream."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._seen: set[str] = set()

    def feed(self, stream: bytes) -> None:
        """Feed one stream, and write down what is new."""
        target = self._target
        target.feed(stream, measured=target.tally.streams % MEASURED_EVERY == 0)
        if target.findings:
            for finding in target.findings:
                self._keep(finding.kind, finding.text, finding.stream)
            target.findings.clear()
        if target.tally.streams % TOLD_EVERY == 0:
            self.tell()

    def _keep(self, kind: str, text: str, stream: bytes) -> None:
        # The last frames of a traceback say which finding it is; values in messages do not.
        places = [line for line in text.splitlines() if line.lstrip().startswith("File ")]
        key = kind + ("".join(places[-3:]) or text[:60])
        if key in self._seen or len(self._seen) >= FINDINGS_MAX:
            return
        self._seen.add(key)
        name = hashlib.sha1(key.encode(), usedforsecurity=False).hexdigest()[:12]
        (PLACE / f"finding-{name}.txt").write_text(f"{kind}\n{text}\n", encoding="utf-8")
        (PLACE / f"finding-{name}.bin").write_bytes(stream)

    def tell(self) -> None:
        """Write the tally where the parent reads it."""
        tally = self._target.tally
        tally = {
            "streams": tally.streams,
            "answered": tally.answered,
            "closed": tally.closed,
            "waiting": tally.waiting,
            "decoded": tally.decoded,
            "allocated_an_item_max": tally.allocated_an_item_max,
            "requests": [[key, version, n] for (key, version), n in tally.requests.items()],
        }
        path = PLACE / f"tally-{os.getpid()}.json"
        path.with_suffix(".new").write_text(json.dumps(tally), encoding="utf-8")
        path.with_suffix(".new").replace(path)


def mutate(stream: bytes, size_max: int, seed: int) -> bytes:
    """Change a stream, mostly by what its requests mean."""
    random = Random(seed)
    if random.random() < BLIND:
        return bytes(atheris.Mutate(stream, size_max))
    return mutated(stream, random, size_max)


def main() -> None:
    """Fuzz until libFuzzer has enough."""
    with Target(PLACE) as target:
        fuzzer = Fuzzer(target)
        atheris.Setup(sys.argv, fuzzer.feed, custom_mutator=mutate)
        atheris.Fuzz()


if __name__ == "__main__":
    main()
