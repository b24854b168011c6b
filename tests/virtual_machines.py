"""Virtual machines of the distribution's kernel, with this tree inside: for what this machine's kernel does not have.

Everything comes from the distribution into a folder of its own, and nothing is installed: the kernel, qemu, busybox,
pyverbs (for ``tests/transports/rdma``). A guest's root is this machine's own ``/``, read-only over 9p, so the
interpreter, the environment and this tree are there under the same paths. Machines are emulated (no KVM): they show
that it is right, never how fast it is.

A guest speaks by lines of JSON over its second serial port, which no cut of a network reaches.
"""

from __future__ import annotations

import json
import lzma
import os
import platform
import shlex
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).parents[1]
PACKAGES = ("qemu-system-x86", "busybox-static", "kmod", "python3-pyverbs", "ibverbs-providers")
NOT_NEEDED = ("systemd", "libsystemd", "udev", "libudev", "libnss", "libpam", "rdma-core", "haproxy")
MODULES = ("virtio_pci", "9pnet_virtio", "9p", "virtio_net", "crc32c_generic", "crc32_generic", "ib_uverbs", "rdma_rxe")
MEMORY_MB = 768
BOOT_S = 400.0
ANSWER_S = 120.0

_INIT = """#!/bin/busybox sh
B=/bin/busybox
$B mount -t proc p /proc; $B mount -t sysfs s /sys; $B mount -t devtmpfs d /dev
while read -r m; do $B insmod /m/$m; done < /m/order
o=trans=virtio,version=9p2000.L,msize=512000,ro,cache=loose
$B mount -t 9p -o $o root /r || { echo "no root"; $B poweroff -f; }
$B mount -t proc p /r/proc; $B mount -t sysfs s /r/sys; $B mount -t devtmpfs d /r/dev
$B mkdir -p /r/dev/shm /r/dev/pts; $B mount -t tmpfs t /r/dev/shm; $B mount -t tmpfs t /r/run
for word in $($B cat /proc/cmdline); do case $word in guest.run=*) run=${word#guest.run=};; esac; done
$B chroot /r /bin/sh "$run" </dev/null
echo "the guest's program ended: $?"
$B poweroff -f
"""


@dataclass(frozen=True, slots=True)
class Parts:
    """What machines are made of: the folder with the distribution's files, the kernel, and its first file system."""

    folder: Path
    kernel: Path
    initrd: Path

    def environment(self) -> dict[str, str]:
        """The variables with which programs of the folder run."""
        libraries = [self.folder / "usr/lib/x86_64-linux-gnu", self.folder / "lib/x86_64-linux-gnu"]
        return {"LD_LIBRARY_PATH": ":".join(map(str, libraries))}

    def guest_environment(self) -> dict[str, str]:
        """The variables with which a guest's Python runs this tree."""
        return {
            **self.environment(),
            "PYTHONPATH": str(REPOSITORY),
            "PYTHONDONTWRITEBYTECODE": "1",
            "TMPDIR": "/run",
            "HOME": "/run",
            "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
        }


def why_not(*programs: str) -> str | None:
    """Why no such machine can be had here; ``None`` when one can be tried. *programs*: what is needed beside."""
    if os.geteuid() != 0:
        return "a virtual machine over this machine's files needs root"
    if platform.machine() != "x86_64":
        return f"the recipe is for x86_64, and this is {platform.machine()}"
    missing = [name for name in ("apt-get", "dpkg-deb", *programs) if shutil.which(name) is None]
    return f"not installed: {', '.join(missing)}" if missing else None


