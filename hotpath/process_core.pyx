# cython: binding=False, cdivision=True
"""Light processes and the loop that gives them turns, compiled. Contract and prose: ``reference/process_core.py``."""

cimport cython
from cpython.exc cimport PyErr_Clear, PyErr_Fetch, PyErr_NormalizeException, PyErr_SetObject
from cpython.object cimport PyObject, PyTypeObject
from cpython.ref cimport Py_INCREF, Py_XDECREF

from actorgrid.hotpath.mailbox cimport mail_at, mail_clear, mail_pop, mail_push, mail_take

import time
from types import CoroutineType

from actorgrid.errors import ActorGridError, BadRequest, CallTimeout, MailboxFull, NoSuchActor, ReceiveTimeout
from actorgrid.hotpath.interrupts import take_back_interrupt

cdef extern from "Python.h":
    ctypedef PyObject* (*iternextfunc)(PyObject*) noexcept
    ctypedef PyObject* (*newfunc)(PyTypeObject*, PyObject*, PyObject*) noexcept

    ctypedef PyObject* (*allocfunc)(PyTypeObject*, Py_ssize_t) noexcept

    ctypedef struct TypeSlots "PyTypeObject":
        iternextfunc tp_iternext
        newfunc tp_new
        allocfunc tp_alloc

    TypeSlots PyBaseObject_Type

    ctypedef enum PySendResult:
        PYGEN_RETURN
        PYGEN_ERROR
        PYGEN_NEXT

    PySendResult PyIter_Send(PyObject*, PyObject*, PyObject**) noexcept
    PyObject* PyObject_Vectorcall(PyObject*, PyObject**, size_t, PyObject*) noexcept
    PyObject* PyObject_Call(PyObject*, PyObject*, PyObject*) noexcept
    PyObject* PyType_GenericAlloc(PyTypeObject*, Py_ssize_t) noexcept
    int PyCoro_CheckExact(PyObject*) noexcept
    void PyObject_GC_UnTrack(PyObject*) noexcept
    void PyObject_GC_Track(PyObject*) noexcept
    int PyObject_GC_IsTracked(PyObject*) noexcept
    PyObject* Py_None
    void raise_raw "PyErr_SetObject"(PyObject*, PyObject*) noexcept
    int PyThreadState_SetAsyncExc(unsigned long, PyObject*) noexcept

cdef extern from "time.h" nogil:
    ctypedef int clockid_t
    ctypedef long time_t
    struct timespec:
        time_t tv_sec
        long tv_nsec
    int clock_gettime(clockid_t, timespec*) noexcept
    clockid_t CLOCK_MONOTONIC
    clockid_t CLOCK_MONOTONIC_COARSE

TICK_NS = 100_000
SLICE_MAX = 1_000_000
SECONDS_MAX = 1e9
cdef long long TICK = TICK_NS
cdef long long COARSE_SLACK_NS = 10_000_000
"""CLOCK_MONOTONIC_COARSE is behind by a jiffy, 10 ms at the most: a timeout is late by that, and never early."""
cdef double LONGEST_S = SECONDS_MAX
FOREVER = (1 << 62)

REFUSE, DROP_OLDEST, EXIT = 0, 1, 2
ON_FULL = {"refuse": REFUSE, "drop_oldest": DROP_OLDEST, "exit": EXIT}
PRIORITY = {"max": 0, "high": 1, "normal": 2, "low": 3}
STATES = ("ready", "running", "waiting", "awaiting", "ended")


class NoReply:
    """What ``handle_call`` returns to answer later: ``caller.reply(value)``."""

    def __repr__(self):
        return "NO_REPLY"

    def __reduce__(self):
        return "NO_REPLY"


NO_REPLY = NoReply()
cdef object no_reply = NO_REPLY
cdef object coroutine_type = CoroutineType
cdef tuple NOTHING = ()


cdef class ShardAddress:
    def __cinit__(self, host, shard):
        self.host = host
        self.shard = shard

    def __reduce__(self):
        return ShardAddress, (self.host, self.shard)

    def __eq__(self, other):
        return isinstance(other, ShardAddress) and same_shard(self, <ShardAddress>other)

    def __hash__(self):
        return hash((self.host, self.shard))

    def __repr__(self):
        return f"{self.host}.{self.shard}"


cdef bint same_shard(ShardAddress one, ShardAddress other):
    return one is other or (one.shard == other.shard and one.host == other.host)


@cython.final
@cython.no_gc
@cython.freelist(256)
cdef class Pid:
    def __init__(self, ShardAddress at not None, id, generation):
        self.at = at
        self.id = id
        self.generation = generation

    @property
    def host(self):
        """The name of its host."""
        return self.at.host

    @property
    def shard(self):
        """The number of its shard, which no other shard of that host ever has, not even after a restart."""
        return self.at.shard

    @property
    def address(self):
        """Host and shard."""
        return self.at

    def __reduce__(self):
        return Pid, (self.at, self.id, self.generation)

    def __eq__(self, other):
        cdef Pid that
        if self is other:
            return True
        if type(other) is not Pid:
            return NotImplemented
        that = <Pid>other
        return self.id == that.id and self.generation == that.generation and same_shard(self.at, that.at)

    def __hash__(self):
        return hash((self.at.shard, self.id, self.generation))

    def __repr__(self):
        return f"<{self.at.host}.{self.at.shard}.{self.id}.{self.generation}>"


cdef class Behaviour:
    """What is known of a class of processes: read once."""


