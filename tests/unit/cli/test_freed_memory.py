"""A broker's process keeps the memory of a frame for the next one."""

import subprocess
import sys
from platform import libc_ver

import pytest

FRAMES = 100
PAGES_OF_A_FRAME = 256
PROGRAM = f"""
import resource, sys
from fencelog.cli.freed_memory import keep_freed_memory

def frames(count):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(count):
        pipelined = [bytearray({PAGES_OF_A_FRAME} * 4096) for _ in range(5)]
        del pipelined
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

if "keep" in sys.argv:
    keep_freed_memory()
frames(1)
print(frames({FRAMES}))
"""


def page_faults(*arguments: str) -> int:
    """Return how often a process that takes and frees frames touches a page that it lacks."""
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM, *arguments], capture_output=True, text=True, check=True
    )
    return int(ran.stdout)


@pytest.mark.skipif(libc_ver()[0] != "glibc", reason="only glibc can be told")
def test_frames_reuse_the_memory_of_those_before() -> None:
    assert page_faults("keep") < PAGES_OF_A_FRAME
    assert page_faults() > FRAMES * PAGES_OF_A_FRAME  # what this guards against
