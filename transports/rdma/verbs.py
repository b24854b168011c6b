"""The verbs by pyverbs: one device of this process, its queues, and a connected queue pair for each peer.

Thin: it decides nothing but which memory and which work request. pyverbs is loaded by ``load``, and comes with the
distribution (docs/rdma.md). Both of its generations will do: that of rdma-core 44, and of 59.

* Work requests are made once and used again: pyverbs up to 59 never frees their lists by itself, and one costs 3 µs.
  A send's is chosen by its slot and its length, rounded up to a power of two; the head says how much of it counts.
* ``get_cq_event`` blocks with the interpreter's lock held, so its descriptor does not block.
* Of a queue pair that failed, slots are given back by their completions; it is destroyed once they are through.
"""

from __future__ import annotations

import ctypes
import importlib
import ipaddress
import os
from collections import deque
from typing import Any, Protocol

from actorgrid.errors import NotSupported

from .frames import HEAD, PairDetails
from .limits import RdmaLimits
from .peer_core import PairFailed

PORT = 1
SEND_ID, FETCH_ID = 1 << 32, 1 << 33
"""Work requests' numbers: below, the slot of a receive. Of a failed one, nothing but its number says what it was."""
EVENTS = 64
"""Of the device, dealt with in a turn."""
COMPLETIONS = 32
"""Taken in one poll."""
RETRIES, RNR_RETRIES, TIMEOUT_EXPONENT, RNR_TIMER = 5, 6, 14, 12
"""Never 7: that is for ever for "receiver not ready", and in soft-RoCE for both. 4.096 µs * 2 ** 14 is 67 ms."""
SLAB_BYTES_MIN = 16 * 1024
LINGER_S = 1.0
"""For the completions of a failed queue pair to come."""


class PyverbsConstants:
    """The constants of pyverbs, flat, whatever its generation: ``enums.IBV_X`` or ``libibverbs_enums.<enum>.IBV_X``."""

    def __init__(self) -> None:
        try:
            self._module: Any = importlib.import_module("pyverbs.libibverbs_enums")
        except ImportError:
            self._module = importlib.import_module("pyverbs.enums")

    def __getattr__(self, name: str) -> int:
        for place in (self._module, *vars(self._module).values()):
            if name in getattr(place, "__members__", ()) or name in getattr(place, "__dict__", ()):
                value = int(getattr(place, name))
                setattr(self, name, value)
                return value
        raise AttributeError(name)


class Verbs:
    """The classes of pyverbs that are used here."""

    def __init__(self) -> None:
        import pyverbs  # noqa: F401 - the reason why it is not to be had is this one's, not that of a part

        def of(module: str, *names: str) -> list[Any]:
            found = importlib.import_module(f"pyverbs.{module}")
            return [getattr(found, name) for name in names]

        self.AHAttr, self.GID, self.GlobalRoute = of("addr", "AHAttr", "GID", "GlobalRoute")
        self.CQ, self.CompChannel = of("cq", "CQ", "CompChannel")
        self.Context, self.get_device_list = of("device", "Context", "get_device_list")
        (self.MR,) = of("mr", "MR")
        (self.PD,) = of("pd", "PD")
        self.QP, self.QPAttr, self.QPCap, self.QPInitAttr = of("qp", "QP", "QPAttr", "QPCap", "QPInitAttr")
        self.SRQ, self.SrqAttr, self.SrqInitAttr = of("srq", "SRQ", "SrqAttr", "SrqInitAttr")
        self.SGE, self.RecvWR, self.SendWR = of("wr", "SGE", "RecvWR", "SendWR")
        (self.Error,) = of("pyverbs_error", "PyverbsError")
        self.names = PyverbsConstants()


_loaded: Verbs | str | None = None