cdef Behaviour behaviour_of(object kind):
    cdef Behaviour found = Behaviour.__new__(Behaviour)
    if not issubclass(kind, LightProcess):
        raise BadRequest(f"{kind!r} is no class of processes", hint="derive it from Process or GenServer")
    main = getattr(kind, "run", None)
    found.coroutine = main is not None
    found.start = main or getattr(kind, "begin", None) or getattr(kind, "init", None)
    found.message = getattr(kind, "handle_info", None)
    found.call = getattr(kind, "handle_call", None)
    found.cast = getattr(kind, "handle_cast", None)
    found.function = bool(getattr(kind, "runs_a_function", False))
    found.limit = checked(kind, "mailbox_limit", 1, 1 << 30)
    found.slice = checked(kind, "slice_messages", 1, SLICE_MAX)
    found.on_full = word(kind, "on_full", ON_FULL)
    found.priority = word(kind, "priority", PRIORITY)
    return found


cdef object checked(object kind, str name, long least, long most):
    value = getattr(kind, name)
    if not isinstance(value, int) or not least <= value <= most:
        raise BadRequest(
            f"{kind.__qualname__}.{name} is out of range", asked=repr(value), hint=f"a whole number, {least} to {most}"
        )
    return value


cdef object word(object kind, str name, dict words):
    value = getattr(kind, name)
    if not isinstance(value, str) or value not in words:
        raise BadRequest(
            f"{kind.__qualname__}.{name} is not known", asked=repr(value), hint="one of " + ", ".join(words)
        )
    return words[value]


@cython.final
@cython.no_gc
cdef class CoreCell:
    """Where a core is, for those who may outlive it: it empties this as it goes."""


cdef CoreCell NOWHERE = CoreCell.__new__(CoreCell)


cdef ProcessCore core_of(LightProcess process):
    if process.home.core == NULL:
        raise NoSuchActor(f"process {process.pid} has ended", hint="only a living process sends, calls and waits")
    return <ProcessCore>process.home.core


cdef class LightProcess(Mail):
    mailbox_limit = 10_000
    on_full = "refuse"
    priority = "normal"
    slice_messages = 256

    def __cinit__(self):
        self.home = NOWHERE

    def send(self, to, message):
        """Send *message* to a Pid or name; ``True`` when it is in the mailbox, ``False`` when it is refused or lost."""
        cdef PyObject* target
        if type(to) is Pid:
            target = (<Pid>to).process
            if target != NULL:
                return deliver(<LightProcess>target, message)
        return elsewhere(core_of(self), to, message)

    def cast(self, to, message):
        """``send`` to the other's ``handle_cast``."""
        cdef PyObject* target
        cdef ProcessCast cast = ProcessCast.__new__(ProcessCast)
        cast.message = message
        if type(to) is Pid:
            target = (<Pid>to).process
            if target != NULL:
                return deliver(<LightProcess>target, cast)
        return elsewhere(core_of(self), to, cast)

    def call(self, to, request, timeout_s=5.0):
        """Await this: the answer of *to*. Raises what it raised, CallTimeout, ActorDown, NoSuchActor or MailboxFull."""
        return place_call(core_of(self), self, to, request, timeout_s, None, None)

    def send_request(self, to, request, label=None, timeout_s=5.0):
        """``call`` without waiting: a CallReply with this *label* comes as a message."""
        place_call(core_of(self), self, to, request, timeout_s, (label,), None)

    def receive(self, wanted=None, timeout_s=None):
        """Await this: the oldest message, or the oldest that is *wanted*. Raises ReceiveTimeout."""
        cdef Receive receive = Receive.__new__(Receive)
        core_of(self)
        receive.process = self
        receive.wanted = wanted
        receive.timeout_s = timeout_s
        receive.timer = -1
        return receive

    def sleep(self, delay_s):
        """Await this: *delay_s* seconds. Messages wait meanwhile."""
        cdef ProcessCore core = core_of(self)
        cdef Waiting waiting = new_waiting(self)
        waiting.timer = core.wheel.put(core.tick_after(delay_s), waiting)
        return waiting

    def send_after(self, delay_s, to, message):
        """``send`` in *delay_s* seconds, unless the timer that this gives is cancelled."""
        return core_of(self).send_after(delay_s, to, message)

    def spawn(self, kind, *args):
        """Begin a process of that class, or of an ``async`` function that takes it first; gives its Pid."""
        return core_of(self).start_process(kind, args, self.pid, -1).pid

    def spin(self, int reductions):
        """Count that much more work against the slice of this turn."""
        self.left -= reductions

    def hibernate(self):
        """Give back what the mailbox once needed and does not need now."""
        if self.count <= 1:
            self.ring = None
            self.head = 0

    @property
    def hooks(self):
        """What the core it lives in was made with. Raises NoSuchActor when it has ended."""
        return core_of(self).hooks

    @property
    def mailbox_length(self):
        """How many messages wait."""
        return self.count

    @property
    def reductions(self):
        """Messages handled, and what ``spin`` added."""
        cdef long long now = self.reduced
        if self.phase == RUNNING:
            now += self.behaviour.slice - self.left
        return now

    @property
    def status(self):
        """``ready``, ``running``, ``waiting`` for messages, ``awaiting`` something else, or ``ended``."""
        return STATES[self.phase]

    @property
    def is_held(self):
        """Whether it is suspended."""
        return bool(self.flags & HELD)

    @property
    def has_started(self):
        """Whether its ``init`` has ended well; of a coroutine, whether it has waited for something."""
        return not self.flags & STARTING

    @property
    def running_coroutine(self):
        """The coroutine that runs for it, or ``None``."""
        return self.running

    def __dealloc__(self):
        if self.pid is not None:
            self.pid.process = NULL


cdef LightProcess new_process(object kind):
    """An object of that class, with room for its attributes beside it.

    The types that Cython makes take their memory from ``tp_alloc``, where Python before 3.13 prepares no such room:
    each attribute of a subclass would go to a dict of its own, which is three times as large and slower. ``object``'s
    ``__new__`` prepares it, so that is called in the place of ``tp_alloc``.
    """
    cdef TypeSlots* slots = <TypeSlots*>kind
    cdef allocfunc usual = slots.tp_alloc
    cdef PyObject* new
    slots.tp_alloc = alloc_by_object
    new = slots.tp_new(<PyTypeObject*>kind, <PyObject*>NOTHING, NULL)
    slots.tp_alloc = usual
    if new == NULL:
        raise fetched()
    made = <object>new
    Py_XDECREF(new)
    return <LightProcess?>made


