"""State of the placement kernel."""

cimport cython

from .score_table cimport Node, ScoreTable, MemberNeeds


@cython.final
cdef class Holding:
    """What one placement holds: the same amounts on each share."""
    cdef tuple shares
    cdef long long cpu
    cdef long long memory
    cdef long long gpu_memory
    cdef int gpu_milli
    cdef Py_ssize_t slot            # of a single share with at most one device; else -1
    cdef int gpu                    # its device, or -1


cdef class PlacementEngine:
    cdef ScoreTable table
    cdef int policy_code
    cdef unsigned long long call
    cdef unsigned long long* rack_call
    cdef long long* rack_room
    cdef Py_ssize_t rack_capacity
    cdef int* chosen
    cdef Py_ssize_t chosen_capacity
    cdef void** taken               # shares of a gang's members, borrowed while no Python code can run
    cdef Py_ssize_t taken_capacity
    cdef long long allocated_milli
    cdef long long capacity_milli
    cdef unsigned long long dice
    cdef object rng
    cdef long long next_id
    cdef int priced_for             # placements until models are priced anew
    cdef dict by_name
    cdef list names
    cdef list numas
    cdef list nvlinks
    cdef list nears
    cdef list single_shares         # of each node: what a member with device 0, 1, ... gets, and last one without;
                                    # nodes and devices point at them, so that none is looked up
    cdef dict model_numbers
    cdef list model_names
    cdef dict set_numbers
    cdef dict rack_numbers
    cdef list rack_names
    cdef dict held
    cdef tuple typical
    cdef tuple mix
    cdef Py_ssize_t vacant          # no slot before this one is free
    cdef object extent
    cdef bint is_mix_stale
    cdef long long largest_cpu      # of a node, ever
    cdef long long largest_gpus
    cdef dict kinds                 # what the mix calls a model; all others are 0

    cdef tuple _views(self, Node* nodes, list names, list numas, list nvlinks, list nears)
    cdef Node* node(self, object name) except NULL
    cdef int read_needs(self, MemberNeeds* needs, object cpu, object memory, object gpu_count, object gpu_milli,
                   object gpu_memory, object models) except -1
    cdef int models_number(self, object models) except -1
    cdef int mark_within(self, object within) except -1
    cdef int mark_excluded(self, object exclude) except -1
    cdef bint mark_racks(self, object racks) except -1
    cdef bint mark_tightest_rack(self, MemberNeeds* needs, int row, Py_ssize_t gang) except -1
    cdef Py_ssize_t find(self, MemberNeeds* needs, int row, bint excluding, bint racks, int policy) except -2
    cdef tuple place_all(self, MemberNeeds* needs, Py_ssize_t gang, object exclude, object racks, object within,
                         int policy, Py_ssize_t* slot, int* gpu, bint partly)
    cdef tuple share_of(self, Py_ssize_t slot, int count)
    cdef void charge(self, Py_ssize_t slot, const int* gpus, int count, long long cpu, long long memory, int milli,
                     long long mib, int sign) noexcept nogil
    cdef int charge_share(self, object share, long long cpu, long long memory, int milli, long long mib,
                          int sign) except -1
    cdef str misfit(self, object share, MemberNeeds* needs)
    cdef object hold(self, object id, tuple shares, MemberNeeds* needs, Py_ssize_t slot, int gpu)
    cdef int need_members(self, Py_ssize_t count) except -1
    cdef int cover(self, long long cpu, long long gpus) except -1
    cdef int sum_up_mix(self) except -1