def load() -> Verbs:
    """pyverbs, loaded once. Raises NotSupported: why it is not to be had (a failed import is not tried again)."""
    global _loaded
    if _loaded is None:
        try:
            _loaded = Verbs()
        except (ImportError, AttributeError, OSError) as error:
            _loaded = f"pyverbs cannot be loaded: {error}"
    if isinstance(_loaded, str):
        raise NotSupported(
            "RDMA cannot be used on this host",
            found=_loaded,
            hint="install the distribution's python3-pyverbs, and have this Python find it: docs/rdma.md",
        )
    return _loaded


def device_names() -> list[str]:
    """The devices of this host. Raises NotSupported."""
    verbs = load()
    try:
        found = [device.name for device in verbs.get_device_list()]
    except (verbs.Error, OSError) as error:
        raise NotSupported("RDMA cannot be used on this host", found=f"no device can be listed: {error}") from None
    return sorted(name.decode() if isinstance(name, bytes) else str(name) for name in found)


class PairEvents(Protocol):
    """Who is told what a pair does."""

    def received(self, slot: memoryview) -> None:
        """A message lies in *slot*, until this returns."""

    def sent(self) -> None:
        """A signalled send is through."""

    def fetched(self, data: bytes) -> None:
        """The oldest fetch is through."""

    def failed(self, reason: str) -> None:
        """The pair is of no use any more."""


class _Memory:
    """Registered memory."""

    def __init__(self, verbs: Verbs, domain: Any, size: int, access: int) -> None:
        self.region = verbs.MR(domain, size, access)
        self.address = int(self.region.buf)
        self.key = int(self.region.lkey)
        self.view = memoryview((ctypes.c_char * size).from_address(self.address)).cast("B")

    def close(self) -> None:
        self.view.release()
        self.region.close()


class Slabs:
    """Registered memory that is used again, in powers of two; *bytes_max* of it, in use and kept for use together."""

    def __init__(self, verbs: Verbs, domain: Any, access: int, bytes_max: int) -> None:
        self._verbs, self._domain, self._access, self._bytes_max = verbs, domain, access, bytes_max
        self._free: dict[int, list[_Memory]] = {}
        self.bytes = self.registrations = 0

    def take(self, size: int) -> _Memory | None:
        """Memory for *size* bytes; ``None`` while there is no room. Raises pyverbs's errors."""
        whole = max(SLAB_BYTES_MIN, 1 << (size - 1).bit_length())
        if free := self._free.get(whole):
            return free.pop()
        while self.bytes + whole > self._bytes_max and self._let_go():
            pass
        if self.bytes + whole > self._bytes_max:
            return None
        found = _Memory(self._verbs, self._domain, whole, self._access)
        self.bytes += whole
        self.registrations += 1
        return found

    def give(self, memory: _Memory) -> None:
        """Take *memory* back, for the next."""
        self._free.setdefault(len(memory.view), []).append(memory)

    def _let_go(self) -> bool:
        for size, free in self._free.items():
            if free:
                free.pop().close()
                self.bytes -= size
                return True
        return False

    def close(self) -> None:
        """Let go of what is not in use."""
        while self._let_go():
            pass