cdef PyObject* alloc_by_object(PyTypeObject* kind, Py_ssize_t _count) noexcept:
    (<TypeSlots*>kind).tp_alloc = PyType_GenericAlloc
    return PyBaseObject_Type.tp_new(kind, <PyObject*>NOTHING, NULL)


cdef Waiting new_waiting(LightProcess process):
    cdef Waiting waiting = Waiting.__new__(Waiting)
    waiting.process = process
    waiting.timer = -1
    return waiting


cdef class Waiting:
    """Something awaited that comes once; ``settle`` and ``fail`` bring it."""

    def __cinit__(self):
        self.timer = -1

    def __await__(self):
        return self

    def __iter__(self):
        return self

    def __next__(self):
        # The slot below is what runs; this is here so that there is a slot.
        if self.state == DONE:
            raise StopIteration(self.value)
        if self.state == FAILED:
            raise self.value
        return self

    @property
    def done(self):
        """Whether it has come."""
        return self.state != PENDING

    def settle(self, value):
        """Bring the value; ``False`` when something was brought already."""
        return settle(self, value, DONE)

    def fail(self, error):
        """Raise *error* where this is awaited; ``False`` when something was brought already."""
        return settle(self, error, FAILED)


cdef PyObject* waiting_next(PyObject* me) noexcept:
    cdef Waiting waiting = <Waiting>me
    if waiting.state == DONE:
        return_value(waiting.value)
        return NULL
    if waiting.state == FAILED:
        raise_error(waiting.value)
        return NULL
    Py_INCREF(waiting)
    return me


cdef void raise_error(object error) noexcept:
    kind = type(error)
    raise_raw(<PyObject*>kind, <PyObject*>error)


cdef void return_value(object value) noexcept:
    # A bare NULL is StopIteration of None. Tuples and exceptions would be taken for its arguments.
    if value is None:
        return
    if isinstance(value, (tuple, BaseException)):
        value = StopIteration(value)
    raise_raw(<PyObject*>StopIteration, <PyObject*>value)


cdef int settle(Waiting waiting, object value, int state) except -1:
    cdef LightProcess process = waiting.process
    if waiting.state != PENDING:
        return False
    waiting.state = state
    waiting.value = value
    waiting.process = None
    if process is not None and process.awaited is waiting and process.phase == AWAITING:
        wake(process)
    return True


cdef int wake(LightProcess process) except -1:
    if process.home.core != NULL:
        process.phase = READY
        (<ProcessCore>process.home.core).ready.put(process, process.level)
    return 0


@cython.final
cdef class ProcessCall(Waiting):
    @property
    def pid(self):
        """Who asks; ``None`` when that is no process of this shard."""
        return self.process.pid if self.process is not None else None

    def reply(self, value):
        """Answer; ``False`` when it was answered, has timed out, or nobody waits any more."""
        return settle_call(self, value, DONE)

    def fail(self, error):
        """Answer by raising *error* at the caller; ``False`` as for ``reply``."""
        return settle_call(self, error, FAILED)

    settle = reply

    @property
    def outcome(self):
        """(value, error) once it is done."""
        return (None, self.value) if self.state == FAILED else (self.value, None)


cdef int settle_call(ProcessCall call, object value, int state) except -1:
    cdef LightProcess process = call.process
    cdef LightProcess holder
    cdef ProcessCore core
    if call.holder != NULL:
        holder = <LightProcess>call.holder
        call.holder = NULL
        if holder.deferred is not None:
            holder.deferred.pop(call, None)
    if call.state != PENDING:
        return False
    call.state = state
    call.value = value
    call.process = None
    if call.timer >= 0:
        if call.home.core != NULL:
            (<ProcessCore>call.home.core).wheel.take(call.timer)
        call.timer = -1
    if process is not None:
        if process.awaited is call:
            if process.phase == AWAITING:
                wake(process)
        elif call.label is not None and process.home.core != NULL:
            core = <ProcessCore>process.home.core
            deliver_always(process, core.hooks.reply_message(call))
    elif call.on_answer is not None:
        on_answer = call.on_answer
        call.on_answer = None
        on_answer(call)
    return True


cdef ProcessCall place_call(
    ProcessCore core, LightProcess caller, object to, object request, object timeout_s, object label, object on_answer
):
    cdef ProcessCall call = ProcessCall.__new__(ProcessCall)
    cdef PyObject* target
    cdef LightProcess process
    call.request = request
    call.server = to
    call.process = caller
    call.label = label
    call.on_answer = on_answer
    call.home = core.home
    call.timeout_s = timeout_s
    if timeout_s is not None:
        call.timer = core.wheel.put(core.tick_about(timeout_s), call)
    if type(to) is Pid and (<Pid>to).process != NULL:
        process = <LightProcess>(<Pid>to).process
    else:
        process = core.find_local(to)
        if process is None:
            core.hooks.call_elsewhere(call)
            return call
    if process.count >= process.limit:
        overflow(process, call)
    else:
        mail_push(process, call)
        if process.phase == WAITING and not process.flags & HELD:
            wake(process)
    return call


