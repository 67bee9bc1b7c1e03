"""What every long-running process has in common."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

#: glibc's own threshold rises to the size of the block that is freed here, and the next one would be of its heap.
BLOCKS = """
import ctypes
from pathlib import Path
from bizrq.process import run

async def main(stop):
    libc = ctypes.CDLL(None)
    libc.malloc.restype = ctypes.c_size_t
    libc.free.argtypes = libc.malloc.argtypes = [ctypes.c_size_t]
    libc.free(libc.malloc(1024 * 1024))
    block = libc.malloc(256 * 1024)
    [heap] = [line for line in Path("/proc/self/maps").read_text().splitlines() if line.endswith("[heap]")]
    first, last = (int(each, 16) for each in heap.split()[0].split("-"))
    print(first <= block < last)

run(main)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library has rules of its own")
def test_a_large_block_is_the_systems_once_it_is_freed() -> None:
    ran = subprocess.run([sys.executable, "-c", BLOCKS], capture_output=True, text=True, check=True)
    assert ran.stdout == "False\n"
