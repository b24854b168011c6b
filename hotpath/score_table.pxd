"""Nodes, and what members of each live class would score on each: plain C, so that a decision touches no object."""

cimport cython

cdef extern from *:
    """
    #if defined(__GNUC__)
    #define actorgrid_prefetch(address) __builtin_prefetch(address, 1)
    #else
    #define actorgrid_prefetch(address) ((void)(address))
    #endif
    """
    void prefetch "actorgrid_prefetch"(void* address) noexcept nogil

cdef enum:
    WHOLE = 1000
    NEAR_MAX = 64           # devices of a node that can be close to each other
    BLOCK = 64              # nodes a maximum stands for
    ROWS_MAX = 512          # classes of equal needs alive at a time
    INDEX_SIZE = 2048
    KINDS_MAX = 16          # models that the mix names, and all others
    SCORE_MAX = 32767
    DISTINCT_MAX = 64       # free shares on a node that differ
    SCORE_EVEN = 16384      # what a placement scores that neither makes nor mends fragments
    COMPLETION = 0
    FGD = 1
    BEST_FIT = 2
    PACKING = 3
    SPREAD = 4
    FIRST_FIT = 5
    RANDOM = 6
    AFFINITY = 7
    TOPOLOGY = 8
    DEVICE_SCORE = 9


cdef struct Gpu:                    # what every decision reads, so that a node's lie in a few lines of the cache
    int milli_free
    int model                       # number of the model's name
    long long memory_free


cdef struct GpuDetail:              # of a device, what few decisions read
    int domain                      # devices of one domain are close: an NVLink group, else a NUMA node
    int score                       # 0 to 1000, given from outside: device_score takes the highest
    long long memory
    unsigned long long allowed      # call that listed this device in `within`
    void* share                     # what a member with this device alone gets; the engine's `single_shares` holds it


cdef struct Node:
    bint alive
    bint draining
    bint grown                      # has more of something than when its scores were worked out
    bint dirty                      # changed since its scores were worked out
    bint several_domains
    int model                       # of all its devices; -1: they differ
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
    unsigned long long* near        # [word][device]: the devices that are that close, as bits; NULL: none are
    Gpu* gpus                       # behind them their details, and those of none: what a member without a device gets


cdef struct MemberNeeds:
    long long cpu
    long long memory
    long long gpu_memory
    int gpu_count
    int gpu_milli
    int models                      # number of the set of models that may serve; 0: any
    int near                        # number of the word for how close its devices are to be; 0: however they lie
    int cpu_class                   # rows that ask for the same CPU share one
    unsigned long long used_at


cdef struct Place:                  # of a row in the order: what a column asks of it, side by side
    long long cpu
    int row
    int gpu_milli
    int gpu_count
    int cpu_class
    int group_end                   # the first place with other devices; until there the CPU grows
    bint is_special                 # asks for device memory, for models, for several shares or for what is close


cdef struct Devices:                # of a node of one model, summed up
    int kind                        # what the mix takes them for
    int count                       # of distinct free shares, none left out but 0
    int wholes
    int free[64]
    int times[64]
    int steps[64]                   # how many of the mix's shares each would serve
    long long partials              # expected completion of the partly free ones
    long long asked                 # CPU that will be asked for with them


cdef struct Served:                 # for FGD, with the CPU that is left: the use the mix has for a node's devices
    long long* shares               # mass by threshold rank
    long long* wholes               # mass by count
    long long use                   # of the shares as they are


cdef inline GpuDetail* details(Node* node) noexcept nogil:
    return <GpuDetail*>(node.gpus + node.gpu_count)


cdef inline size_t gpus_size(int count) noexcept nogil:
    """Bytes of so many devices and their details."""
    return count * (sizeof(Gpu) + sizeof(GpuDetail)) + sizeof(GpuDetail)


cdef void* grown(void* block, Py_ssize_t count, Py_ssize_t size) except NULL


cdef unsigned long long* near_bits(object masks, Py_ssize_t count) except? NULL
cdef bint near_devices(const unsigned long long* near, int count, int number, unsigned long long usable, int wanted,
                       int* chosen) noexcept nogil


