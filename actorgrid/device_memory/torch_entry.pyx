# distutils: language = c++
"""What PyTorch calls for memory, as C functions: ``actorgrid_torch_malloc``, ``_free``, ``_record_stream``.

In C++ for two reasons. PyTorch takes what ``malloc`` gives as it is, and a kernel that gets a null pointer takes the whole
CUDA context with it: so a request that cannot be served has to be an exception of C++, which becomes a RuntimeError in
the program, and nothing that Python alone can export throws one. And PyTorch asks from threads of its own, some
hundred times in a training step: most requests, those of the home stream that the account can serve, are served here
without the interpreter.

Two locks keep the account. ``gate`` is held for a few dozen instructions that need no interpreter, and by nobody who runs
Python or waits for the interpreter; so whoever has the interpreter may wait for it. All else is DevicePool's, under its
own lock: other streams, and requests for which somebody has to be waited for.

PyTorch frees from destructors too, after Python's end: then nothing is done.
"""

import atexit

from cpython.unicode cimport PyUnicode_AsUTF8AndSize
from cython.operator cimport dereference
from libc.string cimport memcpy
from libcpp.unordered_map cimport unordered_map

from actorgrid.hotpath.memory_pool cimport MemoryPool

from actorgrid.errors import InvalidBlock
from actorgrid.hotpath.memory_records import PoolStats, out_of_memory, whole_number

from .device_pool import DeviceBlock


cdef extern from "<mutex>" namespace "std" nogil:
    cdef cppclass mutex:
        void lock()
        void unlock()


cdef extern from *:
    """
    #include <cstddef>
    #include <stdexcept>
    #include <sys/types.h>

    typedef void *(*actorgrid_take_call)(ssize_t, int, void *);
    typedef void (*actorgrid_address_call)(void *, void *);

    static actorgrid_take_call actorgrid_take = nullptr;
    static actorgrid_address_call actorgrid_give = nullptr, actorgrid_use = nullptr;
    static volatile int actorgrid_open = 0;
    static thread_local char actorgrid_why[512] = "";

    #define ACTORGRID_ENTRY extern "C" __attribute__((visibility("default")))

    ACTORGRID_ENTRY void *actorgrid_torch_malloc(ssize_t size, int device, void *stream) {
        if (size <= 0) return nullptr;
        if (!actorgrid_open) throw std::runtime_error("no device pool of actorgrid's is in use here");
        void *taken = actorgrid_take(size, device, stream);
        if (!taken) throw std::runtime_error(actorgrid_why);
        return taken;
    }
    ACTORGRID_ENTRY void actorgrid_torch_free(void *address, ssize_t, int, void *stream) {
        if (address && actorgrid_open) actorgrid_give(address, stream);
    }
    ACTORGRID_ENTRY void actorgrid_torch_record_stream(void *address, void *stream) {
        if (address && actorgrid_open) actorgrid_use(address, stream);
    }
    static void actorgrid_connect(actorgrid_take_call take, actorgrid_address_call give, actorgrid_address_call use) {
        actorgrid_take = take;
        actorgrid_give = give;
        actorgrid_use = use;
        actorgrid_open = 1;
    }
    static void actorgrid_disconnect() { actorgrid_open = 0; }
    """
    ctypedef void* (*take_call)(Py_ssize_t, int, void*) noexcept nogil
    ctypedef void (*address_call)(void*, void*) noexcept nogil
    void actorgrid_connect(take_call take, address_call give, address_call use)
    void actorgrid_disconnect()
    int actorgrid_open
    char* actorgrid_why


cdef class SharedBlock:
    """A block of a SharedAccount: as a Block, and for DevicePool alone."""
    cdef int node
    cdef readonly long long offset
    cdef readonly long long size


cdef SharedBlock shared_block(SharedAccount account, int node):
    cdef SharedBlock block = SharedBlock.__new__(SharedBlock)
    block.node = node
    block.offset = account.pool.nodes[node].offset << account.pool.shift
    block.size = account.pool.nodes[node].size << account.pool.shift
    return block


