"""Buffers of a megabyte, one after the other, in a process that keeps what it has freed."""

import subprocess
import sys

import pytest

BUFFERS = 200
PAGES = BUFFERS * (1 << 20) // 4096

PROGRAM = f"""
import resource, sys
from rockoon_runtime.allocator import keep_freed_memory
if sys.argv[1] == "kept":
    keep_freed_memory()
def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
def fill():
    # Three at once, as a batch on its way has them; the last ones give the top of the heap back.
    held = [b"x" * (1 << 20) for _ in range(3)]
    del held
fill()
before = faults()
for _ in range({BUFFERS}):
    fill()
print(faults() - before)
"""


def page_faults(how: str) -> int:
    told = subprocess.run(
        [sys.executable, "-c", PROGRAM, how], capture_output=True, text=True, check=True
    )
    return int(told.stdout)


@pytest.mark.skipif(sys.platform != "linux", reason="it is glibc that is told")
def test_what_was_freed_is_used_again() -> None:
    assert page_faults("kept") < PAGES // 100 < PAGES < page_faults("as it is")
