"""Two virtual machines with soft-RoCE: the verbs of the kernel and of pyverbs, and the faults that they can have.

One boot for all. Nothing here says how fast anything is: the machines are emulated.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.transports.peer_certificates import Authority
from tests.transports.rdma import machines
from tests.transports.rdma.guest import CLUSTER
from tests.transports.rdma.machines import Guest, Machines

pytestmark = [pytest.mark.system, pytest.mark.root, pytest.mark.soft_roce, pytest.mark.timeout(900)]

ADDRESSES = {"a": "10.77.0.1", "b": "10.77.0.2"}
SIZES = [0, 60, 97, 2000, 8000, 9000, 70_000]
WAIT_S = 90.0


class Hosts:
    """Both guests with a worker each."""

    def __init__(self, both: Machines, folder: str) -> None:
        self.machines, self.folder = both, folder
        self.a, self.b = both.guests
        self.sent = 0
        self.fresh = False

    def begin(self, a: dict[str, Any] | None = None, b: dict[str, Any] | None = None, paired: bool = True) -> None:
        """Start both workers anew."""
        common = {"worker": "w", "folder": self.folder, "addresses": ADDRESSES}
        for guest in (self.a, self.b):
            guest.ask("kill", worker="w")
        for guest, name, other, options in ((self.a, "a", "b", a), (self.b, "b", "a", b)):
            guest.tell("begin", name=name, other=other, **common, **(options or {}))
        for guest in (self.a, self.b):
            guest.answer(WAIT_S)
            guest.ask("expect", worker="w", sizes=SIZES)
        self.sent = 0
        if (a or {}).get("streams"):
            return
        self.a.ask("want", worker="w")
        if paired:
            self.paired()

    def paired(self) -> None:
        """Wait until both use their pair."""
        for guest in (self.a, self.b):
            guest.ask("until", worker="w", carrier="rdma", timeout_s=WAIT_S)

    def ready(self) -> None:
        """Have both use their pair, with workers of the test before or with new ones."""
        try:
            found = [guest.ask("status", worker="w") for guest in (self.a, self.b)]
        except AssertionError:
            found = []
        if len(found) == 2 and all(each["carrier"] == "rdma" and not each["ended"] for each in found):
            return
        self.begin()

    def send(self, count: int) -> dict[str, Any]:
        """Send the next messages from a to b; gives b's status once all have come, once each and in order."""
        first, self.sent = self.sent, self.sent + count
        self.a.ask("send", 1800.0, worker="w", count=count, sizes=SIZES, first=first)
        return self.came()

    def came(self) -> dict[str, Any]:
        """Wait until all that was sent has come."""
        for guest, wanted in ((self.b, {"got": self.sent}), (self.a, {"unconsumed": 0})):
            guest.tell("until", worker="w", timeout_s=WAIT_S, **wanted)
        found = self.b.answer(WAIT_S + 20)
        self.a.answer(WAIT_S + 20)
        assert found["wrong"] == []
        assert found["got"] == self.sent
        return found  # type: ignore[no-any-return]

    def failed(self, why: str) -> None:
        """One of the two names *why* a pair failed."""
        told = [guest.ask("status", worker="w") for guest in (self.a, self.b)]
        assert any(why in each["failure"] + each["reason"] + each["unavailable"] for each in told), told

    def do(self, guest: Guest, code: str, **words: Any) -> Any:
        """Have a worker carry out some lines."""
        return guest.ask("do", worker="w", code=code, **words)


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts]:
    why = machines.why_not()
    if why is not None:
        pytest.skip(f"no soft-RoCE in virtual machines: {why}")
    made_of = machines.parts()
    if isinstance(made_of, str):
        pytest.skip(f"no soft-RoCE in virtual machines: {made_of}")
    folder = tmp_path_factory.mktemp("soft-roce")
    authority = Authority()
    (folder / "authority.pem").write_text(authority.pem)
    for name in ADDRESSES:
        authority.identity(folder, CLUSTER, name)
    with machines.machines(folder, made_of) as both:
        yield Hosts(both, str(folder))


def test_messages_of_all_sizes_come_in_order(hosts: Hosts) -> None:
    hosts.begin()
    hosts.send(210)
    status = hosts.a.ask("status", worker="w")
    assert (status["carrier"], status["pairs_failed"]) == ("rdma", 0)


def test_thousands_of_messages_leave_memory_as_it_is(hosts: Hosts) -> None:
    hosts.ready()
    before = hosts.send(1200)["rss_kb"]
    after = hosts.send(2000)["rss_kb"]
    assert after - before < 1024


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_a_million_messages_come_in_order(hosts: Hosts) -> None:
    hosts.ready()
    before = hosts.send(50_000)["rss_kb"]
    for _ in range(19):
        hosts.send(50_000)
    assert hosts.b.ask("status", worker="w")["rss_kb"] - before < 2048


def test_a_wrong_key(hosts: Hosts) -> None:
    hosts.ready()
    code = """
honest = verbs.RdmaPair.expose
def wrong(pair, data):
    verbs.RdmaPair.expose = honest
    token, address, key = honest(pair, data)
    return token, address, key ^ 0x5a
verbs.RdmaPair.expose = wrong
"""
    hosts.do(hosts.a, code)
    hosts.send(30)
    hosts.failed("ERR")


