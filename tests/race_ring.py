"""The compiled ring's C between two threads under ThreadSanitizer: ``python -m tests.race_ring``; needs gcc.

The atomics are those of ``hotpath/message_ring.pyx``, taken out of its source, and its steps are repeated in C, so that
the interpreter, which ThreadSanitizer does not know, is not there. ``--planted`` leaves the orders out, which is found.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from pathlib import Path

KERNEL = Path(__file__).resolve().parents[1] / "hotpath" / "message_ring.pyx"
DRIVER = r"""
#include <pthread.h>
#include <stdio.h>
#include <string.h>
enum { SIZE = 4096, COUNT = 200000 };
static struct { uint64_t word[32]; char data[SIZE]; } ring;
#define AT(byte) (&ring.word[(byte) / 8])

static void *pushes(void *unused) {
    uint64_t head = 0, tail = 0;
    for (uint64_t number = 0; number < COUNT; number++) {
        while (16 > SIZE - (head - tail)) tail = ring_load(AT(64));
        memcpy(ring.data + (head & (SIZE - 1)), &number, sizeof number);
        head += 16;
        ring_release(AT(0), head);
        ring_fence_();
        if (ring_load(AT(128))) ring_swap(AT(128), 0);
    }
    return unused;
}

static void *pops(void *unused) {
    uint64_t head = 0, tail = 0, number;
    for (uint64_t expected = 0; expected < COUNT; expected++) {
        while (head == tail) {
            ring_store(AT(128), 1);
            ring_fence_();
            head = ring_load(AT(0));
        }
        memcpy(&number, ring.data + (tail & (SIZE - 1)), sizeof number);
        if (number != expected) { printf("wrong order\n"); return (void *)1; }
        tail += 16;
        ring_release(AT(64), tail);
    }
    return unused;
}

int main(void) {
    pthread_t one, other;
    void *failed;
    pthread_create(&one, 0, pushes, 0);
    pthread_create(&other, 0, pops, 0);
    pthread_join(one, 0);
    pthread_join(other, &failed);
    return failed != 0;
}
"""


def run(planted: bool) -> subprocess.CompletedProcess[str]:
    """Build and run it. *planted*: with the acquires and releases left out."""
    found = re.search(r'cdef extern from \*:\n    """\n(.*?)\n    """', KERNEL.read_text(), re.DOTALL)
    assert found is not None, "the kernel begins with its atomics"
    # ThreadSanitizer does not know fences: an exchange with nobody else's word stands for one, to keep the timing.
    atomics = found[1] + "\nstatic void ring_fence_(void) { static __thread uint64_t own; ring_swap(&own, 1); }\n"
    if planted:
        atomics = atomics.replace("__ATOMIC_ACQUIRE", "__ATOMIC_RELAXED").replace(
            "__ATOMIC_RELEASE", "__ATOMIC_RELAXED"
        )
    with tempfile.TemporaryDirectory() as folder:
        source, program = Path(folder, "ring.c"), Path(folder, "ring")
        source.write_text(atomics + DRIVER)
        flags = ["-O1", "-g", "-fsanitize=thread", "-Wno-tsan", "-pthread"]
        subprocess.run(["gcc", *flags, str(source), "-o", str(program)], check=True)
        # Where the kernel spreads addresses more than it knows, it cannot start.
        command = ["setarch", "-R", str(program)]
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)


def main() -> int:
    """Run it; gives the exit status."""
    done = run("--planted" in sys.argv[1:])
    print(done.stdout + done.stderr[:4000])
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