@cython.final
cdef class ScoreTable:
    cdef int policy
    cdef Node* nodes
    cdef Py_ssize_t used            # nodes in use or once used
    cdef Py_ssize_t capacity
    cdef Py_ssize_t block_count
    cdef MemberNeeds row_needs[512]   # without memory, in which members of a row may differ
    cdef int rows
    cdef unsigned long long tick
    cdef unsigned long long version # changes with every node
    cdef short* cells               # [block][row][BLOCK]
    cdef short* maxima              # [row][block_capacity]
    cdef short* columns             # [node][row]: the cells again, side by side for the node that changes
    cdef Py_ssize_t block_capacity
    cdef unsigned short index[2048]     # hash of a row's needs -> the row + 1
    cdef int* dirty
    cdef Py_ssize_t dirty_count
    cdef Py_ssize_t dirty_start
    # sets of models: may[set * model_capacity + model]
    cdef unsigned char* may
    cdef int set_count
    cdef Py_ssize_t model_capacity
    cdef Py_ssize_t set_capacity
    cdef int* scratch
    cdef Py_ssize_t scratch_size
    # rows by the CPU they ask for
    cdef long long class_cpu[512]
    cdef int class_uses[512]
    cdef int class_count
    cdef unsigned short order[512]  # rows by size: those without devices, with whole ones, with shares
    cdef Place places[512]          # the same order
    cdef int rows_ordered           # how many the orders have
    cdef int first_whole            # places in the order
    cdef int first_share
    # the typical mix
    cdef long long* mix_cpus
    cdef int mix_ranks
    cdef unsigned char mix_step[1001]
    cdef int mix_steps
    cdef int mix_counts
    cdef int* kind_of               # of each model's number: the mix's kind
    cdef Py_ssize_t kind_capacity
    cdef long long* share_mass      # [kind][rank][step]
    cdef long long* whole_mass      # [kind][rank][count]

    # expected completion
    cdef int* completion            # [kind][whole devices][CPU bucket]
    cdef int* partial               # [kind][WHOLE]
    cdef int* partial_cpu           # [kind][WHOLE]: CPU that will be asked for
    cdef int cpu_buckets
    cdef int cpu_shift
    cdef int wholes

    # prices of models; see reference/model_price.py
    cdef int kinds                  # of the mix
    cdef int model_of[16]           # each kind's model; -1: there is none
    cdef long long* model_free      # free thousandths by model
    cdef long long price_of[16]     # by kind
    cdef bint is_priced             # some price is not 0
    cdef int* named_kinds           # bits, and
    cdef long long* named_demand    # what part of the demand names them
    cdef int named_count
    cdef int* block_model           # model of all nodes of a block; BLOCK_EMPTY, BLOCK_MIXED

    cdef int grow_nodes(self, Py_ssize_t wanted) except -1
    cdef int row_of(self, MemberNeeds* needs) except -1
    cdef int find_row(self, MemberNeeds* needs) noexcept nogil
    cdef void index_row(self, int row) noexcept nogil
    cdef int cpu_class_of(self, long long cpu) noexcept nogil
    cdef void forget_row(self, int row) noexcept nogil
    cdef void sort_rows(self) noexcept nogil
    cdef bint goes_after(self, int row, int other) noexcept nogil
    cdef void build_row(self, int row) noexcept nogil
    cdef void rebuild(self) noexcept nogil
    cdef void set_column(self, Py_ssize_t slot, const short* scores) noexcept nogil
    cdef void set_cell(self, int row, Py_ssize_t slot, int score) noexcept nogil
    cdef int cell(self, int row, Py_ssize_t slot) noexcept nogil
    cdef void touch(self, Py_ssize_t slot, bint grown) noexcept nogil
    cdef void settle(self, Py_ssize_t limit) noexcept nogil
    cdef void settle_row(self, int row) noexcept nogil
    cdef void refresh(self, Py_ssize_t slot) noexcept nogil
    cdef void refresh_alike(self, Py_ssize_t slot) noexcept nogil
    cdef long long completed(self, int kind, long long cpu_left, int wholes, long long partials,
                             long long asked) noexcept nogil
    cdef void price_models(self, long long total_free) noexcept nogil
    cdef long long price(self, int model) noexcept nogil
    cdef int charged(self, int score, Node* node, int milli) noexcept nogil
    cdef void place_in_block(self, Py_ssize_t slot) noexcept nogil
    cdef int block_bound(self, int row, Py_ssize_t block, int milli) noexcept nogil
    cdef int pick_by_worth(self, Node* node, MemberNeeds* needs, unsigned long long call) noexcept nogil
    cdef Py_ssize_t best(self, int row, MemberNeeds* needs) noexcept nogil
    cdef Py_ssize_t best_with_limits(self, int row, MemberNeeds* needs, int milli) noexcept nogil
    cdef int best_in_block(self, int row, Py_ssize_t block, MemberNeeds* needs, int milli, int over) noexcept nogil
    cdef int as_good_as(self, int score) noexcept nogil
    cdef bint fits(self, Node* node, MemberNeeds* needs, unsigned long long call) noexcept nogil
    cdef bint usable(self, Node* node, int at, MemberNeeds* needs, unsigned long long call) noexcept nogil
    cdef int score(self, Node* node, MemberNeeds* needs, unsigned long long call) noexcept nogil
    cdef bint near_set(self, Node* node, MemberNeeds* needs, unsigned long long call, int* chosen) noexcept nogil
    cdef int pick(self, Node* node, MemberNeeds* needs, unsigned long long call, int* chosen) noexcept nogil
    cdef int pick_in_domains(self, Node* node, MemberNeeds* needs, unsigned long long call, int* chosen) noexcept nogil
    cdef int rank(self, long long cpu_free) noexcept nogil
    cdef long long use_of_share(self, int kind, int rank, int milli) noexcept nogil
    cdef long long whole_use(self, const long long* masses, int count) noexcept nogil
    cdef long long use_of_whole(self, int kind, int rank, int count) noexcept nogil
    cdef void score_alike(self, Node* node, short* scores, const short* fitted) noexcept nogil
    cdef int score_by_worth(self, Node* node, MemberNeeds* needs) noexcept nogil
    cdef bint look_at_devices(self, Node* node, Devices* devices) noexcept nogil
    cdef void serve(self, Served* found, Devices* devices, long long cpu_left) noexcept nogil
    cdef long long worth_now(self, Node* node, Devices* devices) noexcept nogil
    cdef long long worth_with(self, Served* served, Devices* devices, long long cpu_left, int free,
                              int milli) noexcept nogil
    cdef long long worth_after(self, Served* served, Devices* devices, long long cpu_left,
                                   MemberNeeds* needs) noexcept nogil
    cdef long long worth_without(self, Node* node, long long cpu, int* chosen, int count, int milli) noexcept nogil
    cdef bint in_one_domain(self, Node* node, MemberNeeds* needs, unsigned long long call) noexcept nogil