def parts() -> Parts | str:
    """Fetch and unpack what is not there yet (some 90 MB, once); a text says why it could not be had."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "actorgrid-tests" / "soft-roce-2"
    try:
        if (cache / "ready").exists() and not _starts(cache / "root"):
            shutil.rmtree(cache)  # what was installed then, and left out therefore, is not there any more
        if not (cache / "ready").exists():
            cache.parent.mkdir(parents=True, exist_ok=True)
            made = Path(tempfile.mkdtemp(dir=cache.parent, prefix="making-"))
            try:
                _fetch(made)
                made.rename(cache)
            finally:
                shutil.rmtree(made, ignore_errors=True)
    except subprocess.CalledProcessError as error:
        return f"the distribution's packages could not be had: {error}: {(error.stderr or b'')[-300:]!r}"
    except OSError as error:
        return f"the distribution's packages could not be unpacked: {error}"
    return Parts(cache / "root", next((cache / "kernel/boot").glob("vmlinuz-*")), cache / "initrd")


def _starts(root: Path) -> bool:
    """Whether qemu finds all its libraries."""
    environment = {**os.environ, **Parts(root, root, root).environment()}
    program = root / "usr/bin/qemu-system-x86_64"
    return subprocess.run([str(program), "--version"], env=environment, capture_output=True).returncode == 0


def run(*words: str | Path, cwd: Path | None = None, env: dict[str, str] | None = None) -> str:
    done = subprocess.run(
        [str(word) for word in words], cwd=cwd, env={**os.environ, **(env or {})}, check=True, capture_output=True
    )
    return done.stdout.decode()


def _fetch(folder: Path) -> None:
    try:
        wanted = _wanted()
    except (subprocess.CalledProcessError, StopIteration):  # a machine that has no lists yet
        run("apt-get", "update", "-qq")
        wanted = _wanted()
    kernel, others = wanted
    for name, packages in (("root", others), ("kernel", [kernel])):
        debs = folder / "debs"
        debs.mkdir()
        run("apt-get", "download", "-q", "-o", "APT::Sandbox::User=root", *packages, cwd=debs)
        (folder / name).mkdir()
        for deb in debs.glob("*.deb"):
            run("dpkg-deb", "-x", deb, folder / name)
        shutil.rmtree(debs)
    root, kernel_root = folder / "root", folder / "kernel"
    libraries = f"{root}/usr/lib/x86_64-linux-gnu:{root}/lib/x86_64-linux-gnu"
    kmod = next(path for path in (root / "bin/kmod", root / "usr/bin/kmod", Path("/usr/bin/kmod")) if path.exists())
    (folder / "depmod").symlink_to(kmod)
    modules = next(path for path in (kernel_root / "lib/modules", kernel_root / "usr/lib/modules") if path.exists())
    (version,) = (path.name for path in modules.iterdir())
    run(folder / "depmod", "-b", modules.parents[1] if modules.parent.name == "lib" else kernel_root, version,
         env={"LD_LIBRARY_PATH": libraries})  # fmt: skip
    busybox = next(
        path for path in (root / "bin/busybox", root / "usr/bin/busybox", Path("/bin/busybox")) if path.exists()
    )
    _write_initrd(folder / "initrd", busybox, modules / version)
    (folder / "ready").touch()


def _wanted() -> tuple[str, list[str]]:
    """The kernel's package, and those of *PACKAGES* with what they need and this machine lacks."""
    lines = run("apt-cache", "depends", "linux-image-amd64").splitlines()
    kernel = next(line.split()[-1] for line in lines if "Depends: linux-image-" in line)
    lines = run("apt-get", "install", "-s", "--no-install-recommends", *PACKAGES).splitlines()
    missing = [line.split()[1] for line in lines if line.startswith("Inst ")]
    here = [
        name for name in PACKAGES if name not in missing
    ]  # installed already, and unpacked with the others all the same
    return kernel, [name for name in missing if not name.startswith(NOT_NEEDED)] + here


def _write_initrd(path: Path, busybox: Path, modules: Path) -> None:
    needs = {}
    for line in (modules / "modules.dep").read_text().splitlines():
        name, _, depends = line.partition(":")
        needs[Path(name).name.split(".")[0].replace("-", "_")] = [name, *depends.split()]
    order: dict[str, bytes] = {}
    for module in MODULES:
        for file in reversed(needs.get(module, [])):
            data = (modules / file).read_bytes()
            order[Path(file).name.removesuffix(".xz")] = lzma.decompress(data) if file.endswith(".xz") else data
    files: dict[str, tuple[int, bytes]] = {name: (0o40755, b"") for name in ("bin", "m", "r", "proc", "sys", "dev")}
    files |= {"bin/busybox": (0o100755, busybox.read_bytes()), "init": (0o100755, _INIT.encode())}
    files |= {f"m/{name}": (0o100644, data) for name, data in order.items()}
    files["m/order"] = (0o100644, "".join(f"{name}\n" for name in order).encode())
    with path.open("wb") as out:  # the format "newc" of cpio(5)
        for number, (name, (mode, data)) in enumerate([*files.items(), ("TRAILER!!!", (0, b""))], 1):
            fields = (number, mode, 0, 0, 1, 0, len(data), 0, 0, 0, 0, len(name) + 1, 0)
            head = b"070701" + b"".join(b"%08X" % field for field in fields) + name.encode() + b"\0"
            out.write(head + b"\0" * (-len(head) % 4) + data + b"\0" * (-len(data) % 4))


