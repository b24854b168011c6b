"""A job whose directory was sent along, kept apart: it runs in a copy of its own, and what was sent stays as it was."""

from __future__ import annotations

import io
import zipfile

from actorgrid.working_dir import VARIABLE
from tests.work.rig import Rig

PROGRAM = """
import os, sent
os.rename("sent.py", "moved.py")
open("sent.py", "w").write("value = 2")
print(sent.value, os.getcwd() == os.environ["ACTORGRID_WORKING_DIR"])
"""


def check_sent_directory(rig: Rig, user: str) -> None:
    """Of jobs of *user* that have neither outputs nor a checkpoint: two, one after the other."""
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as sent:
        sent.writestr("sent.py", "value = 1")
    digest = rig.blob(archive.getvalue())
    for name in ("sent1", "sent2"):
        command = ["python3", "-c", PROGRAM]
        job = rig.run(name, command=command, user_id=user, payload_digest=digest, env={VARIABLE: digest})
        assert job["state"] == "succeeded", (job["error"], rig.output(f"{name}.1", "stderr"))
        assert rig.output(f"{name}.1") == "1 True\n"
        assert not (rig.dir(f"{name}.1").path / "cwd").exists()
