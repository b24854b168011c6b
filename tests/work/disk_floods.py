"""Floods of the disk that hostile jobs try, alike for each kind of agent: each ends by name, and the next job runs."""

from __future__ import annotations

from tests.work.rig import Rig

MIB = 2**20
LIMIT_BYTES = 8 * MIB
STOPS_BYTES = 64 * MIB
"""A flood that nobody ends stops there, and holds it."""

HOLDS_UNLINKED = """
import os, sys
gone, written = open("gone", "wb"), open("written", "wb")
gone.write(os.urandom(2**20)), gone.flush(), os.unlink("gone")
written.write(os.urandom(2 * 2**20)), written.flush()
read = open(sys.executable, "rb")
print("up", flush=True)
sys.stdin.read()
"""
HOLDS_MAPPED = """
import mmap, os, sys
fd = os.open("gone", os.O_RDWR | os.O_CREAT)
os.write(fd, os.urandom(2**20))
kept = mmap.mmap(fd, 2**20)
os.unlink("gone"), os.close(fd)
for number in map(int, os.listdir("/proc/self/fd")):  # that of the mmap object
    if number > 2:
        try: os.close(number)
        except OSError: pass
print("up", flush=True)
sys.stdin.read()
"""
_HEAD = """
import os, sys, time
top = os.environ.get("TMPDIR", "/tmp") if sys.argv[2:] == ["tmp"] else os.environ["HOME"]
data, left = os.urandom(65536), int(sys.argv[1])
os.chdir(top)
def flood():
    global left
    number = 0
    while left > 0:
        number += 1
        left -= write(number)
"""
_TAIL = """
try:
    flood()
except OSError as error:
    print(type(error).__name__, error.errno, flush=True)
time.sleep(600)
"""
FLOODS = {
    "one file": """
out = open("large", "wb", 0)
def write(number):
    return out.write(data)
""",
    "many files": """
def write(number):
    with open(f"f{number}", "wb", 0) as out:
        return out.write(data[:4096])
""",
    "a deep tree": """
def write(number):
    os.mkdir("d"), os.chdir("d")
    with open("f", "wb", 0) as out:
        return out.write(data)
""",
    "a shut folder": """
os.mkdir("shut"), os.chmod("shut", 0o300)
def write(number):
    with open(f"shut/f{number}", "wb", 0) as out:
        return out.write(data)
""",
    "a file without a name": """
out = open("gone", "wb", 0)
os.unlink("gone")
def write(number):
    return out.write(data)
""",
}
EXAMPLES = [*((name, "home") for name in FLOODS), ("one file", "tmp")]


def flood(name: str, place: str, stops_bytes: int = STOPS_BYTES) -> list[str]:
    """The command of a flood."""
    return ["python3", "-c", _HEAD + FLOODS[name] + _TAIL, str(stops_bytes), place]


def check_disk_floods(rig: Rig, user: str) -> None:
    """Run them one after the other, on a host where work may hold little."""
    work = rig.context.settings.work
    work.disk_bytes_max = LIMIT_BYTES
    try:
        for name, place in EXAMPLES:
            job_id = f"{name}-{place}".replace(" ", "-")
            job = rig.run(job_id, command=flood(name, place), user_id=user)
            assert job["state"] == "failed" and job["error"]["code"] == "DiskLimitExceeded", (name, job["error"])
            assert "work.disk_bytes_max" in job["error"]["asked"]
            assert rig.run(f"after-{job_id}", command=["echo", "runs"], user_id=user)["state"] == "succeeded"
            assert not (rig.dir(f"{job_id}.1").path / "home").exists()
    finally:
        work.disk_bytes_max = 0