cdef int expire(ProcessCore core, Waiting waiting) except -1:
    waiting.timer = -1
    if type(waiting) is ProcessCall:
        if waiting.state == PENDING:
            settle_call(
                <ProcessCall>waiting,
                CallTimeout(
                    f"{(<ProcessCall>waiting).server} did not answer in {(<ProcessCall>waiting).timeout_s:g} s",
                    hint="it may be busy; whether it acted is unknown",
                ),
                FAILED,
            )
    elif type(waiting) is Receive:
        process = waiting.process
        waiting.state = FAILED
        waiting.value = ReceiveTimeout(f"no such message came in {(<Receive>waiting).timeout_s:g} s")
        if process is not None and process.awaited is waiting and process.phase == WAITING and not process.flags & HELD:
            wake(process)
    else:
        settle(waiting, None, DONE)
    return 0


@cython.final
cdef class Receive(Waiting):
    pass


cdef int owe(LightProcess process, ProcessCall call) except -1:
    """The process has the call, and answers it later; if it ends before, whoever asked is told."""
    call.holder = <PyObject*>process
    if process.deferred is None:
        process.deferred = {}
    process.deferred[call] = None
    return 0


cdef bint has_successor(LightProcess process) noexcept:
    return process.home.core != NULL and (<ProcessCore>process.home.core).successor is not None


cdef int look(Receive receive) except -1:
    """Take the message that is wanted out of the mailbox, if it is there: 1."""
    cdef LightProcess process = receive.process
    wanted = receive.wanted
    while receive.seen < process.count:
        if process.left <= 0:
            return 0
        message = mail_at(process, receive.seen)
        if type(message) is Order:
            mail_take(process, receive.seen)
            (<Order>message).action(process)
            if has_successor(process):
                return 0
            continue
        if wanted is not None:
            if isinstance(wanted, (type, tuple)):
                if not isinstance(message, wanted):
                    receive.seen += 1
                    continue
            elif not wanted(message):
                receive.seen += 1
                continue
        process.left -= 1
        receive.value = mail_take(process, receive.seen) if receive.seen else mail_pop(process)
        receive.state = DONE
        if type(message) is ProcessCall and (<ProcessCall>message).state == PENDING:
            owe(process, <ProcessCall>message)
        return 1
    return 0


cdef PyObject* receive_next(PyObject* me) noexcept:
    cdef Receive receive = <Receive>me
    try:
        return receive_step(receive)
    except BaseException as error:
        raise_error(error)
        return NULL


cdef PyObject* receive_step(Receive receive) except? NULL:
    cdef LightProcess process = receive.process
    cdef ProcessCore core
    cdef int found
    if receive.state == PENDING and process is not None:
        if process.home.core == NULL:
            raise NoSuchActor(f"process {process.pid} has ended")
        found = look(receive)
        if process.home.core == NULL or has_successor(process):
            Py_INCREF(receive)
            return <PyObject*>receive
        if not found and receive.timeout_s is not None and receive.timer < 0:
            core = <ProcessCore>process.home.core
            if receive.timeout_s <= 0:
                if process.left > 0:
                    receive.state = FAILED
                    receive.value = ReceiveTimeout("no such message is there")
            else:
                receive.timer = core.wheel.put(core.tick_after(receive.timeout_s), receive)
    if receive.state == PENDING:
        Py_INCREF(receive)
        return <PyObject*>receive
    if receive.timer >= 0:
        (<ProcessCore>process.home.core).wheel.take(receive.timer)
        receive.timer = -1
    receive.process = None
    value = receive.value
    if receive.state == FAILED:
        raise_error(value)
        return NULL
    receive.value = None
    return_value(value)
    return NULL


@cython.final
@cython.freelist(64)
cdef class ProcessCast:
    def __init__(self, message):
        self.message = message

    def __reduce__(self):
        return ProcessCast, (self.message,)


@cython.final
cdef class Order:
    def __init__(self, action):
        self.action = action


@cython.final
cdef class SendTimer:
    def __cinit__(self):
        self.home = NOWHERE

    def cancel(self):
        """Do not send; ``False`` when it was sent or cancelled already."""
        if self.home.core == NULL:
            return False
        (<ProcessCore>self.home.core).wheel.take(self.timer)
        self.home = NOWHERE
        return True


cdef int deliver(LightProcess process, object message) except -1:
    """Put the message in by the mailbox's policy; whether it is in."""
    if process.count >= process.limit:
        return overflow(process, message)
    mail_push(process, message)
    if process.phase == WAITING and not process.flags & HELD:
        wake(process)
    return True


cdef int deliver_always(LightProcess process, object message) except -1:
    """Put in what is not bounded by the mailbox but by what the process asked for: answers, ends of others, orders."""
    mail_push(process, message)
    if process.phase == WAITING and (not process.flags & HELD or type(message) is Order):
        wake(process)
    return True


cdef int overflow(LightProcess process, object message) except -1:
    """Deal with a message for a full mailbox by the policy of its class; whether it is in."""
    cdef ProcessCore core
    cdef int policy = process.behaviour.on_full
    cdef unsigned int place
    if process.home.core == NULL:
        return False
    core = <ProcessCore>process.home.core
    core.refused += 1
    if policy == DROP_OLDEST:
        for place in range(process.count):
            oldest = mail_at(process, place)
            if type(oldest) is not Order:
                mail_take(process, place)
                if type(oldest) is ProcessCall:
                    settle_call(<ProcessCall>oldest, full(process), FAILED)
                return deliver_always(process, message)
    if type(message) is ProcessCall:
        settle_call(<ProcessCall>message, full(process), FAILED)
    if policy == EXIT:
        core.hooks.mailbox_overflowed(process)
    return False


cdef object full(LightProcess process):
    return MailboxFull(
        f"{process.pid} has {process.count} messages waiting", found=f"its limit is {process.limit}",
        hint="send less, or wait for answers",
    )


cdef int elsewhere(ProcessCore core, object to, object message) except -1:
    cdef LightProcess process = core.find_local(to)
    if process is not None:
        return deliver(process, message)
    return bool(core.hooks.send_elsewhere(to, message))


