"""The proof of every byte can fail: each of these checks, taken out, must be missed."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.simulation._bug import Bug, Edit, plant

ROOT = Path(__file__).parent.parent.parent
RECOVER = "storage/recover.py"
STRIDE = 11

BREAKS = (
    Bug(
        "CRC skipped",
        "D3",
        "recovery takes a batch whatever its checksum says",
        (
            Edit(
                "storage/segment.py",
                "problem = visit(header, batch, start + at) if check_crc(batch) else",
                "problem = visit(header, batch, start + at) if batch else",
            ),
        ),
    ),
    Bug(
        "checksum of checkpoints not compared",
        "D3",
        "a flipped digit moves the log start",
        (Edit("log/layout.py", "elif offset != _checksum(lines[:number]):", "elif offset < 0:"),),
    ),
    Bug(
        "side files believed after a clean stop",
        "D3",
        "indexes, snapshots and leader epochs are taken as they are found",
        (
            Edit(
                RECOVER,
                "if self.clean and self.clean == "
                "await checksum_of(self.disk, self.directory, base_offsets):",
                "if self.clean:",
            ),
        ),
    ),
    Bug(
        "no bound for leader epochs",
        "D3",
        "a batch may have a leader epoch that there never was",
        (Edit(RECOVER, "if header.leader_epoch > self.leader_epoch:", "if header.magic < 0:"),),
    ),
    Bug(
        "leader epoch checkpoint no oracle",
        "D3",
        "the epochs of batches are held against nothing",
        (
            Edit(
                RECOVER,
                "if epochs.contradicts(header.leader_epoch, header.base_offset):",
                "if header.magic < 0:",
            ),
        ),
    ),
    Bug(
        "gaps in the newest segment",
        "D3",
        "under compaction a batch may claim any later offset",
        (
            Edit(
                RECOVER,
                "and base_offset == base_offsets[-1]",
                "and base_offset < 0",
            ),
        ),
    ),
    Bug(
        "end of a swap not looked at",
        "D4",
        "a damaged file of compaction removes segments that it does not stand for",
        (Edit(RECOVER, "if end <= base_offset or end not in replaced:", "if end < 0:"),),
    ),
    Bug(
        "cut below the recovery point",
        "D3",
        "damage in what was synced is cut away, and what follows it",
        (Edit(RECOVER, "if offset < self._synced:", "if offset < 0:"),),
    ),
    Bug(
        "cut before a sound batch",
        "D3",
        "in fsync mode, too, the log ends at the first bad batch",
        (Edit(RECOVER, 'if self.durability != "fsync":', "if self.disk:"),),
    ),
    Bug(
        "cut in silence",
        "D3",
        "nobody is told what recovery cut away",
        (
            Edit(
                RECOVER,
                "cut = None if bad is None else self._where(bad, builder.log_end)",
                "cut = None",
            ),
        ),
    ),
)


def problems_of(bug: Bug) -> int:
    """Run a part of the proof over a copy of the source that has this bug."""
    with tempfile.TemporaryDirectory(prefix="fencelog-bytes-") as folder:
        environment = {**os.environ, "PYTHONPATH": str(plant(bug, Path(folder)))}
        done = subprocess.run(
            [sys.executable, "-m", "tests.proofs.bytes", "--part", str(STRIDE), "--until-wrong"],
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
    last = done.stdout.strip().rpartition("\n")[2]
    assert done.returncode in (0, 1), done.stderr
    assert last.endswith(" problems"), done.stdout + done.stderr
    return int(last.split()[-2].replace(",", ""))