class RdmaDevice:
    """A device that is open: what all pairs of this process share. Raises NotSupported, which says what is missing."""

    def __init__(self, name: str = "", gid_index: int = -1, limits: RdmaLimits | None = None) -> None:
        self.verbs = load()
        self.limits = limits or RdmaLimits()
        self.pairs: dict[int, RdmaPair] = {}
        self.closed = False
        self.lingering: dict[RdmaPair, None] = {}  # closed, until their completions are through
        self._opened: list[Any] = []
        try:
            self._open(name, gid_index)
        except (self.verbs.Error, OSError) as error:
            self.close()
            hint = "see `ulimit -l` (systemd: LimitMEMLOCK=infinity): its memory is locked" if self._opened else ""
            raise NotSupported("RDMA cannot be used on this host", found=str(error), hint=hint) from None

    def _open(self, name: str, gid_index: int) -> None:
        verbs, names, limits = self.verbs, self.verbs.names, self.limits
        if not name:
            found = device_names()
            if not found:
                raise NotSupported("RDMA cannot be used on this host", found="no RDMA device")
            name = found[0]
        self.name = name
        before = _event_descriptors()
        self._context = self._keep(verbs.Context(name=name))
        self.events_fd = max(_event_descriptors() - before, default=-1)
        if self.events_fd >= 0:
            os.set_blocking(self.events_fd, False)
        port = self._context.query_port(PORT)
        if port.state != names.IBV_PORT_ACTIVE:
            raise NotSupported("RDMA cannot be used on this host", found=f"the port of {name} is not active")
        self.mtu = int(port.active_mtu)
        self.gid_index = gid_index if gid_index >= 0 else self._mapped_gid(int(port.gid_tbl_len))
        self.gid = ipaddress.IPv6Address(str(self._context.query_gid(PORT, self.gid_index))).packed
        self._domain = self._keep(verbs.PD(self._context))
        before = _event_descriptors()
        self._channel = self._keep(verbs.CompChannel(self._context))
        # rdma-core 44 does not tell the descriptor: it is the one that appeared.
        self.fd = int(self._channel.fd) if hasattr(self._channel, "fd") else (_event_descriptors() - before).pop()
        os.set_blocking(self.fd, False)
        # A failed pair has a completion for all that was queued: the queue has room for that of every pair.
        depth = limits.completions or limits.receive_slots + limits.peers * (limits.send_slots + 1)
        self._queue = self._keep(verbs.CQ(self._context, depth, None, self._channel))
        attributes = verbs.SrqInitAttr(verbs.SrqAttr(max_wr=limits.receive_slots, max_sge=1))
        self._receives = self._keep(verbs.SRQ(self._domain, attributes))
        self._slots = _Memory(
            verbs, self._domain, limits.receive_slots * limits.slot_bytes, names.IBV_ACCESS_LOCAL_WRITE
        )
        self._opened.append(self._slots)
        self.exposed = Slabs(verbs, self._domain, names.IBV_ACCESS_REMOTE_READ, limits.exposed_bytes)
        self.landing = Slabs(verbs, self._domain, names.IBV_ACCESS_LOCAL_WRITE, limits.landing_bytes)
        size = limits.slot_bytes
        self._requests: list[Any] = []
        for start in range(0, limits.receive_slots * size, size):
            entry = verbs.SGE(self._slots.address + start, size, self._slots.key)
            self._requests.append(verbs.RecvWR(wr_id=len(self._requests), num_sge=1, sg=[entry]))
            entry.close()
        for request in self._requests:
            self._receives.post_recv(request)
        self._success = names.IBV_WC_SUCCESS
        self._statuses = _status_names(names)
        self._arm()

    def _keep(self, made: Any) -> Any:
        self._opened.append(made)
        return made

    def _mapped_gid(self, count: int) -> int:
        """The index of the last address that is an IPv4 one (RoCE v2), else 0."""
        found = 0
        for index in range(count):
            try:
                address = ipaddress.IPv6Address(str(self._context.query_gid(PORT, index)))
            except (self.verbs.Error, ValueError):
                continue
            found = index if address.ipv4_mapped is not None else found
        return found

    def pair(self, events: PairEvents) -> RdmaPair:
        """A queue pair that is not connected yet. Raises PairFailed."""
        if self.closed or len(self.pairs) >= self.limits.peers:
            raise PairFailed("the device is closed" if self.closed else f"{self.limits.peers} pairs are in use")
        try:
            return RdmaPair(self, events)
        except (self.verbs.Error, OSError) as error:
            raise PairFailed(f"no queue pair can be made: {error}") from None

    # -- completions

    def _arm(self) -> None:
        self._queue.req_notify()

    def drain(self) -> bool:
        """Deal with what is complete: call it when ``fd`` is readable. Whether there is more, for the next turn.

        First the queue is armed and then polled: what comes between is seen by the poll, and what comes after wakes.
        Raises PairFailed: the device is of no use any more.
        """
        verbs, left = self.verbs, self.limits.completions_a_turn
        try:
            try:
                self._channel.get_cq_event(self._queue)
                self._queue.ack_events(1)
            except verbs.Error:
                pass  # woken for nothing, or called again for what the last turn left
            self._arm()
            while left > 0 and not self.closed:
                count, completions = self._queue.poll(COMPLETIONS)
                if not count:
                    break
                left -= count
                for completion in completions:
                    self._complete(completion)
        except (verbs.Error, OSError) as error:
            raise PairFailed(f"the device {self.name} failed: {error}") from None
        return left <= 0

    def _complete(self, completion: Any) -> None:
        number, good = completion.wr_id, completion.status == self._success
        pair = self.pairs.get(completion.qp_num)
        if number < SEND_ID:  # a slot: it goes back in any case
            if good and pair is not None:
                start = number * self.limits.slot_bytes
                with self._slots.view[start : start + completion.byte_len] as slot:
                    pair.events.received(slot)
            if not self.closed:
                self._receives.post_recv(self._requests[number])
            if good or pair is None:
                return
        elif pair is None:
            return  # of one that was closed
        if not good:
            status = self._statuses.get(int(completion.status), str(completion.status))
            pair.events.failed(f"a completion says {status}")
        elif number >= FETCH_ID:
            pair.fetched()
        else:
            pair.events.sent()

    def take_events(self) -> None:
        """Read what the device says of itself: call it when ``events_fd`` is readable.

        Raises PairFailed: the device, its port or a queue of all is of no use any more.
        """
        names, verbs = self.verbs.names, self.verbs
        fatal = {
            names.IBV_EVENT_CQ_ERR: "its completion queue has overrun",
            names.IBV_EVENT_SRQ_ERR: "its receive queue failed",
            names.IBV_EVENT_DEVICE_FATAL: "it was removed, or failed",
            names.IBV_EVENT_PORT_ERR: "its port is down",
        }
        why = ""
        for _ in range(EVENTS):
            try:
                event = self._context.get_async_event()
            except (verbs.Error, OSError):
                break
            why = why or fatal.get(int(event.event_type), "")
            event.ack()  # else what it is about could not be destroyed
        if why:
            raise PairFailed(f"the device {self.name}: {why}")

    # -- the end

    def close(self) -> None:
        """Give everything back."""
        if self.closed:
            return
        self.closed = True
        for pair in list(self.pairs.values()):
            pair.close()
        for pair in list(self.lingering):
            pair.destroy()
        if hasattr(self, "exposed"):
            self.exposed.close()
        if hasattr(self, "landing"):
            self.landing.close()
        for request in getattr(self, "_requests", ()):
            request.close()
        for made in reversed(self._opened):
            try:
                made.close()
            except (self.verbs.Error, OSError):  # the device may be gone: the kernel takes back what is left
                continue


