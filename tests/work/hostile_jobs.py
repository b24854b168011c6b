"""What hostile jobs try, as programs that say of each try what became of it."""

from __future__ import annotations

REFUSED = {"PermissionError", "FileNotFoundError", "ProcessLookupError", "OSError", "FileExistsError", "HTTPError"}
"""The errors by which something is refused."""

# Tries each line by itself; says what went through, and the error of what did not.
HOSTILE = """
import ctypes, json, os, signal, sys
facts = json.loads(sys.argv[1])
libc = ctypes.CDLL(None, use_errno=True)
def checked(answer):
    if answer < 0:
        raise OSError(ctypes.get_errno(), "refused")
    return answer
tried = {}
def attempt(name, act):
    try:
        tried[name] = repr(act())[:200]
    except OSError as error:
        tried[name] = type(error).__name__
shim = os.getppid()
attempt("token", lambda: open(facts["token"]).read())
attempt("work key", lambda: open(facts["data"] + "/work.key").read())
attempt("keys", lambda: os.listdir(facts["data"] + "/security"))
attempt("ledger", lambda: os.listdir(facts["data"] + "/ledger"))
attempt("attempts", lambda: os.listdir(facts["data"] + "/attempts"))
attempt("other's files", lambda: open(facts["secret"]).read())
attempt("other's environ", lambda: open(f"/proc/{facts['other']}/environ").read())
attempt("shim's environ", lambda: open(f"/proc/{shim}/environ").read())
attempt("agent's root", lambda: os.listdir(f"/proc/{facts['agent']}/root"))
attempt("ptrace", lambda: checked(libc.ptrace(16, shim, 0, 0)))
attempt("signal to the shim", lambda: os.kill(shim, signal.SIGSTOP))
attempt("signal to another", lambda: os.kill(facts["other"], 0))
attempt("mount", lambda: checked(libc.mount(b"none", b"/mnt", b"tmpfs", 0, None)))
attempt("umount", lambda: checked(libc.umount2(facts["data"].encode(), 2)))
attempt("namespace", lambda: checked(libc.unshare(0x10000000)))
attempt("mknod", lambda: os.mknod("/tmp/disk", 0o60600, os.makedev(254, 0)))
attempt("setuid", lambda: os.setuid(0))
attempt("chown", lambda: os.chown("/tmp", 0, 0))
attempt("write /etc", lambda: open("/etc/actorgrid-was-here", "w"))
attempt("control socket", lambda: os.listdir(facts["sockets"]))
for name, place in (("result", "stdout"), ("status", "status.msgpack"), ("spec", "spec.msgpack"), ("lock", "lock")):
    attempt("replace " + name, lambda: os.symlink("/etc/shadow", os.path.join(facts["mine"], place)))
    attempt("remove " + name, lambda: os.unlink(os.path.join(facts["mine"], place)))
attempt("fifo", lambda: os.mkfifo(os.path.join(facts["mine"], "fifo")))
attempt("read spec", lambda: open(os.path.join(facts["mine"], "spec.msgpack"), "rb").read())
print(json.dumps(tried))
"""

# Forks until it may not, each child out of its parent's sight; says why it ended.
FORK_BOMB = """
import os, time
for count in range(100_000):
    try:
        child = os.fork()
    except OSError as error:
        print("stopped by", type(error).__name__, count < 1000)
        break
    if child == 0:
        os.setsid()
        time.sleep(600)
"""
LOG_FLOOD = "import os\nfor _ in range(300): os.write(1, b'x' * 65536)"
MEMORY_FLOOD = "import time; kept = bytearray(2**30)\nfor at in range(0, 2**30, 4096): kept[at] = 1\ntime.sleep(600)"
# Leaves its session, its parent and its output, and takes another name.
DAEMON = """
import os, sys
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.closerange(0, 10)
        os.execve("/bin/sleep", ["innocent", sys.argv[1]], {})
    os._exit(0)
os.wait()
"""
STUB_NODES = """
import os, sys
for path in sys.argv[1:]:
    try:
        os.open(path, os.O_RDWR)
    except OSError as error:
        print(error.errno)
"""
