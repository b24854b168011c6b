"""pyverbs in memory, with faults: what of its API is used here, in either of its generations, for a machine without it.

Devices, regions, queues and queue pairs of one process, connected by their numbers. Memory is real, and is read and
written by its address; keys and bounds are checked as a card would. What is posted is carried out at once.
"""

from __future__ import annotations

import ctypes
import itertools
import os
import sys
from collections import deque
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from actorgrid.transports.rdma import verbs

_CONSTANTS = {
    "enum_wc": "WC_SUCCESS WC_LOC_LEN_ERR WC_LOC_QP_OP_ERR WC_LOC_EEC_OP_ERR WC_LOC_PROT_ERR WC_WR_FLUSH_ERR "
    "WC_MW_BIND_ERR WC_BAD_RESP_ERR WC_LOC_ACCESS_ERR WC_REM_INV_REQ_ERR WC_REM_ACCESS_ERR WC_REM_OP_ERR "
    "WC_RETRY_EXC_ERR WC_RNR_RETRY_EXC_ERR WC_REM_ABORT_ERR WC_FATAL_ERR WC_RESP_TIMEOUT_ERR WC_GENERAL_ERR",
    "enum_wr": "WR_SEND WR_RDMA_READ",
    "enum_qp": "QPT_RC QPS_ERR PORT_ACTIVE PORT_DOWN QP_STATE",
    "enum_event": "EVENT_CQ_ERR EVENT_SRQ_ERR EVENT_DEVICE_FATAL EVENT_PORT_ERR EVENT_COMM_EST",
}
_FLAGS = "ACCESS_LOCAL_WRITE ACCESS_REMOTE_READ SEND_SIGNALED SEND_INLINE"


class PyverbsError(Exception):
    pass


def _enums() -> dict[str, dict[str, int]]:
    found = {
        group: {f"IBV_{name}": number for number, name in enumerate(names.split())}
        for group, names in _CONSTANTS.items()
    }
    found["enum_flags"] = {f"IBV_{name}": 1 << number for number, name in enumerate(_FLAGS.split())}
    return found


ENUMS = _enums()
NAMES = SimpleNamespace(**{name: value for group in ENUMS.values() for name, value in group.items()})


class Fabric:
    """All devices of the test, and their faults."""

    def __init__(self) -> None:
        self.numbers = itertools.count(17)
        self.devices = ["stub0"]
        self.pairs: dict[int, Any] = {}
        self.regions: dict[int, Any] = {}
        self.contexts: list[Any] = []
        self.cut = False
        self.port_active = True
        self.locked_max = 1 << 40
        self.locked = 0
        self.refuse_pairs = False
        self.posted = self.inlined = self.signalled = self.reads = 0
        self.bytes_moved = 0
        self.before_post: Callable[[Any, Any], None] | None = None
        self.open = 0

    def __enter__(self) -> Fabric:
        return self


def install(monkeypatch: pytest.MonkeyPatch, generation: int = 44) -> Fabric:
    """Have ``verbs.load`` find the stub, as of rdma-core *generation*."""
    fabric = Fabric()
    made = _classes(fabric, with_fd=generation >= 59)
    for name, content in made.items():
        module = ModuleType(f"pyverbs.{name}")
        vars(module).update(content)
        monkeypatch.setitem(sys.modules, f"pyverbs.{name}", module)
    monkeypatch.setitem(sys.modules, "pyverbs", ModuleType("pyverbs"))
    enums = ModuleType("pyverbs.enums")
    if generation >= 59:
        libibverbs = ModuleType("pyverbs.libibverbs_enums")
        vars(libibverbs).update({group: SimpleNamespace(**values) for group, values in ENUMS.items()})
        monkeypatch.setitem(sys.modules, "pyverbs.libibverbs_enums", libibverbs)
        monkeypatch.setitem(sys.modules, "pyverbs.enums", None)
    else:
        vars(enums).update(vars(NAMES))
        monkeypatch.setitem(sys.modules, "pyverbs.enums", enums)
        monkeypatch.setitem(sys.modules, "pyverbs.libibverbs_enums", None)
    monkeypatch.setattr(verbs, "_loaded", None)
    monkeypatch.setattr(
        verbs, "_event_descriptors", lambda: {fd for each in fabric.contexts for fd in each.descriptors}
    )
    return fabric