class Guest:
    """One machine. ``ask`` gives it an order and waits for what it says."""

    def __init__(
        self,
        folder: Path,
        name: str,
        made_of: Parts,
        program: str,
        *,
        network: str = "",
        devices: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """*program*: what its shell does, as root; *network*: the namespace that it is started in; *devices*: words for
        qemu that give it more of them."""
        self.name = name
        self._folder = folder
        self._read = b""
        self._orders = 0
        port = folder / f"{name}.port"
        run = folder / f"{name}.sh"
        variables = made_of.guest_environment() if environment is None else environment
        exports = "".join(f"export {key}={shlex.quote(value)}\n" for key, value in variables.items())
        run.write_text(f"{exports}cd {shlex.quote(str(REPOSITORY))}\n{program}")
        self._console = folder / f"{name}.console"
        command = ["ip", "netns", "exec", network] if network else []
        command += [str(made_of.folder / "usr/bin/qemu-system-x86_64")]
        command += ["-accel", "tcg,thread=multi", "-cpu", "max", "-smp", "1", "-m", str(MEMORY_MB), "-nodefaults"]
        command += ["-no-user-config", "-display", "none", "-no-reboot", "-L", str(made_of.folder / "usr/share/qemu")]
        command += ["-L", str(made_of.folder / "usr/share/seabios"), "-serial", f"file:{self._console}"]
        command += ["-chardev", f"socket,id=orders,path={port},server=on,wait=off", "-serial", "chardev:orders"]
        command += devices
        command += ["-kernel", str(made_of.kernel), "-initrd", str(made_of.initrd), "-append"]
        command += [f"console=ttyS0 quiet panic=-1 no_timer_check mitigations=off nokaslr audit=0 guest.run={run}"]
        command += ["-fsdev", "local,id=r,path=/,security_model=none,readonly=on,multidevs=remap"]
        command += ["-device", "virtio-9p-pci,fsdev=r,mount_tag=root"]
        self._log = (folder / f"{name}.qemu").open("wb")
        self._machine = subprocess.Popen(
            command, env={**os.environ, **made_of.environment()}, stdout=self._log, stderr=self._log
        )
        self._port = socket.socket(socket.AF_UNIX)
        end = time.monotonic() + BOOT_S
        while True:
            try:
                self._port.connect(str(port))
                break
            except OSError:
                if time.monotonic() > end or self._machine.poll() is not None:
                    raise AssertionError(self.story("qemu did not start")) from None
                time.sleep(0.05)

    def story(self, why: str) -> str:
        """*why*, with what the machine printed."""
        texts = [self._folder / f"{self.name}.qemu", self._console]
        told = "\n".join(path.read_text(errors="replace")[-6000:] for path in texts if path.exists())
        return f"{self.name}: {why}\n{told}"

    def hear(self, timeout_s: float = ANSWER_S) -> Any:
        """The next line that the guest says."""
        end = time.monotonic() + timeout_s
        while b"\n" not in self._read:
            left_s = end - time.monotonic()
            self._port.settimeout(max(0.01, left_s))
            try:
                data = self._port.recv(65536) if left_s > 0 else None
            except TimeoutError:
                data = None
            if data is None:
                raise AssertionError(self.story(f"said nothing in {timeout_s:g} s"))
            if not data:
                raise AssertionError(self.story("is gone"))
            self._read += data
        line, _, self._read = self._read.partition(b"\n")
        return json.loads(line)

    def tell(self, order: str, **words: Any) -> None:
        """Give an order; ``hear`` waits for the answer."""
        self._port.settimeout(30.0)
        self._orders += 1
        self._port.sendall(json.dumps({"id": self._orders, "order": order, **words}).encode() + b"\n")

    def ask(self, order: str, timeout_s: float = ANSWER_S, **words: Any) -> Any:
        """Give an order and wait for what is answered; an error there is raised here."""
        self.tell(order, **words)
        return self.answer(timeout_s)

    def answer(self, timeout_s: float = ANSWER_S) -> Any:
        """What an order that was told before gave."""
        found = self.hear(timeout_s)
        while found["id"] != self._orders:  # of an order whose test did not wait for its answer
            found = self.hear(timeout_s)
        if "error" in found:
            raise AssertionError(self.story(found["error"]))
        return found["answer"]

    def kill(self) -> None:
        """Pull the plug."""
        self._port.close()
        self._machine.kill()
        self._machine.wait()
        self._log.close()