cdef class SharedAccount:
    """A MemoryPool's account that threads without the interpreter change too; what DevicePool asks of an account."""
    cdef MemoryPool pool
    cdef mutex gate

    def __init__(self, size_bytes, alignment_bytes):
        self.pool = MemoryPool(size_bytes, alignment_bytes)

    @property
    def size_bytes(self):
        return self.pool.size_bytes

    cdef int take(self, long long n) noexcept nogil:
        """The node of a new block of *n* units, or -1 where there is no hole, or no room for one more record."""
        cdef int node = -1
        self.gate.lock()
        if self.pool.spares + (self.pool.nodes_room - self.pool.nodes_known) > 0:
            node = self.pool.take(n)
        self.gate.unlock()
        return node

    cdef void give_back(self, int node) noexcept nogil:
        self.gate.lock()
        self.pool.give_back(node)
        self.gate.unlock()

    cdef long long largest(self) noexcept nogil:
        cdef long long found
        self.gate.lock()
        found = self.pool.largest()
        self.gate.unlock()
        return found

    def allocate(self, n_bytes):
        cdef long long asked = whole_number(n_bytes, "a size in bytes", 1)
        cdef int shift = self.pool.shift
        cdef int node
        cdef int full = 0
        self.gate.lock()
        try:
            self.pool.ensure(1)
        except MemoryError:
            full = 1
        self.gate.unlock()
        if full:
            raise MemoryError("no memory for a record of one more block")
        node = self.take((asked + ((<long long>1 << shift) - 1)) >> shift)
        if node < 0:
            raise out_of_memory(asked, self.pool.units << shift, (self.pool.units - self.pool.used) << shift,
                                self.largest() << shift, 0)
        return shared_block(self, node)

    def free(self, SharedBlock block):
        if block.node < 0:
            raise InvalidBlock("the block was freed already")
        self.give_back(block.node)
        block.node = -1

    def stats(self):
        cdef long long used, peak, live, holes, largest
        cdef int shift = self.pool.shift
        self.gate.lock()
        used, peak, live, holes = self.pool.used, self.pool.peak, self.pool.live, self.pool.holes
        largest = self.pool.largest()
        self.gate.unlock()
        free = self.pool.units - used
        return PoolStats(
            self.pool.units << shift, used << shift, free << shift, 0, largest << shift, peak << shift,
            1 - largest / free if free else 0.0, live, holes, 0, 0,
        )


cdef SharedAccount account = None
cdef unordered_map[size_t, int] nodes   # by address, under the account's gate: what was served without the interpreter
cdef size_t base
cdef size_t home
cdef dict blocks = {}                   # by address: what DevicePool served
cdef object device_pool = None
cdef int pool_device = -1


cdef void* take(Py_ssize_t size, int device, void* stream) noexcept nogil:
    cdef int node
    cdef int shift
    cdef size_t address = 0
    if device == pool_device and <size_t>stream == home:
        shift = account.pool.shift
        node = -1
        account.gate.lock()
        if account.pool.spares + (account.pool.nodes_room - account.pool.nodes_known) > 0:
            node = account.pool.take((size + ((<Py_ssize_t>1 << shift) - 1)) >> shift)
            if node >= 0:
                address = base + (<size_t>account.pool.nodes[node].offset << shift)
                nodes[address] = node
        account.gate.unlock()
        if node >= 0:
            return <void*>address
    return take_slowly(size, device, stream)


cdef void* take_slowly(Py_ssize_t size, int device, void* stream) noexcept with gil:
    cdef const char* text
    cdef Py_ssize_t length = 0
    try:
        if device != pool_device:
            raise RuntimeError(f"the pool is of device {pool_device}, and memory of device {device} was asked for")
        block = device_pool.allocate(size, <size_t>stream)
        address = block.address
        blocks[address] = block
        return <void*><size_t>address
    except BaseException as error:
        text = PyUnicode_AsUTF8AndSize(f"actorgrid: {type(error).__name__}: {error}", &length)
        length = min(length, 511)
        memcpy(actorgrid_why, text, length)
        actorgrid_why[length] = 0
        return NULL


cdef int forget(void* address) noexcept nogil:
    """The node of what was served without the interpreter, which is from now on the caller's; -1: it is none."""
    cdef int node = -1
    cdef unordered_map[size_t, int].iterator found = nodes.find(<size_t>address)
    if found != nodes.end():
        node = dereference(found).second
        nodes.erase(found)
    return node


cdef void give(void* address, void* stream) noexcept nogil:
    cdef int node
    account.gate.lock()
    node = forget(address)
    if node >= 0:
        account.pool.give_back(node)
    account.gate.unlock()
    if node < 0:
        give_slowly(address)


cdef void give_slowly(void* address) noexcept with gil:
    block = blocks.pop(<size_t>address, None)
    if block is not None:
        device_pool.free(block)


cdef void use(void* address, void* stream) noexcept with gil:
    cdef int node
    account.gate.lock()
    node = forget(address)
    account.gate.unlock()
    if node >= 0:
        blocks[<size_t>address] = DeviceBlock(shared_block(account, node), base, home)
    block = blocks.get(<size_t>address)
    if block is not None:
        device_pool.used_on(block, <size_t>stream)


def connect(pool, SharedAccount shared, size_t base_address, int device):
    """Have the C functions serve from *pool*, whose account is *shared*, until Python ends."""
    global account, base, home, device_pool, pool_device
    nodes.clear()
    blocks.clear()
    account, base, home, device_pool, pool_device = shared, base_address, pool.home_stream, pool, device
    actorgrid_connect(take, give, use)
    atexit.register(disconnect)


def disconnect():
    """Serve no more: a request is refused, and what is freed is left alone."""
    actorgrid_disconnect()


def is_open():
    """Whether a pool serves."""
    return bool(actorgrid_open)


def held():
    """How many blocks PyTorch has."""
    return len(blocks) + nodes.size()
