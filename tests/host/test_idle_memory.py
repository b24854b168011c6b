"""Memory the front process gives back."""

import subprocess
import sys

SCRIPT = """
import json, sqlite3, ssl, psutil
before = psutil.Process().memory_info()
from actorgrid.actors.host.idle_memory import give_back_file_pages
dropped = give_back_file_pages()
after = psutil.Process().memory_info()
# Everything mapped still works: it is read again where it is touched.
ssl.create_default_context(); sqlite3.connect(":memory:").close(); json.dumps({})
print(dropped > 0, after.shared < before.shared)
"""


def test_pages_of_files_go_and_come_back_when_they_are_needed() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout.split()) == (0, ["True", "True"]), done.stderr