def _classes(fabric: Fabric, with_fd: bool) -> dict[str, dict[str, Any]]:
    class Closable:
        def __init__(self) -> None:
            self.closed = False
            fabric.open += 1

        def close(self) -> None:
            if not self.closed:
                self.closed = True
                fabric.open -= 1

    class Context(Closable):
        def __init__(self, name: str) -> None:
            if name not in fabric.devices:
                raise PyverbsError(f"no device {name}")
            super().__init__()
            self.name = name
            self.events: deque[int] = deque()
            self.events_fd = os.eventfd(0, os.EFD_NONBLOCK)
            self.descriptors = {self.events_fd}
            self.queues: list[Any] = []
            fabric.contexts.append(self)

        def query_port(self, _port: int) -> Any:
            state = NAMES.IBV_PORT_ACTIVE if fabric.port_active else NAMES.IBV_PORT_DOWN
            return SimpleNamespace(state=state, active_mtu=3, gid_tbl_len=2)

        def query_gid(self, _port: int, index: int) -> str:
            return ["fe80:0000:0000:0000:5054:00ff:fe77:0001", "0000:0000:0000:0000:0000:ffff:0a4d:0001"][index]

        def get_async_event(self) -> Any:
            if not self.events:
                raise PyverbsError("no event")
            os.eventfd_read(self.events_fd) if len(self.events) == 1 else None
            return SimpleNamespace(event_type=self.events.popleft(), ack=lambda: None)

        def say(self, event: int) -> None:
            self.events.append(event)
            os.eventfd_write(self.events_fd, 1)

        def close(self) -> None:
            if not self.closed:
                for fd in self.descriptors:
                    os.close(fd)
                self.descriptors = set()
                fabric.contexts.remove(self)
            super().close()

    class PD(Closable):
        def __init__(self, context: Context) -> None:
            super().__init__()
            self.context = context

    class MR(Closable):
        def __init__(self, domain: PD, length: int, access: int) -> None:
            if fabric.locked + length > fabric.locked_max:
                raise PyverbsError("Failed to register a MR. Errno: 12, Cannot allocate memory")
            super().__init__()
            fabric.locked += length
            self.length, self.access = length, access
            self.memory = ctypes.create_string_buffer(length)
            self.buf = ctypes.addressof(self.memory)
            self.lkey = self.rkey = next(fabric.numbers) << 8
            fabric.regions[self.rkey] = self

        def holds(self, address: int, length: int) -> bool:
            return self.buf <= address and address + length <= self.buf + self.length

        def close(self) -> None:
            if not self.closed:
                fabric.locked -= self.length
                del fabric.regions[self.rkey]
            super().close()

    class CompChannel(Closable):
        def __init__(self, context: Context) -> None:
            super().__init__()
            self.context = context
            self.event = os.eventfd(0, os.EFD_NONBLOCK)
            context.descriptors.add(self.event)
            if with_fd:
                self.fd = self.event

        def get_cq_event(self, _queue: Any) -> None:
            try:
                os.eventfd_read(self.event)
            except BlockingIOError:
                raise PyverbsError("Failed to get CQ event. Errno: 11") from None

        def close(self) -> None:
            if not self.closed:
                self.context.descriptors.discard(self.event)
                os.close(self.event)
            super().close()

    class CQ(Closable):
        def __init__(self, context: Context, depth: int, _context: Any, channel: CompChannel) -> None:
            super().__init__()
            self.context, self.depth, self.channel = context, depth, channel
            self.entries: deque[Any] = deque()
            self.armed = self.overrun = False

        def req_notify(self) -> None:
            self.armed = True

        def ack_events(self, _count: int) -> None:
            pass

        def poll(self, count: int = 1) -> tuple[int, list[Any]]:
            if self.closed:
                raise PyverbsError("Failed to poll CQ")
            found = [self.entries.popleft() for _ in range(min(count, len(self.entries)))]
            return len(found), found

        def put(self, **entry: Any) -> None:
            if self.overrun or len(self.entries) >= self.depth:
                if not self.overrun:
                    self.context.say(NAMES.IBV_EVENT_CQ_ERR)
                self.overrun = True
                return
            self.entries.append(SimpleNamespace(**entry))
            if self.armed:
                self.armed = False
                os.eventfd_write(self.channel.event, 1)

    class SRQ(Closable):
        def __init__(self, _domain: PD, attributes: Any) -> None:
            super().__init__()
            self.attributes = attributes
            self.requests: deque[Any] = deque()

        def post_recv(self, request: Any) -> None:
            if len(self.requests) >= self.attributes.attr.max_wr:
                raise PyverbsError("Failed to post receive to SRQ")
            self.requests.append(request)

    class SGE(Closable):
        def __init__(self, addr: int, length: int, lkey: int) -> None:
            super().__init__()
            self.addr, self.length, self.lkey = addr, length, lkey

    class Request(Closable):
        def __init__(
            self, wr_id: int = 0, num_sge: int = 0, sg: Any = (), opcode: int = 0, send_flags: int = 0
        ) -> None:
            super().__init__()
            self.wr_id, self.opcode, self.send_flags = wr_id, opcode, send_flags
            self.addr, self.length, self.lkey = sg[0].addr, sg[0].length, sg[0].lkey
            self.rkey = self.remote = 0

        def set_wr_rdma(self, rkey: int, remote: int) -> None:
            self.rkey, self.remote = rkey, remote

    class QP(Closable):
        def __init__(self, domain: PD, attributes: Any) -> None:
            if fabric.refuse_pairs:
                raise PyverbsError("Failed to create QP. Errno: 12")
            super().__init__()
            self.queue, self.receives = attributes.scq, attributes.srq
            self.depth = attributes.cap.max_send_wr
            self.inline = attributes.cap.max_inline_data
            self.qp_num = next(fabric.numbers)
            self.state, self.peer, self.context = "RESET", 0, domain.context
            self.unreaped = 0  # posted, and no completion has said that they are through
            fabric.pairs[self.qp_num] = self

        def to_init(self, attributes: Any) -> None:
            self.access, self.state = attributes.qp_access_flags, "INIT"

        def to_rts(self, attributes: Any) -> None:
            assert self.state == "INIT" and attributes.retry_cnt < 7 and attributes.rnr_retry < 7
            self.peer, self.state = attributes.dest_qp_num, "RTS"

        def modify(self, _attributes: Any, _mask: int) -> None:
            self.fail(NAMES.IBV_WC_WR_FLUSH_ERR, None)

        def fail(self, status: int, request: Any) -> None:
            self.state = "ERR"
            if request is not None:
                self.queue.put(wr_id=request.wr_id, status=status, qp_num=self.qp_num, byte_len=0)

        def post_send(self, request: Any) -> None:
            fabric.posted += 1
            if fabric.before_post is not None:
                fabric.before_post(self, request)
            if self.state == "ERR":
                self.fail(NAMES.IBV_WC_WR_FLUSH_ERR, request)
                return
            assert self.state == "RTS", "a pair that is not connected"
            self.unreaped += 1
            if self.unreaped > self.depth:
                raise PyverbsError("Failed to post send. Errno: 12")
            signalled = request.send_flags & NAMES.IBV_SEND_SIGNALED
            fabric.signalled += bool(signalled)
            if request.send_flags & NAMES.IBV_SEND_INLINE:
                assert request.length <= self.inline
                fabric.inlined += 1
            far = fabric.pairs.get(self.peer)
            if fabric.cut or far is None or far.state != "RTS":
                self.fail(NAMES.IBV_WC_RETRY_EXC_ERR, request)
            elif request.opcode == NAMES.IBV_WR_RDMA_READ:
                self.read(far, request)
            else:
                self.send(far, request, signalled)

        def send(self, far: QP, request: Any, signalled: int) -> None:
            local = fabric.regions[request.lkey]
            assert local.holds(request.addr, request.length)
            if not far.receives.requests:
                self.fail(NAMES.IBV_WC_RNR_RETRY_EXC_ERR, request)
                return
            receive = far.receives.requests.popleft()
            assert request.length <= receive.length
            ctypes.memmove(receive.addr, request.addr, request.length)
            fabric.bytes_moved += request.length
            far.queue.put(wr_id=receive.wr_id, status=NAMES.IBV_WC_SUCCESS, qp_num=far.qp_num, byte_len=request.length)
            if signalled:
                self.through(request)

        def read(self, far: QP, request: Any) -> None:
            fabric.reads += 1
            there, here = fabric.regions.get(request.rkey), fabric.regions[request.lkey]
            assert here.holds(request.addr, request.length) and here.access & NAMES.IBV_ACCESS_LOCAL_WRITE
            allowed = there is not None and there.access & far.access & NAMES.IBV_ACCESS_REMOTE_READ
            if not allowed or not there.holds(request.remote, request.length):
                far.state = "ERR"
                self.fail(NAMES.IBV_WC_REM_ACCESS_ERR, request)
                return
            ctypes.memmove(request.addr, request.remote, request.length)
            fabric.bytes_moved += request.length
            self.through(request)

        def through(self, request: Any) -> None:
            self.unreaped = 0
            self.queue.put(wr_id=request.wr_id, status=NAMES.IBV_WC_SUCCESS, qp_num=self.qp_num, byte_len=0)

        def close(self) -> None:
            if not self.closed:
                del fabric.pairs[self.qp_num]
                self.state = "ERR"
            super().close()

    class QPAttr:
        def __init__(self, port_num: int) -> None:
            self.port_num = port_num

    def values(**found: Any) -> Any:
        return SimpleNamespace(**found)

    return {
        "addr": {"AHAttr": values, "GID": str, "GlobalRoute": values},
        "cq": {"CQ": CQ, "CompChannel": CompChannel},
        "device": {
            "Context": Context,
            "get_device_list": lambda: [SimpleNamespace(name=name.encode()) for name in fabric.devices],
        },
        "mr": {"MR": MR},
        "pd": {"PD": PD},
        "qp": {"QP": QP, "QPAttr": QPAttr, "QPCap": values, "QPInitAttr": values},
        "srq": {"SRQ": SRQ, "SrqAttr": values, "SrqInitAttr": lambda attr: SimpleNamespace(attr=attr)},
        "wr": {"SGE": SGE, "RecvWR": Request, "SendWR": Request},
        "pyverbs_error": {"PyverbsError": PyverbsError},
    }
