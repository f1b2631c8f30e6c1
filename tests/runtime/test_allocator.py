"""Buffers of a megabyte, one after another, in a process that keeps freed memory."""

import os
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


FRAGMENTS = """
import ctypes, sys
from rockoon_runtime.allocator import return_freed_memory
def mib():
    line = next(each for each in open("/proc/self/status") if each.startswith("VmRSS"))
    return int(line.split()[1]) / 1024
return_freed_memory()
before = mib()
# As many calls leave: buffers, and some small objects among them, which Python keeps for reuse.
calls = [(bytearray(2_000), (number,), (number, number)) for number in range(20_000)]
calls.clear()
if sys.argv[1] == "returned":
    return_freed_memory()
else:
    ctypes.CDLL(None).malloc_trim(0)
print(mib() - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="it is glibc that returns pages")
def test_memory_of_ended_calls_returns_although_python_keeps_small_objects() -> None:
    kept = [
        float(
            subprocess.run(
                [sys.executable, "-c", FRAGMENTS, how],
                capture_output=True,
                text=True,
                check=True,
                env={**os.environ, "PYTHONMALLOC": "malloc"},
            ).stdout
        )
        for how in ("returned", "trimmed")
    ]
    assert kept[0] < 4 < kept[1]


def page_faults(how: str) -> int:
    told = subprocess.run(
        [sys.executable, "-c", PROGRAM, how], capture_output=True, text=True, check=True
    )
    return int(told.stdout)


@pytest.mark.skipif(sys.platform != "linux", reason="it is glibc that is told")
def test_what_was_freed_is_used_again() -> None:
    assert page_faults("kept") < PAGES // 100 < PAGES < page_faults("as it is")
