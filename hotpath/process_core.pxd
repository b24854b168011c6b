"""State of the light processes and of what they wait for. None of these types has a table of virtual methods: the
functions of ``process_core.pyx`` take them as arguments, which keeps an idle process eight bytes smaller."""

from cpython.object cimport PyObject

from actorgrid.hotpath.mailbox cimport Mail
from actorgrid.hotpath.pid_table cimport PidTable
from actorgrid.hotpath.run_queue cimport RunQueue
from actorgrid.hotpath.timer_wheel cimport TimerWheel

cdef enum:
    # what a process is at
    READY = 0           # in the run queue
    RUNNING = 1
    WAITING = 2         # for any message
    AWAITING = 3        # for an answer, a time or something foreign: messages do not wake it
    ENDED = 4

    # what an awaited thing is at
    PENDING = 0
    DONE = 1
    FAILED = 2

    # flags of a process
    STARTING = 1        # its first turn, or an ``async`` start, is not over
    TELLS_START = 2     # somebody wants to know when it is
    STOPPING = 4        # it asked to end after the present handler
    HELD = 8            # suspended: messages do not wake it
    COROUTINE = 16      # its life is one coroutine


cdef class ShardAddress:
    cdef readonly str host
    cdef readonly unsigned long long shard


cdef class Pid:
    cdef ShardAddress at
    cdef readonly unsigned long long generation
    cdef readonly unsigned int id
    cdef PyObject* process  # borrowed; NULL when it has ended, or lives elsewhere


cdef class CoreCell:
    cdef PyObject* core     # borrowed; NULL when it is gone


cdef class Behaviour:
    cdef object start       # functions that take the process first; None where there is none
    cdef object message
    cdef object call
    cdef object cast
    cdef unsigned int limit
    cdef int slice
    cdef int on_full
    cdef int priority
    cdef bint coroutine
    cdef bint function      # ``start`` is the first of the arguments


cdef class LightProcess(Mail):
    cdef CoreCell home      # of its core; an empty one when the process has ended
    cdef readonly Pid pid
    cdef Behaviour behaviour
    cdef object running     # the coroutine that runs for it
    cdef object awaited     # what that waits for; before the first turn, the arguments
    cdef object answering   # the call that it is an answer to
    cdef object deferred    # calls that were not answered at once: a dict used as an ordered set
    cdef public object attachments   # what the layers above keep with it
    cdef readonly object parent
    cdef unsigned long long reduced
    cdef int left           # of the slice
    cdef unsigned char phase
    cdef unsigned char flags
    cdef unsigned char level


cdef class Waiting:
    cdef LightProcess process   # who waits; None when nobody does
    cdef object value           # or the error
    cdef int timer              # its handle, or -1
    cdef unsigned char state


cdef class ProcessCall(Waiting):
    cdef readonly object request
    cdef readonly object server     # Pid or name
    cdef readonly object label      # of one that is answered by a message
    cdef object on_answer           # of one that nobody here waits for
    cdef PyObject* holder           # borrowed: the process that put off its answer
    cdef CoreCell home              # of the core whose wheel has the timer
    cdef readonly object timeout_s


cdef class Receive(Waiting):
    cdef object wanted          # None: any message
    cdef unsigned int seen      # messages of the mailbox that are known not to be wanted
    cdef object timeout_s


cdef class ProcessCast:
    cdef readonly object message


cdef class Order:
    cdef readonly object action


cdef class SendTimer:
    cdef CoreCell home      # of its core; an empty one once it was sent or cancelled
    cdef readonly object to
    cdef readonly object message
    cdef int timer


cdef class ProcessCore:
    cdef CoreCell home
    cdef object hooks
    cdef readonly ShardAddress address
    cdef PidTable table
    cdef RunQueue ready
    cdef TimerWheel wheel
    cdef object clock
    cdef bint own_clock
    cdef dict behaviours
    cdef dict replaced
    cdef object last_kind
    cdef Behaviour last_behaviour
    cdef LightProcess now_running
    cdef bint in_run
    cdef object successor             # the coroutine that takes the place of the one that runs
    cdef readonly unsigned long long turn_number
    cdef readonly unsigned long long messages
    cdef readonly unsigned long long refused
    cdef readonly unsigned long long spawned
    cdef readonly unsigned long long ended
    cdef unsigned long thread_id       # of who asked for an interruption of this turn; 0: nobody did

    cdef int hide_wheel(self) except -1
    cdef Behaviour behaviour(self, object kind)
    cdef LightProcess start_process(self, object kind, tuple args, object parent, int priority)
    cdef LightProcess find_local(self, object to)
    cdef int refuse(self, LightProcess process, ProcessCall call, object reason) except -1
    cdef int bring_due(self) except -1
    cdef int turn(self, LightProcess process) except -1
    cdef int note(self, LightProcess process, int slice) except -1
    cdef int put_back(self, LightProcess process, object message) except -1
    cdef int start(self, LightProcess process, Behaviour behaviour, tuple args) except -1
    cdef PyObject* call_start(self, LightProcess process, Behaviour behaviour, tuple args) noexcept
    cdef int handled(self, LightProcess process, PyObject* result) except -1
    cdef int returned(self, LightProcess process, object value) except -1
    cdef int raised(self, LightProcess process) except -1
    cdef int advance(self, LightProcess process) except -1
    cdef int replace(self, LightProcess process, object awaited) except -1
    cdef int started(self, LightProcess process) except -1
    cdef long long now_ns(self) except -1
    cdef long long tick_after(self, object delay_s) except -1
    cdef long long tick_about(self, object delay_s) except -1