def test_memory_that_cannot_be_registered(hosts: Hosts) -> None:
    hosts.begin(a={"privileged": False})
    code = """
import resource
device = worker.rdma.device()
device.exposed.close()
worker.limit = resource.getrlimit(resource.RLIMIT_MEMLOCK)
resource.setrlimit(resource.RLIMIT_MEMLOCK, (4096, worker.limit[1]))
"""
    hosts.do(hosts.a, code)
    hosts.send(30)
    hosts.failed("memory cannot be registered")
    hosts.do(hosts.a, "import resource; resource.setrlimit(resource.RLIMIT_MEMLOCK, worker.limit)")
    hosts.paired()


def test_a_stream_goes_over_the_pair_and_does_not_notice_when_it_fails(hosts: Hosts) -> None:
    hosts.begin(a={"streams": True}, b={"streams": True}, paired=False)
    found = hosts.a.ask("through", worker="w", size=400_000)
    assert (found["whole"], found["ends"], found["failed"]) == (True, 0, 0)
    found = hosts.a.ask("through", worker="w", size=1_000_000, cut_at=100_000)
    assert (found["whole"], found["ends"], found["failed"]) == (True, 0, 1)


def test_an_empty_receive_queue(hosts: Hosts) -> None:
    wide = {"limits": {"messages": 4096}}
    hosts.begin(a=wide, b=wide)
    hosts.b.ask("expect", worker="w", sizes=[0])
    hosts.do(hosts.a, "worker.rdma.peer('b').path.core._credits = 1 << 30")  # a host that keeps to no credits
    hosts.b.tell("do", worker="w", code="import time; time.sleep(8)")
    hosts.a.ask("send", worker="w", count=1300, sizes=[0], first=0)
    hosts.b.answer()
    hosts.sent = 1300
    hosts.came()
    hosts.failed("RNR_RETRY_EXC_ERR")


def test_the_link_is_cut_and_mended(hosts: Hosts) -> None:
    hosts.begin()
    hosts.send(20)
    hosts.machines.cut(2)
    hosts.a.ask("send", worker="w", count=20, sizes=SIZES, first=20)
    hosts.sent = 40
    hosts.a.ask("until", worker="w", pairs_failed=1, timeout_s=WAIT_S)
    hosts.machines.mend(2)
    hosts.came()
    hosts.failed("RETRY_EXC_ERR")


def test_a_queue_of_completions_that_overruns(hosts: Hosts) -> None:
    hosts.begin(b={"limits": {"completions": 8}})
    hosts.b.tell("do", worker="w", code="import time; time.sleep(4)")  # it polls nothing meanwhile
    hosts.a.ask("send", worker="w", count=32, sizes=SIZES, first=0)
    hosts.sent = 32
    hosts.b.answer()
    hosts.came()
    told = [guest.ask("status", worker="w") for guest in (hosts.a, hosts.b)]
    assert any(each["pairs_failed"] for each in told), told


def test_a_limit_of_locked_memory(hosts: Hosts) -> None:
    hosts.begin(b={"locked_bytes": 65536}, paired=False)
    hosts.send(20)
    hosts.failed("ulimit -l")
    assert hosts.a.ask("status", worker="w")["carrier"] == "tls"


def test_another_version(hosts: Hosts) -> None:
    hosts.begin(b={"version": 2}, paired=False)
    hosts.send(20)
    hosts.failed("speaks version")
    assert hosts.a.ask("status", worker="w")["carrier"] == "tls"


def test_the_peer_is_killed(hosts: Hosts) -> None:
    hosts.begin()
    hosts.send(20)
    hosts.b.ask("kill", worker="w")
    hosts.a.ask("send", worker="w", count=5, sizes=SIZES, first=20)
    hosts.a.ask("until", worker="w", carrier="none", timeout_s=WAIT_S)
    common = {"worker": "w", "folder": hosts.folder, "addresses": ADDRESSES}
    hosts.b.ask("begin", name="b", other="a", **common)
    hosts.a.tell("run", worker="w", for_s=10.0)
    hosts.b.ask("run", worker="w", for_s=8.0)
    ended = hosts.a.answer()["ended"]
    assert ended and "was lost" in ended[0]


def test_the_port_goes_down(hosts: Hosts) -> None:
    hosts.begin()
    hosts.send(20)
    hosts.b.ask("shell", command="ip link set eth0 down; sleep 1; ip link set eth0 up")
    hosts.send(20)
    hosts.failed("its port is down")


def test_the_device_is_removed(hosts: Hosts) -> None:
    hosts.begin()
    hosts.send(20)
    # Soft-RoCE tells no process that uses it, and waits for them; that one is told, only the stub can show.
    hosts.b.ask("shell", command="rdma link delete rxe0 >/dev/null 2>&1 & sleep 0.5")
    hosts.send(60)
    hosts.begin(paired=False)
    hosts.send(20)
    hosts.failed("no RDMA device")
    assert hosts.a.ask("status", worker="w")["carrier"] == "tls"
    added = hosts.b.ask("shell", command="rdma link add rxe0 type rxe netdev eth0; rdma link")
    assert "rxe0" in added[1]


def test_the_guest_is_killed(hosts: Hosts) -> None:
    hosts.begin()
    hosts.send(20)
    hosts.b.kill()
    hosts.a.ask("send", worker="w", count=5, sizes=SIZES, first=20)
    found = hosts.a.ask("until", worker="w", carrier="none", timeout_s=WAIT_S)
    assert found["pairs_failed"] == 1
    assert found["unconsumed"] == 5