class RdmaPair:
    """A queue pair with its send slots: the ``PairPort`` of one peer."""

    def __init__(self, device: RdmaDevice, events: PairEvents) -> None:
        self.events = events
        self._device = device
        self._verbs, limits = device.verbs, device.limits
        names = self._verbs.names
        capacity = self._verbs.QPCap(
            max_send_wr=limits.send_slots,
            max_recv_wr=0,
            max_send_sge=1,
            max_recv_sge=0,
            max_inline_data=limits.inline_bytes,
        )
        queue, receives = device._queue, device._receives
        attributes = self._verbs.QPInitAttr(
            qp_type=names.IBV_QPT_RC, scq=queue, rcq=queue, srq=receives, cap=capacity, sq_sig_all=0
        )
        self._memory = _Memory(
            self._verbs, device._domain, limits.send_slots * limits.slot_bytes, names.IBV_ACCESS_LOCAL_WRITE
        )
        try:
            self._pair = self._verbs.QP(device._domain, attributes)
        except BaseException:
            self._memory.close()
            raise
        self.number = int(self._pair.qp_num)
        self.packet_number = int.from_bytes(os.urandom(3), "big")
        self._requests: dict[int, Any] = {}  # by slot, length and whether a completion is asked for
        self._next_slot = 0
        self._exposed: dict[int, _Memory] = {}
        self._next_token = 0
        self._fetches: deque[tuple[_Memory, int]] = deque()
        self._closed = self._destroyed = False
        device.pairs[self.number] = self

    def details(self, epoch: int) -> PairDetails:
        """What the peer has to know."""
        device, limits = self._device, self._device.limits
        return PairDetails(
            epoch, self.number, self.packet_number, device.mtu, device.gid, limits.slot_bytes, limits.credits
        )

    def connect(self, peer: PairDetails) -> None:
        """Connect to the peer's queue pair. Raises PairFailed."""
        verbs, names, device = self._verbs, self._verbs.names, self._device
        try:
            attributes = verbs.QPAttr(port_num=PORT)
            attributes.qp_access_flags = names.IBV_ACCESS_REMOTE_READ
            self._pair.to_init(attributes)
            attributes = verbs.QPAttr(port_num=PORT)
            attributes.path_mtu = min(device.mtu, peer.mtu)
            attributes.max_rd_atomic = attributes.max_dest_rd_atomic = device.limits.reads
            attributes.min_rnr_timer, attributes.rnr_retry = RNR_TIMER, RNR_RETRIES
            attributes.retry_cnt, attributes.timeout = RETRIES, TIMEOUT_EXPONENT
            attributes.rq_psn, attributes.sq_psn = peer.packet_number, self.packet_number
            attributes.dest_qp_num = peer.qp_number
            route = verbs.GlobalRoute(
                dgid=verbs.GID(ipaddress.IPv6Address(peer.gid).exploded), sgid_index=device.gid_index
            )
            attributes.ah_attr = verbs.AHAttr(gr=route, is_global=1, port_num=PORT)
            self._pair.to_rts(attributes)
        except (verbs.Error, OSError) as error:
            raise PairFailed(f"the queue pair cannot be connected: {error}") from None

    # -- PairPort

    def send(self, head: bytes, body: bytes, signalled: bool) -> None:
        """As ``PairPort.send``."""
        slot = self._next_slot
        limits = self._device.limits
        self._next_slot = (slot + 1) % limits.send_slots
        start = slot * limits.slot_bytes
        middle = start + HEAD.size
        end = middle + len(body)
        view = self._memory.view
        view[start:middle] = head
        view[middle:end] = body
        power = (end - start - 1).bit_length()
        key = (slot << 6 | power) << 1 | signalled
        request = self._requests.get(key)
        if request is None:
            request = self._requests[key] = self._request(start, 1 << power, signalled)
        try:
            self._pair.post_send(request)
        except (self._verbs.Error, OSError) as error:
            raise PairFailed(f"a send cannot be posted: {error}") from None

    def _request(self, start: int, length: int, signalled: bool) -> Any:
        names, limits = self._verbs.names, self._device.limits
        flags = names.IBV_SEND_SIGNALED if signalled else 0
        if length <= limits.inline_bytes:
            flags |= names.IBV_SEND_INLINE
        length = min(length, limits.slot_bytes)
        entry = self._verbs.SGE(self._memory.address + start, length, self._memory.key)
        request = self._verbs.SendWR(wr_id=SEND_ID, opcode=names.IBV_WR_SEND, num_sge=1, send_flags=flags, sg=[entry])
        entry.close()
        return request

    def expose(self, data: bytes) -> tuple[int, int, int] | None:
        """As ``PairPort.expose``."""
        try:
            memory = self._device.exposed.take(len(data))
        except (self._verbs.Error, OSError) as error:
            raise PairFailed(f"memory cannot be registered: {error}") from None
        if memory is None:
            return None
        memory.view[: len(data)] = data
        token = self._next_token
        self._next_token += 1
        self._exposed[token] = memory
        return token, memory.address, int(memory.region.rkey)

    def conceal(self, token: int) -> None:
        """As ``PairPort.conceal``."""
        self._device.exposed.give(self._exposed.pop(token))

    def fetch(self, address: int, key: int, length: int) -> bool:
        """As ``PairPort.fetch``."""
        verbs, names = self._verbs, self._verbs.names
        try:
            memory = self._device.landing.take(length)
            if memory is None:
                return False
            self._fetches.append((memory, length))
            entry = verbs.SGE(memory.address, length, memory.key)
            request = verbs.SendWR(
                wr_id=FETCH_ID, opcode=names.IBV_WR_RDMA_READ, num_sge=1, send_flags=names.IBV_SEND_SIGNALED, sg=[entry]
            )
            try:
                request.set_wr_rdma(key, address)
                self._pair.post_send(request)
            finally:
                request.close()
                entry.close()
        except (verbs.Error, OSError) as error:
            raise PairFailed(f"a fetch cannot be posted: {error}") from None
        return True

    def fetched(self) -> None:
        """The oldest fetch is complete: hand its bytes on."""
        memory, length = self._fetches.popleft()
        data = bytes(memory.view[:length])
        self._device.landing.give(memory)
        self.events.fetched(data)

    def close(self) -> None:
        """As ``PairPort.close``. What it had queued completes with an error, which gives slots back: call ``destroy``
        ``LINGER_S`` later."""
        if self._closed:
            return
        self._closed = True
        self._device.pairs.pop(self.number, None)
        try:
            attributes = self._verbs.QPAttr(port_num=PORT)
            attributes.qp_state = self._verbs.names.IBV_QPS_ERR
            self._pair.modify(attributes, self._verbs.names.IBV_QP_STATE)
        except (self._verbs.Error, OSError):
            self.destroy()  # its device is gone: nothing may be fetched any more
            return
        # From here on the peer can fetch nothing: what was exposed may be written to again. What was to land still may.
        for memory in self._exposed.values():
            self._device.exposed.give(memory)
        self._exposed.clear()
        self._device.lingering[self] = None

    def destroy(self) -> None:
        """Give the queue pair back, and its memory; harmless when it was."""
        if self._destroyed:
            return
        self._destroyed = True
        self._device.lingering.pop(self, None)
        for made in (self._pair, *self._requests.values()):
            try:
                made.close()
            except (self._verbs.Error, OSError):  # as the device's
                continue
        self._requests.clear()
        for memory in self._exposed.values():
            self._device.exposed.give(memory)
        for memory, _length in self._fetches:
            self._device.landing.give(memory)
        self._exposed.clear()
        self._fetches.clear()
        self._memory.close()


def _event_descriptors() -> set[int]:
    """The descriptors of this process that are completion channels."""
    found = set()
    for name in os.listdir("/proc/self/fd"):
        try:
            if "infinibandevent" in os.readlink(f"/proc/self/fd/{name}"):
                found.add(int(name))
        except OSError:
            continue
    return found


def _status_names(names: PyverbsConstants) -> dict[int, str]:
    """What a failed completion is called, as in ibv_poll_cq(3)."""
    known = (
        "LOC_LEN_ERR LOC_QP_OP_ERR LOC_PROT_ERR WR_FLUSH_ERR BAD_RESP_ERR LOC_ACCESS_ERR REM_INV_REQ_ERR "
        "REM_ACCESS_ERR REM_OP_ERR RETRY_EXC_ERR RNR_RETRY_EXC_ERR REM_ABORT_ERR FATAL_ERR RESP_TIMEOUT_ERR GENERAL_ERR"
    )
    return {getattr(names, f"IBV_WC_{word}"): word for word in known.split()}
