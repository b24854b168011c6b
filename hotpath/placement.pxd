"""State of the placement kernel: plain C structs, so that a decision touches no Python object."""


cdef struct Gpu:
    int milli_free
    int model                       # number of the model's name
    long long memory_free
    long long memory
    unsigned long long allowed      # call that listed this device in `within`


cdef struct Node:
    bint alive
    bint draining
    int rack                        # number of the rack's name; -1: none
    int gpu_count
    int whole_free                  # devices of which nothing is given out
    int most_free                   # largest milli_free of a device
    long long milli_free
    long long cpu
    long long cpu_free
    long long memory
    long long memory_free
    unsigned long long excluded     # call that listed this node in `exclude`
    unsigned long long allowed      # call that listed this node in `within`
    Gpu* gpus


cdef struct Ask:
    long long cpu
    long long memory
    long long gpu_memory
    int gpu_count
    int gpu_milli
    bint any_model
    bint anywhere                   # no `within`
    bint racks                      # some racks are preferred
    unsigned long long call         # marks what this call listed


cdef struct Key:
    long long far
    long long first
    long long second
    long long third


cdef class PlacementEngine:
    cdef Node* slots
    cdef Py_ssize_t used            # slots in use or once used
    cdef Py_ssize_t capacity
    cdef unsigned long long* model_call
    cdef Py_ssize_t model_capacity
    cdef unsigned long long* rack_call
    cdef Py_ssize_t rack_capacity
    cdef unsigned long long call
    cdef int policy_code
    cdef long long allocated_milli
    cdef long long capacity_milli
    cdef unsigned long long dice
    cdef object rng
    cdef object next_id
    cdef dict by_name
    cdef list names
    cdef list numas
    cdef dict model_numbers
    cdef list model_names
    cdef dict rack_numbers
    cdef list rack_names
    cdef dict held
    cdef tuple typical

    cdef Node* node(self, object name) except NULL
    cdef int ask(self, Ask* ask, long long cpu, long long memory, long long gpu_count, long long gpu_milli,
                 long long gpu_memory, object models, object exclude, object racks, object within) except -1
    cdef Py_ssize_t find(self, Ask* ask, int policy) except -2
    cdef tuple take(self, Py_ssize_t slot, Ask* ask, int policy)
    cdef tuple place_all(self, Ask* ask, Py_ssize_t gang, int policy)
    cdef int charge(self, object share, long long cpu, long long memory, long long milli, long long mib,
                    int sign) except -1
    cdef str misfit(self, object share, Ask* ask)
    cdef object hold(self, object id, tuple shares, long long cpu, long long memory, long long milli, long long mib)
