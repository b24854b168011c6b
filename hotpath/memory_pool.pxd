"""State of the memory pool's kernel: segments of the range in one array, linked by address and by size."""


cdef struct Node:
    long long offset                # all in units of the alignment
    long long size
    long long serial                # of the block or reservation that is here; 0: a hole, or unused
    int before                      # neighbours by address; -1: none
    int after
    int bin_before                  # neighbours in the list of holes of about this size
    int bin_after
    int link                        # the other end of an uncommitted move; -1: none
    int state


cdef struct Window:
    long long cost                  # bytes to move and a charge for each move, in units
    long long moved                 # units to move
    int first                       # positions in the order of addresses; the second is past the end
    int last
    bint late                       # over the caller's bound: tried last


cdef struct Planned:
    long long size
    long long offset
    long long target_serial
    int node
    int target


cdef class MemoryPool:
    cdef Node* nodes
    cdef int nodes_known            # slots of `nodes` ever used
    cdef int nodes_room
    cdef int spare                  # first unused slot, linked by `after`
    cdef int spares
    cdef int head                   # the segment of offset 0
    cdef int shift                  # bytes to units
    cdef long long units
    cdef long long used
    cdef long long peak
    cdef long long open_units       # in holes that allocate may use
    cdef long long live
    cdef long long holes
    cdef long long serial           # the last one given
    cdef long long moves
    cdef long long moved
    cdef unsigned long long top_bits
    cdef unsigned int sub_bits[64]
    cdef int bins[1024]
    cdef long long plan             # number of the last defragmentation
    cdef int plan_mode
    cdef bint plan_open             # its iterator may give more moves
    cdef long long plan_from        # its window
    cdef long long plan_to
    cdef long long reserved         # targets of uncommitted moves
    cdef long long pinned           # holes of the window, kept from allocate

    cdef int ensure(self, Py_ssize_t count) except -1
    cdef long long units_of(self, object n_bytes) except -1
    cdef object refusal(self, long long n)
    cdef int fresh(self) noexcept nogil
    cdef void recycle(self, int index) noexcept nogil
    cdef void insert(self, int index) noexcept nogil
    cdef void remove(self, int index) noexcept nogil
    cdef int pick(self, int bin, long long n, bint high, int most) noexcept nogil
    cdef int find(self, long long n, bint high) noexcept nogil
    cdef bint is_large(self, long long n) noexcept nogil
    cdef int carve(self, long long n) noexcept nogil
    cdef int take(self, long long n) noexcept nogil
    cdef void release(self, int index) noexcept nogil
    cdef void give_back(self, int index) noexcept nogil
    cdef long long largest(self) noexcept nogil
    cdef int held_by(self, Block block) except -1
    cdef void swap_places(self, int block, int target) noexcept nogil
    cdef void drop_reservation(self, int target) noexcept nogil
    cdef void settle(self) noexcept nogil
    cdef void end_plan(self) noexcept nogil
    cdef int plan_moves(self, Defragmentation into, long long want, long long most, bint overlap, bint best) except -1
    cdef int plan_window(self, Defragmentation into, long long want, long long most, int* order, int count,
                         long long work) except -1
    cdef bint clear_window(self, Defragmentation into, Window* window, long long most, int* order) noexcept nogil
    cdef int plan_slide(self, Defragmentation into, long long want, int* order, int count) noexcept nogil
    cdef int pending(self, Move move) except -1


cdef class Block:
    cdef MemoryPool pool
    cdef int node
    cdef long long serial

    cdef Node* at(self) except NULL


cdef class Blocks:
    cdef MemoryPool pool
    cdef int* nodes
    cdef Py_ssize_t count
    cdef long long first_serial


cdef class Move:
    cdef MemoryPool pool
    cdef int node
    cdef int target
    cdef long long serial
    cdef long long target_serial
    cdef bint committed
    cdef readonly long long source
    cdef readonly long long destination
    cdef readonly long long size


cdef class Defragmentation:
    cdef MemoryPool pool
    cdef long long plan
    cdef Planned* planned
    cdef Py_ssize_t count
    cdef Py_ssize_t given
    cdef long long total
    cdef long long hole
    cdef long long allowance        # units that sliding may still move
    cdef long long moves_before     # of the pool when sliding gave its last move; -1: none yet
    cdef readonly object want_bytes
