"""State of the forecast: nodes, devices, runs and reservations in C; only ids and names are Python objects."""


cdef struct Span:           # one that runs, or a reservation
    long long cpu
    long long memory
    long long milli
    long long device_memory
    double start
    double expected_s
    double end
    long long sequence
    Py_ssize_t slot         # where its id stands in ids
    unsigned long long binding  # the number of the question for which it binds
    bint stopping
    int members
    int* shares             # for each member: node, number of devices, devices


cdef struct Here:           # one member of a span on a node
    Span* span
    int* devices
    int count


cdef struct Party:          # who is on a node
    Here* items
    int used
    int capacity


cdef struct Free:           # what is free on a node, now or in thought
    long long cpu
    long long memory
    long long total
    long long* milli
    long long* device_memory


cdef struct Node:
    Free free
    Free thought            # only where stamp is the number of the question
    unsigned long long stamp
    unsigned long long touched
    Party runs
    Party kept
    Py_ssize_t first        # of its devices, among all
    unsigned long long* near    # [word][device] as in score_table; NULL: none are close
    int gpus
    int count               # how many members fit, as last counted
    bint draining


cdef struct GangNeeds:
    long long cpu
    long long memory
    long long milli
    long long device_memory
    long long gang
    int count
    int near                # number of the word for how close a member's devices are to be; 0: however they lie
    bint apart              # no two members on one node
    bint models             # only devices whose model is wanted
    bint within             # only devices that are allowed


cdef struct Slot:           # a device that could serve; ranked by the first, then by the second
    long long key
    int index


cdef struct Order:          # spans by a time
    Span** items
    Py_ssize_t used
    Py_ssize_t capacity


cdef struct Able:           # a node that holds some members
    int count
    long long total
    int number


cdef class Forecast:
    cdef readonly long long counted
    cdef Node* nodes
    cdef int node_count
    cdef int gpus_max
    cdef long long* amounts         # of all devices: free, in thought, and four rows of scratch
    cdef int* models
    cdef unsigned char* wanted      # by model
    cdef unsigned char* allowed     # by device
    cdef unsigned char* allowed_on  # by node
    cdef bint limited               # allowed holds something
    cdef Free left
    cdef Free here
    cdef Slot* slots
    cdef int chosen[64]
    cdef Able* able
    cdef int* touched
    cdef int touched_count
    cdef unsigned long long event
    cdef unsigned long long question
    cdef Order ends
    cdef Order endless
    cdef Order enters
    cdef Order exits
    cdef Span** spans
    cdef Py_ssize_t spans_used
    cdef Py_ssize_t spans_capacity
    cdef list vacant
    cdef list ids
    cdef list awaited
    cdef list names
    cdef dict numbers
    cdef dict model_numbers
    cdef dict runs
    cdef dict kept

    cdef int set_up(self, list views) except -1
    cdef Span* new_span(self, str id, object needs, object shares, double start, double expected_s) except NULL
    cdef void forget(self, Span* span) noexcept
    cdef int enlist(self, Span* span, bint kept) except -1
    cdef void unlist(self, Span* span, bint kept) noexcept
    cdef void change_all(self, Span* span, int sign) noexcept
    cdef int place(self, Span* span) except -1
    cdef void take_out(self, Span* span) noexcept
    cdef int renew(self, double now) except -1
    cdef GangNeeds read_needs(self, object needs) except *
    cdef long long slots_of(self, Node* node, Free* free, GangNeeds* needs) noexcept
    cdef bint take_near(self, Node* node, GangNeeds* needs, long long slots) noexcept
    cdef int members(self, int number, Free* free, GangNeeds* needs, long long most) noexcept
    cdef Free* left_of(self, Node* node, Span* own, bint alone, double start, double duration) noexcept
    cdef void count(self, int number, GangNeeds* needs, Span* own, bint alone, double at, double duration,
                    long long* total) noexcept
    cdef void touch(self, Span* span) noexcept
    cdef void give_back(self, Span* span) noexcept
    cdef tuple choose(self, GangNeeds* needs, Span* own, bint alone, int counted, double at, double duration)
    cdef int bind(self, str id, object binding) except -1
    cdef object awaited_on(self, tuple shares, Py_ssize_t endless)
    cdef list devices_for(self, Node* node, Free* free, GangNeeds* needs, int members)
    cdef void spare(self, Node* node, Span* kept, double now) noexcept