@cython.final
@cython.no_gc_clear
cdef class ProcessCore:
    # What is within is no business of the collector: it would empty tables that are in use until the core itself goes.
    def __cinit__(self):
        self.home = CoreCell.__new__(CoreCell)
        self.home.core = <PyObject*>self

    def __init__(self, hooks, host, shard, clock, processes_max):
        self.hooks = hooks
        self.address = ShardAddress(host, shard)
        self.table = PidTable(processes_max)
        self.ready = RunQueue()
        self.clock = clock
        self.own_clock = clock is time.monotonic_ns
        self.wheel = TimerWheel(self.now_ns() // TICK)
        self.behaviours = {}
        self.replaced = {}
        for kept in (self.table, self.table.items, self.ready, self.ready.rings, *self.ready.rings):
            untrack(kept)
        self.ready.hidden = True
        self.hide_wheel()

    def __dealloc__(self):
        # Whoever is left was never told to end: their memory is let go of, and that is all.
        cdef LightProcess process
        self.home.core = NULL
        if self.table is not None:
            for process in self.table.items:
                if process is not None:
                    process.home = NOWHERE
                    process.phase = ENDED
                    process.pid.process = NULL
                    track(process)

    # -- asked by the shard

    def spawn(self, kind, args=(), parent=None, priority=None, tells_start=False):
        """Begin a process; gives it. Raises BadRequest, TooManyActors."""
        cdef LightProcess process
        process = self.start_process(kind, args, parent, -1 if priority is None else level_of(priority))
        if tells_start:
            process.flags |= TELLS_START
        return process

    def send(self, to, message):
        """``LightProcess.send``, from outside."""
        cdef PyObject* target
        if type(to) is Pid:
            target = (<Pid>to).process
            if target != NULL and (<LightProcess>target).home is self.home:
                return bool(deliver(<LightProcess>target, message))
        return bool(elsewhere(self, to, message))

    def tell(self, LightProcess process not None, message):
        """Put a message in, whatever the limit of the mailbox; nothing happens when the process has ended."""
        if process.home.core != NULL:
            deliver_always(process, message)

    def call(self, to, request, timeout_s, on_answer):
        """``LightProcess.call`` from outside: *on_answer* is called with the ProcessCall when it is done."""
        return place_call(self, None, to, request, timeout_s, None, on_answer)

    def send_after(self, delay_s, to, message):
        """``LightProcess.send_after``, from outside."""
        cdef SendTimer timer = SendTimer.__new__(SendTimer)
        timer.to = to
        timer.message = message
        timer.timer = self.wheel.put(self.tick_after(delay_s), timer)
        timer.home = self.home
        return timer

    def call_after(self, delay_s, action):
        """Call *action* in *delay_s* seconds, unless the timer that this gives is cancelled."""
        return self.send_after(delay_s, None, action)

    def waiting(self, LightProcess process):
        """Something that *process* may await and the shard brings."""
        return new_waiting(process)

    def find(self, pid):
        """The process of that Pid if it lives here, or ``None``."""
        return self.find_local(pid)

    def processes(self):
        """All living processes, by their numbers."""
        return list(self.table)

    def hold(self, LightProcess process not None):
        """Suspend: no message is handled until ``release``. A coroutine that waits for something else goes on."""
        if process.home.core != NULL:
            process.flags |= HELD

    def release(self, LightProcess process not None):
        """Resume a suspended process."""
        if process.home.core != NULL and process.flags & HELD:
            process.flags &= ~HELD
            if process.phase == WAITING and process.count:
                wake(process)

    def wake(self, LightProcess process not None, awaited):
        """Let a coroutine that awaits *awaited*, something foreign, go on."""
        if process.home.core != NULL and process.phase == AWAITING and process.awaited is awaited:
            wake(process)

    def tell_start(self, LightProcess process not None):
        """Have ``process_started`` told when the start of *process*, which has not had a turn yet, has ended well."""
        process.flags |= TELLS_START

    def discard(self, LightProcess process not None, unwanted):
        """Take the messages out of a mailbox that *unwanted* says yes to."""
        cdef unsigned int place = 0
        while place < process.count:
            if unwanted(mail_at(process, place)):
                mail_take(process, place)
                if type(process.awaited) is Receive and (<Receive>process.awaited).seen > place:
                    (<Receive>process.awaited).seen -= 1
            else:
                place += 1

    def stop_later(self, LightProcess process not None):
        """Have ``process_ended`` told after the present handler of *process*."""
        process.flags |= STOPPING

    def set_priority(self, LightProcess process not None, priority):
        """Change the priority from the next turn on."""
        process.level = level_of(priority)

    def replace_class(self, old, new):
        """Begin processes of *new* wherever *old* is asked for, from now on; *old* itself ends that."""
        if new is old:
            self.replaced.pop(old, None)
        else:
            self.replaced[old] = new
        self.last_kind = None

    def take_class_anew(self, LightProcess process not None):
        """Let the class of the process, which was changed, count from now on."""
        process.behaviour = self.behaviour(type(process))
        process.limit = process.behaviour.limit

    def go_on_with(self, LightProcess process not None, successor):
        """For an Order: run *successor*, a coroutine, in place of the one that waits for a message, which is closed."""
        if process is not self.now_running:
            raise BadRequest("only the process that carries out an order goes on with another coroutine")
        if self.successor is not None:
            self.successor.close()
        self.successor = successor

    def remove(self, LightProcess process not None, reason):
        """End the process: it gets no turn any more, its number is free, who called it is told *reason*.

        ``False`` when it had ended. Its coroutine, if one runs, is closed: that may run code of the user.
        """
        cdef Waiting awaited
        if process.home.core == NULL or process.home is not self.home:
            return False
        process.home = NOWHERE
        process.phase = ENDED
        process.pid.process = NULL
        self.table.drop(process.pid.id, process.pid.generation)
        self.ended += 1
        if isinstance(process.awaited, Waiting):
            awaited = <Waiting>process.awaited
            if awaited.timer >= 0:
                self.wheel.take(awaited.timer)
                awaited.timer = -1
            awaited.process = None
        process.awaited = None
        if process.answering is not None:
            self.refuse(process, process.answering, reason)
            process.answering = None
        if process.deferred is not None:
            deferred, process.deferred = process.deferred, None
            for call in deferred:
                (<ProcessCall>call).holder = NULL
                self.refuse(process, call, reason)
        while process.count:
            message = mail_pop(process)
            if type(message) is ProcessCall:
                self.refuse(process, message, reason)
        process.ring = None
        process.head = 0
        running, process.running = process.running, None
        track(process)
        if running is not None and process is not self.now_running:
            close_coroutine(self, process, running)
        return True

    def run(self, long turns):
        """Bring what is due, then give up to *turns* turns; gives how many there were. Only one ``run`` at a time."""
        cdef long taken = 0
        cdef LightProcess process
        if self.in_run:
            raise BadRequest("the shard runs already", hint="a handler awaits: await self.call(...)")
        self.in_run = True
        try:
            self.bring_due()
            while taken < turns and self.ready.count:
                process = <LightProcess>self.ready.take()
                if process.phase != READY:
                    continue
                taken += 1
                self.turn_number += 1
                self.now_running = process
                self.turn(process)
                if self.thread_id:
                    PyThreadState_SetAsyncExc(self.thread_id, NULL)  # before any step of Python, where it would come
                    self.thread_id = 0
                    take_back_interrupt()
        finally:
            self.now_running = None
            self.in_run = False
        return taken

    def interrupt(self, unsigned long long turn_number, unsigned long thread_id, error):
        """Raise *error*, a class, in the turn of that number, which that thread runs; ``False`` when it is over."""
        if not self.in_run or self.turn_number != turn_number or self.now_running is None:
            return False
        self.thread_id = thread_id
        PyThreadState_SetAsyncExc(thread_id, <PyObject*>error)
        return True

    def due_in_ns(self):
        """Nanoseconds until the next timer is due: 0 when something is ready now, -1 when there is nothing to wait for."""
        if self.ready.count:
            return 0
        tick = self.wheel.next_tick()
        if tick is None:
            return -1
        return max(0, tick * TICK - self.now_ns())

    def drop_timers(self):
        """Forget all timers, and who has ended and still stands in the run queue."""
        for item in self.wheel.items:
            if type(item) is SendTimer:
                (<SendTimer>item).home = NOWHERE
            elif isinstance(item, Waiting):
                (<Waiting>item).timer = -1
        self.wheel = TimerWheel(self.now_ns() // TICK)
        self.hide_wheel()
        if not self.table.count:
            self.ready.clear()

    @property
    def current(self):
        """The process whose turn it is, or ``None``."""
        return self.now_running

    @property
    def living(self):
        """How many processes there are."""
        return self.table.count

    @property
    def ready_count(self):
        """How many wait for a turn."""
        return self.ready.count

    @property
    def timer_count(self):
        """How many timers are set, those of calls among them."""
        return self.wheel.count

    # -- within

    cdef int hide_wheel(self) except -1:
        untrack(self.wheel)
        untrack(self.wheel.items)
        return 0

    cdef Behaviour behaviour(self, object kind):
        cdef Behaviour found
        if kind is self.last_kind:
            return self.last_behaviour
        known = self.behaviours.get(kind)
        if known is None:
            if len(self.behaviours) >= 1024:
                self.behaviours.clear()
            known = self.behaviours[kind] = behaviour_of(kind)
        found = <Behaviour>known
        self.last_kind = kind
        self.last_behaviour = found
        return found

    cdef LightProcess start_process(self, object kind, tuple args, object parent, int priority):
        cdef LightProcess process
        cdef Behaviour behaviour
        cdef Pid pid
        if kind is not self.last_kind and not isinstance(kind, type):
            if not callable(kind):
                raise BadRequest(
                    "this is no class of processes and no function", asked=repr(kind)[:200],
                    hint="spawn(Counter, 1), or spawn(function, 1) with async def function(me, start)",
                )
            args = (kind, *args)
            kind = self.hooks.function_process
        if self.replaced:
            kind = self.replaced.get(kind, kind)
        behaviour = self.behaviour(kind)
        process = new_process(kind)
        pid = Pid.__new__(Pid)
        pid.at = self.address
        pid.id = self.table.put(process)
        pid.generation = self.table.generations[pid.id]
        process.pid = pid
        pid.process = <PyObject*>process
        process.home = self.home
        process.behaviour = behaviour
        process.limit = behaviour.limit
        process.awaited = args
        process.parent = parent
        process.level = behaviour.priority if priority < 0 else priority
        process.flags = STARTING | COROUTINE if behaviour.coroutine else STARTING
        # What lives is reached from the table; the collector has nothing to find here until it has ended.
        PyObject_GC_UnTrack(<PyObject*>process)
        self.ready.put(process, process.level)
        self.spawned += 1
        return process

    cdef LightProcess find_local(self, object to):
        cdef Pid pid
        if type(to) is not Pid:
            to = self.hooks.whereis(to)
            if to is None:
                return None
        pid = <Pid>to
        if pid.process != NULL and (<LightProcess>pid.process).home is self.home:
            return <LightProcess>pid.process
        if same_shard(pid.at, self.address):
            return <LightProcess>self.table.find(pid.id, pid.generation)
        return None

    cdef int refuse(self, LightProcess process, ProcessCall call, object reason) except -1:
        if call.state == PENDING:
            settle_call(call, self.hooks.down_error(process, reason), FAILED)
        return 0

    cdef int bring_due(self) except -1:
        if not self.wheel.count:
            return 0
        for item in self.wheel.advance(self.now_ns() // TICK):
            if type(item) is SendTimer:
                (<SendTimer>item).home = NOWHERE
                if (<SendTimer>item).to is None:
                    (<SendTimer>item).message()
                else:
                    self.send((<SendTimer>item).to, (<SendTimer>item).message)
            else:
                expire(self, <Waiting>item)
        return 0

    cdef int turn(self, LightProcess process) except -1:
        """One turn: up to a slice of messages, or until it waits. Raises KeyboardInterrupt alone."""
        cdef Behaviour behaviour = process.behaviour
        cdef PyObject* result
        cdef PyObject* arguments[3]
        cdef PyObject* what
        cdef object call = None
        process.phase = RUNNING
        process.left = behaviour.slice
        if process.running is not None:
            if not self.advance(process):
                return self.note(process, behaviour.slice)
        elif process.flags & STARTING:
            start_args = <tuple>process.awaited
            process.awaited = None
            if not self.start(process, behaviour, start_args):
                return self.note(process, behaviour.slice)
        arguments[0] = <PyObject*>process
        while True:
            if process.count == 0:
                process.phase = WAITING
                break
            if process.left <= 0:
                wake(process)
                break
            message = mail_pop(process)
            if process.flags & HELD and type(message) is not Order:
                self.put_back(process, message)
                process.phase = WAITING
                break
            process.left -= 1
            if type(message) is ProcessCall:
                if (<ProcessCall>message).state != PENDING:
                    continue  # it has timed out, or who asked is gone
                call = message
                process.answering = message
                arguments[1] = <PyObject*>(<ProcessCall>message).request
                arguments[2] = <PyObject*>message
                what = <PyObject*>behaviour.call
                result = PyObject_Vectorcall(what, arguments, 3, NULL)
            elif type(message) is ProcessCast:
                arguments[1] = <PyObject*>(<ProcessCast>message).message
                what = <PyObject*>behaviour.cast
                result = PyObject_Vectorcall(what, arguments, 2, NULL)
            elif type(message) is Order:
                (<Order>message).action(process)
                if process.home.core == NULL:
                    break
                behaviour = process.behaviour
                continue
            else:
                arguments[1] = <PyObject*>message
                what = <PyObject*>behaviour.message
                result = PyObject_Vectorcall(what, arguments, 2, NULL)
            if result == Py_None and process.flags == 0 and type(message) is not ProcessCall:
                if process.home.core == NULL:
                    break
                continue  # by far the most frequent
            if not self.handled(process, result):
                break
        return self.note(process, behaviour.slice)

    cdef int note(self, LightProcess process, int slice) except -1:
        cdef int reduced = slice - process.left
        process.reduced += reduced
        self.messages += reduced
        process.left = 0
        return 0

    cdef int put_back(self, LightProcess process, object message) except -1:
        """Put a message before the others again."""
        cdef unsigned int count = process.count
        mail_push(process, message)
        while count:
            mail_push(process, mail_pop(process))
            count -= 1
        return 0

    cdef int start(self, LightProcess process, Behaviour behaviour, tuple args) except -1:
        """Run ``init``, or begin the coroutine; whether the turn goes on."""
        cdef PyObject* result
        cdef tuple arguments
        if behaviour.start is None:
            result = Py_None
            Py_INCREF(None)
        elif behaviour.function:
            arguments = (process, *args[1:])
            result = PyObject_Call(<PyObject*>args[0], <PyObject*>arguments, NULL)
        else:
            result = self.call_start(process, behaviour, args)
        return self.handled(process, result)

    cdef PyObject* call_start(self, LightProcess process, Behaviour behaviour, tuple args) noexcept:
        cdef PyObject* places[8]
        cdef Py_ssize_t count = len(args)
        cdef Py_ssize_t place
        if count > 7:
            whole = (process, *args)
            return PyObject_Call(<PyObject*>behaviour.start, <PyObject*>whole, NULL)
        places[0] = <PyObject*>process
        for place in range(count):
            places[place + 1] = <PyObject*>args[place]
        return PyObject_Vectorcall(<PyObject*>behaviour.start, places, count + 1, NULL)

    cdef int handled(self, LightProcess process, PyObject* result) except -1:
        """Deal with what a handler gave (NULL: it raised); whether the turn goes on."""
        cdef object value
        if result == NULL:
            return self.raised(process)
        value = <object>result
        Py_XDECREF(result)
        if process.home.core == NULL:  # it was ended from within its own handler
            process.answering = None
            if type(value) is coroutine_type:
                value.close()
            return 0
        if PyCoro_CheckExact(<PyObject*>value):
            process.running = value
            return self.advance(process)
        return self.returned(process, value)

    cdef int returned(self, LightProcess process, object value) except -1:
        """Deal with the end of a handler; whether the turn goes on."""
        cdef ProcessCall call
        if process.answering is not None:
            call = <ProcessCall>process.answering
            process.answering = None
            if value is no_reply:
                if call.state == PENDING:
                    owe(process, call)
            else:
                settle_call(call, value, DONE)
        if process.flags:
            if process.flags & STARTING:
                self.started(process)
            if process.flags & (COROUTINE | STOPPING) and process.home.core != NULL:
                self.hooks.process_ended(process, None)
                return 0
        return process.home.core != NULL

    cdef int raised(self, LightProcess process) except -1:
        """Deal with what a handler raised; whether the turn goes on. Raises KeyboardInterrupt again."""
        error = fetched()
        if isinstance(error, KeyboardInterrupt):
            process.phase = WAITING
            raise error
        if process.home.core == NULL:
            process.answering = None
            return 0
        if process.answering is not None and isinstance(error, ActorGridError):
            call, process.answering = process.answering, None
            settle_call(<ProcessCall>call, error, FAILED)
            if process.flags & STOPPING:
                self.hooks.process_ended(process, None)
                return 0
            return 1
        self.hooks.process_ended(process, error)
        return 0

    cdef int advance(self, LightProcess process) except -1:
        """Run the coroutine on; whether it has ended and the turn goes on."""
        cdef PyObject* result = NULL
        cdef PySendResult outcome
        cdef object running = process.running
        process.awaited = None
        outcome = PyIter_Send(<PyObject*>running, Py_None, &result)
        if outcome == PYGEN_NEXT:
            awaited = <object>result
            Py_XDECREF(result)
            if process.home.core == NULL:
                close_coroutine(self, process, running)
                return 0
            process.awaited = awaited
            if process.flags & STARTING and process.flags & COROUTINE:
                # Its life has begun; an ``async def init`` has not ended yet.
                self.started(process)
            if self.successor is not None:
                return self.replace(process, awaited)
            if type(awaited) is Receive and (<Receive>awaited).process is process:
                if process.flags & STOPPING:
                    self.hooks.process_ended(process, None)
                elif (<Receive>awaited).seen < process.count and not process.flags & HELD:
                    wake(process)
                else:
                    process.phase = WAITING
            elif isinstance(awaited, Waiting):
                if (<Waiting>awaited).state == PENDING:
                    process.phase = AWAITING
                else:
                    wake(process)
            else:
                process.phase = AWAITING
                self.hooks.foreign_await(process, awaited)
            return 0
        process.running = None
        if outcome == PYGEN_ERROR:
            return self.raised(process)
        value = <object>result
        Py_XDECREF(result)
        if process.home.core == NULL:
            process.answering = None
            return 0
        return self.returned(process, value)

    cdef int replace(self, LightProcess process, object awaited) except -1:
        """Let the coroutine that was chosen go on in place of the one that has just awaited a message."""
        cdef object before = process.running
        cdef object successor = self.successor
        self.successor = None
        if isinstance(awaited, Waiting):
            if (<Waiting>awaited).timer >= 0:
                self.wheel.take((<Waiting>awaited).timer)
                (<Waiting>awaited).timer = -1
            (<Waiting>awaited).process = None
        process.awaited = None
        process.running = successor
        close_coroutine(self, process, before)
        if process.home.core == NULL:  # by what its ``finally`` blocks did
            close_coroutine(self, process, successor)
        elif process.flags & STOPPING:
            self.hooks.process_ended(process, None)
        else:
            wake(process)
        return 0

    cdef int started(self, LightProcess process) except -1:
        process.flags &= ~STARTING
        if process.flags & TELLS_START:
            process.flags &= ~TELLS_START
            self.hooks.process_started(process)
        return 0

    cdef long long now_ns(self) except -1:
        cdef timespec now
        if self.own_clock:
            clock_gettime(CLOCK_MONOTONIC, &now)
            return <long long>now.tv_sec * 1_000_000_000 + now.tv_nsec
        return self.clock()

    cdef long long tick_after(self, object delay_s) except -1:
        """The first tick that is no earlier than *delay_s* from now. Raises BadRequest."""
        return (self.now_ns() + nanoseconds(delay_s) + TICK - 1) // TICK

    cdef long long tick_about(self, object delay_s) except -1:
        """As ``tick_after``, by a clock that costs little and is late by up to 10 ms."""
        cdef timespec now
        if not self.own_clock:
            return self.tick_after(delay_s)
        clock_gettime(CLOCK_MONOTONIC_COARSE, &now)
        return (
            <long long>now.tv_sec * 1_000_000_000 + now.tv_nsec + COARSE_SLACK_NS + nanoseconds(delay_s) + TICK - 1
        ) // TICK


cdef long long nanoseconds(object delay_s) except -1:
    cdef double seconds
    if type(delay_s) is not float and (not isinstance(delay_s, (int, float)) or isinstance(delay_s, bool)):
        raise BadRequest("this is no time in seconds", asked=repr(delay_s)[:200], hint="give a number")
    seconds = delay_s
    if not 0 <= seconds <= LONGEST_S:
        raise BadRequest("a time out of range", asked=f"{delay_s} s", hint=f"0 to {SECONDS_MAX:g} s")
    return <long long>(seconds * 1e9)


cdef int level_of(object priority) except -1:
    if not isinstance(priority, str) or priority not in PRIORITY:
        raise BadRequest("there is no such priority", asked=repr(priority)[:200], hint="one of " + ", ".join(PRIORITY))
    return PRIORITY[priority]


cdef void untrack(object kept) noexcept:
    PyObject_GC_UnTrack(<PyObject*>kept)


cdef void track(LightProcess process) noexcept:
    if not PyObject_GC_IsTracked(<PyObject*>process):
        PyObject_GC_Track(<PyObject*>process)


cdef int close_coroutine(ProcessCore core, LightProcess process, object running) except -1:
    """Close the coroutine of a process that has ended; what its ``finally`` blocks raise goes to the hooks."""
    try:
        running.close()
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        core.hooks.close_failed(process, error)
    return 0


cdef object fetched():
    """The error that a call into Python has left, with its traceback."""
    cdef PyObject* kind = NULL
    cdef PyObject* value = NULL
    cdef PyObject* traceback = NULL
    PyErr_Fetch(&kind, &value, &traceback)
    PyErr_NormalizeException(&kind, &value, &traceback)
    error = <object>value
    if traceback != NULL:
        error.__traceback__ = <object>traceback
    Py_XDECREF(kind)
    Py_XDECREF(value)
    Py_XDECREF(traceback)
    return error


# The slots that ``await`` uses, without the wrappers that would make a traceback of each StopIteration.
(<TypeSlots*>Waiting).tp_iternext = waiting_next
(<TypeSlots*>ProcessCall).tp_iternext = waiting_next
(<TypeSlots*>Receive).tp_iternext = receive_next
