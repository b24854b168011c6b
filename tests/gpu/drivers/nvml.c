/* A libnvidia-ml.so.1 without a driver. Its state is as state.h says, in the file named by NVML_STUB_STATE.
 *
 * Global keys: count, driver, cuda (as 13000), nvml, init (what nvmlInit returns), topology.A.B (level between devices,
 * as NVML numbers them). Keys of device N: uuid name serial minor board_id total_mib used_mib reserved_mib bus numa
 * capability architecture util memory_util encoder_util decoder_util temp memory_temp slowdown_c shutdown_c power_mw
 * limit_mw default_limit_mw min_limit_mw max_limit_mw energy_mj sm_mhz mem_mhz max_sm_mhz max_mem_mhz fan pstate
 * throttle ecc_mode ecc_corrected ecc_uncorrected remapped_corrected remapped_uncorrected remapped_pending
 * remapped_failure replays pcie_gen pcie_width max_pcie_gen max_pcie_width nvlinks (number, all to every other device)
 * nvlink_errors processes (PID:MIB[:INSTANCE],...) persistence compute_mode vbios
 * lost (1: fell off the bus), mig_mode, mig (number of instances), mig.I.uuid mig.I.profile mig.I.mib mig.I.used_mib,
 * mig_needs_reset (1: another MIG mode waits for a reset).
 * A missing key of a device means "not supported".
 *
 * Events are lines "DEVICE TYPE DATA" appended to the file NVML_STUB_STATE.events; a set sees those after its making.
 */
#define STATE_VARIABLE "NVML_STUB_STATE"
#include "state.h"
#include "layout.h"

enum { MAX_DEVICES = 16, MAX_INSTANCES = 8, MAX_PROCESSES = 64, MAX_SETS = 8 };

typedef struct { int number, instance; } device; /* instance 0: the whole GPU */
typedef struct { long long offset; int used; unsigned long long registered[MAX_DEVICES]; } event_set;
typedef struct { int number, id; } gpu_instance;

static device table[MAX_DEVICES][MAX_INSTANCES + 1];
static gpu_instance made[MAX_DEVICES][MAX_INSTANCES + 1];
static event_set sets[MAX_SETS];
static pthread_mutex_t set_lock = PTHREAD_MUTEX_INITIALIZER;
static int ready;

/* At load, not at nvmlInit: an event may name a device that nobody has asked for yet. */
__attribute__((constructor)) static void fill(void) {
    for (int number = 0; number < MAX_DEVICES; number++)
        for (int instance = 0; instance <= MAX_INSTANCES; instance++) {
            table[number][instance] = (device){number, instance};
            made[number][instance] = (gpu_instance){number, instance};
        }
}

static int count(void) { return (int)whole_or(ALL, "count", 0); }

static int state_of(const char *function, const device *which) {
    int said = scripted(function, which->number);
    if (said != PASS) return said;
    if (!ready) return NVML_ERROR_UNINITIALIZED;
    if (which->number >= count() || whole_or(which->number, "lost", 0)) return NVML_ERROR_GPU_IS_LOST;
    return NVML_SUCCESS;
}

#define ENTER(which)                                   \
    do {                                               \
        int said_ = state_of(__func__, which);         \
        if (said_ != NVML_SUCCESS) return said_;       \
    } while (0)
#define WHOLE_ONLY(which) \
    do { if ((which)->instance) return NVML_ERROR_NOT_SUPPORTED; } while (0)

static int read_text(const device *which, const char *name, char *value, unsigned size) {
    char found[VALUE_MAX];
    if (!lookup(which->number, name, found, sizeof found)) return NVML_ERROR_NOT_SUPPORTED;
    if (strlen(found) >= size) return NVML_ERROR_INSUFFICIENT_SIZE;
    strcpy(value, found);
    return NVML_SUCCESS;
}

static int read_uint(const device *which, const char *name, unsigned *value) {
    long long found;
    if (!lookup_whole(which->number, name, &found)) return NVML_ERROR_NOT_SUPPORTED;
    *value = (unsigned)found;
    return NVML_SUCCESS;
}

static int read_ulong(const device *which, const char *name, unsigned long long *value) {
    long long found;
    if (!lookup_whole(which->number, name, &found)) return NVML_ERROR_NOT_SUPPORTED;
    *value = (unsigned long long)found;
    return NVML_SUCCESS;
}

#define TEXT(function, key)                                            \
    API int function(device *which, char *value, unsigned size) {      \
        ENTER(which);                                                  \
        return read_text(which, key, value, size);                     \
    }
#define UINT(function, key)                                            \
    API int function(device *which, unsigned *value) {                 \
        ENTER(which);                                                  \
        WHOLE_ONLY(which);                                             \
        return read_uint(which, key, value);                           \
    }

/* -- the library */

API int nvmlInitWithFlags(unsigned flags) {
    (void)flags;
    int said = scripted(__func__, ALL);
    if (said == PASS) said = scripted("nvmlInit", ALL);
    if (said != PASS) return said;
    said = (int)whole_or(ALL, "init", NVML_SUCCESS);
    if (said == NVML_SUCCESS) ready = 1;
    return said;
}

API int nvmlInit_v2(void) { return nvmlInitWithFlags(0); }

API int nvmlShutdown(void) {
    ready = 0;
    return scripted_or(__func__, NVML_SUCCESS);
}

API const char *nvmlErrorString(int code) {
    switch (code) {
    case NVML_ERROR_UNINITIALIZED: return "Uninitialized";
    case NVML_ERROR_INVALID_ARGUMENT: return "Invalid Argument";
    case NVML_ERROR_NOT_SUPPORTED: return "Not Supported";
    case NVML_ERROR_NO_PERMISSION: return "Insufficient Permissions";
    case NVML_ERROR_NOT_FOUND: return "Not Found";
    case NVML_ERROR_DRIVER_NOT_LOADED: return "Driver Not Loaded";
    case NVML_ERROR_TIMEOUT: return "Timeout";
    case NVML_ERROR_GPU_IS_LOST: return "GPU is lost";
    case NVML_ERROR_RESET_REQUIRED: return "GPU requires restart";
    case NVML_ERROR_LIB_RM_VERSION_MISMATCH: return "Driver/library version mismatch";
    case NVML_ERROR_IN_USE: return "In use by another client";
    case NVML_ERROR_INSUFFICIENT_RESOURCES: return "Insufficient Resources";
    default: return "Unknown Error";
    }
}

static int global_text(const char *function, const char *key, char *value, unsigned size) {
    char found[VALUE_MAX];
    int said = scripted(function, ALL);
    if (said != PASS) return said;
    if (!ready) return NVML_ERROR_UNINITIALIZED;
    if (!lookup(ALL, key, found, sizeof found)) return NVML_ERROR_NOT_SUPPORTED;
    if (strlen(found) >= size) return NVML_ERROR_INSUFFICIENT_SIZE;
    strcpy(value, found);
    return NVML_SUCCESS;
}

API int nvmlSystemGetDriverVersion(char *value, unsigned size) { return global_text(__func__, "driver", value, size); }
API int nvmlSystemGetNVMLVersion(char *value, unsigned size) { return global_text(__func__, "nvml", value, size); }

API int nvmlSystemGetCudaDriverVersion_v2(int *version) {
    long long found;
    int said = scripted(__func__, ALL);
    if (said != PASS) return said;
    if (!lookup_whole(ALL, "cuda", &found)) return NVML_ERROR_NOT_SUPPORTED;
    *version = (int)found;
    return NVML_SUCCESS;
}

API int nvmlSystemGetCudaDriverVersion(int *version) { return nvmlSystemGetCudaDriverVersion_v2(version); }

API int nvmlSystemGetProcessName(unsigned pid, char *name, unsigned size) {
    snprintf(name, size, "process-%u", pid);
    return scripted_or(__func__, NVML_SUCCESS);
}

API int nvmlDeviceGetCount_v2(unsigned *found) {
    int said = scripted(__func__, ALL);
    if (said != PASS) return said;
    if (!ready) return NVML_ERROR_UNINITIALIZED;
    *found = (unsigned)count();
    return NVML_SUCCESS;
}

API int nvmlDeviceGetHandleByIndex_v2(unsigned index, device **result) {
    int said = scripted(__func__, (int)index);
    if (said != PASS) return said;
    if (!ready) return NVML_ERROR_UNINITIALIZED;
    if ((int)index >= count() || index >= MAX_DEVICES) return NVML_ERROR_INVALID_ARGUMENT;
    if (whole_or((int)index, "lost_at_start", 0)) return NVML_ERROR_GPU_IS_LOST;
    *result = &table[index][0];
    return NVML_SUCCESS;
}

static int by_text(const char *function, const char *key, const char *wanted, device **result) {
    char found[VALUE_MAX];
    int said = scripted(function, ALL);
    if (said != PASS) return said;
    for (int number = 0; number < count() && number < MAX_DEVICES; number++)
        if (lookup(number, key, found, sizeof found) && !strcasecmp(found, wanted)) {
            *result = &table[number][0];
            return NVML_SUCCESS;
        }
    return NVML_ERROR_NOT_FOUND;
}

API int nvmlDeviceGetUUID(device *which, char *uuid, unsigned size);
static int made_of(int number, int slot);

API int nvmlDeviceGetHandleByUUID(const char *uuid, device **result) {
    char found[96];
    if (by_text(__func__, "uuid", uuid, result) == NVML_SUCCESS) return NVML_SUCCESS;
    for (int number = 0; number < count() && number < MAX_DEVICES; number++)
        for (int instance = 1; instance < MAX_INSTANCES; instance++)
            if (made_of(number, instance - 1) == 2 && !nvmlDeviceGetUUID(&table[number][instance], found, sizeof found) && !strcasecmp(found, uuid)) {
                *result = &table[number][instance];
                return NVML_SUCCESS;
            }
    return NVML_ERROR_NOT_FOUND;
}

API int nvmlDeviceGetHandleByPciBusId_v2(const char *bus, device **result) {
    return by_text(__func__, "bus", bus, result);
}

/* -- what a device is */

API int nvmlDeviceGetUUID(device *which, char *uuid, unsigned size) {
    char whole[VALUE_MAX], key[KEY_MAX];
    ENTER(which);
    if (!which->instance) return read_text(which, "uuid", uuid, size);
    snprintf(key, sizeof key, "mig.%d.uuid", which->instance - 1);
    if (read_text(which, key, uuid, size) == NVML_SUCCESS) return NVML_SUCCESS;
    int code = read_text(which, "uuid", whole, sizeof whole);
    if (code == NVML_SUCCESS) snprintf(uuid, size, "MIG-%s-%d", whole, which->instance - 1);
    return code;
}

API int nvmlDeviceGetName(device *which, char *name, unsigned size) {
    char key[KEY_MAX], profile[VALUE_MAX], whole[VALUE_MAX];
    ENTER(which);
    if (!which->instance) return read_text(which, "name", name, size);
    snprintf(key, sizeof key, "mig.%d.profile", which->instance - 1);
    if (read_text(which, key, profile, sizeof profile) != NVML_SUCCESS) return NVML_ERROR_NOT_SUPPORTED;
    if (read_text(which, "name", whole, sizeof whole) != NVML_SUCCESS) return NVML_ERROR_NOT_SUPPORTED;
    snprintf(name, size, "%.60s MIG %.20s", whole, profile);
    return NVML_SUCCESS;
}

TEXT(nvmlDeviceGetSerial, "serial")
TEXT(nvmlDeviceGetVbiosVersion, "vbios")
UINT(nvmlDeviceGetMinorNumber, "minor")
UINT(nvmlDeviceGetBoardId, "board_id")
UINT(nvmlDeviceGetArchitecture, "architecture")
UINT(nvmlDeviceGetPersistenceMode, "persistence")
UINT(nvmlDeviceGetComputeMode, "compute_mode")

API int nvmlDeviceGetIndex(device *which, unsigned *index) {
    ENTER(which);
    *index = (unsigned)which->number;
    return NVML_SUCCESS;
}

API int nvmlDeviceGetPciInfo_v3(device *which, nvmlPciInfo_t *info) {
    ENTER(which);
    memset(info, 0, sizeof *info);
    int code = read_text(which, "bus", info->busId, sizeof info->busId);
    if (code == NVML_SUCCESS) {
        unsigned domain = 0, bus = 0, slot = 0;
        if (sscanf(info->busId, "%x:%x:%x", &domain, &bus, &slot) != 3) return NVML_ERROR_UNKNOWN;
        info->domain = domain, info->bus = bus, info->device = slot;
        info->pciDeviceId = (unsigned)whole_or(which->number, "pci_id", 0x233010de);
        memcpy(info->busIdLegacy, info->busId + 4, sizeof info->busIdLegacy - 1);
    }
    return code;
}

API int nvmlDeviceGetCudaComputeCapability(device *which, int *major, int *minor) {
    char value[32];
    ENTER(which);
    int code = read_text(which, "capability", value, sizeof value);
    if (code == NVML_SUCCESS && sscanf(value, "%d.%d", major, minor) != 2) return NVML_ERROR_NOT_SUPPORTED;
    return code;
}

API int nvmlDeviceGetNumaNodeId(device *which, unsigned *node) {
    ENTER(which);
    return read_uint(which, "numa", node);
}

/* -- what it reads */

static int memory_of(const device *which, unsigned long long *total, unsigned long long *used, unsigned long long *kept) {
    char key[KEY_MAX];
    int code = read_ulong(which, "total_mib", total);
    if (code == NVML_SUCCESS) code = read_ulong(which, "used_mib", used);
    if (code != NVML_SUCCESS) return code;
    *kept = (unsigned long long)whole_or(which->number, "reserved_mib", 0);
    if (which->instance) {
        snprintf(key, sizeof key, "mig.%d.mib", which->instance - 1);
        if (read_ulong(which, key, total) != NVML_SUCCESS) *total /= MAX_INSTANCES;
        snprintf(key, sizeof key, "mig.%d.used_mib", which->instance - 1);
        if (read_ulong(which, key, used) != NVML_SUCCESS && *used > *total) *used = *total;
        *kept = 0;
    }
    *total <<= 20, *used <<= 20, *kept <<= 20;
    return NVML_SUCCESS;
}

API int nvmlDeviceGetMemoryInfo(device *which, c_nvmlMemory_t *info) {
    unsigned long long total, used, kept;
    ENTER(which);
    int code = memory_of(which, &total, &used, &kept);
    if (code == NVML_SUCCESS) info->total = total, info->used = used + kept, info->free = total - used - kept;
    return code;
}

API int nvmlDeviceGetMemoryInfo_v2(device *which, c_nvmlMemory_v2_t *info) {
    unsigned long long total, used, kept;
    ENTER(which);
    int code = memory_of(which, &total, &used, &kept);
    if (code == NVML_SUCCESS)
        info->total = total, info->used = used, info->reserved = kept, info->free = total - used - kept;
    return code;
}

API int nvmlDeviceGetBAR1MemoryInfo(device *which, c_nvmlBAR1Memory_t *info) {
    ENTER(which);
    info->bar1Total = 256ull << 20, info->bar1Used = 1ull << 20, info->bar1Free = 255ull << 20;
    return NVML_SUCCESS;
}

API int nvmlDeviceGetUtilizationRates(device *which, c_nvmlUtilization_t *rates) {
    ENTER(which);
    WHOLE_ONLY(which);
    rates->memory = (unsigned)whole_or(which->number, "memory_util", 0);
    return read_uint(which, "util", &rates->gpu);
}

static int engine(const device *which, const char *key, unsigned *percent, unsigned *period_us) {
    *period_us = 167000;
    return read_uint(which, key, percent);
}

API int nvmlDeviceGetEncoderUtilization(device *which, unsigned *percent, unsigned *period_us) {
    ENTER(which);
    return engine(which, "encoder_util", percent, period_us);
}

API int nvmlDeviceGetDecoderUtilization(device *which, unsigned *percent, unsigned *period_us) {
    ENTER(which);
    return engine(which, "decoder_util", percent, period_us);
}

API int nvmlDeviceGetTemperature(device *which, unsigned sensor, unsigned *celsius) {
    ENTER(which);
    if (sensor != NVML_TEMPERATURE_GPU) return NVML_ERROR_INVALID_ARGUMENT;
    return read_uint(which, "temp", celsius);
}

API int nvmlDeviceGetTemperatureV(device *which, c_nvmlTemperature_v1_t *reading) {
    unsigned celsius = 0;
    ENTER(which);
    int code = nvmlDeviceGetTemperature(which, reading->sensorType, &celsius);
    reading->temperature = (int)celsius;
    return code;
}

API int nvmlDeviceGetTemperatureThreshold(device *which, unsigned kind, unsigned *celsius) {
    ENTER(which);
    if (kind == NVML_TEMPERATURE_THRESHOLD_SHUTDOWN) return read_uint(which, "shutdown_c", celsius);
    if (kind == NVML_TEMPERATURE_THRESHOLD_SLOWDOWN) return read_uint(which, "slowdown_c", celsius);
    return NVML_ERROR_NOT_SUPPORTED;
}

UINT(nvmlDeviceGetPowerUsage, "power_mw")
UINT(nvmlDeviceGetEnforcedPowerLimit, "limit_mw")
UINT(nvmlDeviceGetPowerManagementLimit, "limit_mw")
UINT(nvmlDeviceGetPowerManagementDefaultLimit, "default_limit_mw")
UINT(nvmlDeviceGetFanSpeed, "fan")
UINT(nvmlDeviceGetPerformanceState, "pstate")
UINT(nvmlDeviceGetPcieReplayCounter, "replays")
UINT(nvmlDeviceGetCurrPcieLinkGeneration, "pcie_gen")
UINT(nvmlDeviceGetCurrPcieLinkWidth, "pcie_width")
UINT(nvmlDeviceGetMaxPcieLinkGeneration, "max_pcie_gen")
UINT(nvmlDeviceGetMaxPcieLinkWidth, "max_pcie_width")

API int nvmlDeviceGetPowerManagementLimitConstraints(device *which, unsigned *least, unsigned *most) {
    ENTER(which);
    int code = read_uint(which, "min_limit_mw", least);
    return code == NVML_SUCCESS ? read_uint(which, "max_limit_mw", most) : code;
}

API int nvmlDeviceSetPowerManagementLimit(device *which, unsigned milliwatts) {
    unsigned least, most;
    ENTER(which);
    WHOLE_ONLY(which);
    int code = nvmlDeviceGetPowerManagementLimitConstraints(which, &least, &most);
    if (code != NVML_SUCCESS) return code;
    if (milliwatts < least || milliwatts > most) return NVML_ERROR_INVALID_ARGUMENT;
    remember(which->number, "limit_mw", "%u", milliwatts);
    return NVML_SUCCESS;
}

API int nvmlDeviceGetTotalEnergyConsumption(device *which, unsigned long long *millijoules) {
    ENTER(which);
    WHOLE_ONLY(which);
    return read_ulong(which, "energy_mj", millijoules);
}

static int clock_of(const device *which, unsigned kind, const char *graphics, const char *memory, unsigned *mhz) {
    if (kind == NVML_CLOCK_MEM) return read_uint(which, memory, mhz);
    if (kind == NVML_CLOCK_SM || kind == NVML_CLOCK_GRAPHICS) return read_uint(which, graphics, mhz);
    return NVML_ERROR_NOT_SUPPORTED;
}

API int nvmlDeviceGetClockInfo(device *which, unsigned kind, unsigned *mhz) {
    ENTER(which);
    return clock_of(which, kind, "sm_mhz", "mem_mhz", mhz);
}

API int nvmlDeviceGetMaxClockInfo(device *which, unsigned kind, unsigned *mhz) {
    ENTER(which);
    return clock_of(which, kind, "max_sm_mhz", "max_mem_mhz", mhz);
}

API int nvmlDeviceSetGpuLockedClocks(device *which, unsigned least, unsigned most) {
    ENTER(which);
    remember(which->number, "locked_mhz", "%u-%u", least, most);
    return NVML_SUCCESS;
}

API int nvmlDeviceResetGpuLockedClocks(device *which) {
    ENTER(which);
    remember(which->number, "locked_mhz", "none");
    return NVML_SUCCESS;
}

API int nvmlDeviceGetCurrentClocksThrottleReasons(device *which, unsigned long long *reasons) {
    ENTER(which);
    WHOLE_ONLY(which);
    return read_ulong(which, "throttle", reasons);
}

API int nvmlDeviceGetCurrentClocksEventReasons(device *which, unsigned long long *reasons) {
    ENTER(which);
    WHOLE_ONLY(which);
    return read_ulong(which, "throttle", reasons);
}

API int nvmlDeviceGetEccMode(device *which, unsigned *now, unsigned *pending) {
    ENTER(which);
    int code = read_uint(which, "ecc_mode", now);
    *pending = *now;
    return code;
}

API int nvmlDeviceGetTotalEccErrors(device *which, unsigned kind, unsigned counter, unsigned long long *errors) {
    (void)counter;
    ENTER(which);
    WHOLE_ONLY(which);
    return read_ulong(which, kind == NVML_MEMORY_ERROR_TYPE_UNCORRECTED ? "ecc_uncorrected" : "ecc_corrected", errors);
}

API int nvmlDeviceGetMemoryErrorCounter(
    device *which, unsigned kind, unsigned counter, unsigned location, unsigned long long *errors) {
    (void)location;
    return nvmlDeviceGetTotalEccErrors(which, kind, counter, errors);
}

API int nvmlDeviceGetRemappedRows(
    device *which, unsigned *corrected, unsigned *uncorrected, unsigned *pending, unsigned *failure) {
    ENTER(which);
    WHOLE_ONLY(which);
    int code = read_uint(which, "remapped_corrected", corrected);
    if (code == NVML_SUCCESS) code = read_uint(which, "remapped_uncorrected", uncorrected);
    if (code == NVML_SUCCESS) code = read_uint(which, "remapped_pending", pending);
    if (code == NVML_SUCCESS) code = read_uint(which, "remapped_failure", failure);
    return code;
}

/* -- how devices are joined */

API int nvmlDeviceGetTopologyCommonAncestor(device *one, device *other, unsigned *level) {
    char key[KEY_MAX];
    ENTER(one);
    ENTER(other);
    int low = one->number < other->number ? one->number : other->number, high = one->number + other->number - low;
    if (low == high) return NVML_ERROR_INVALID_ARGUMENT;
    snprintf(key, sizeof key, "topology.%d.%d", low, high);
    long long found = whole_or(ALL, key, -1);
    if (found < 0) return NVML_ERROR_NOT_SUPPORTED;
    *level = (unsigned)found;
    return NVML_SUCCESS;
}

API int nvmlDeviceGetP2PStatus(device *one, device *other, unsigned kind, unsigned *status) {
    (void)kind;
    ENTER(one);
    ENTER(other);
    *status = (unsigned)whole_or(ALL, "p2p", NVML_P2P_STATUS_OK);
    return NVML_SUCCESS;
}

static int links_of(const device *which) { return (int)whole_or(which->number, "nvlinks", 0); }

API int nvmlDeviceGetNvLinkState(device *which, unsigned link, unsigned *active) {
    ENTER(which);
    WHOLE_ONLY(which);
    if (!links_of(which)) return NVML_ERROR_NOT_SUPPORTED;
    if ((int)link >= links_of(which)) return NVML_ERROR_INVALID_ARGUMENT;
    char key[KEY_MAX];
    snprintf(key, sizeof key, "nvlink.%u.down", link);
    *active = !whole_or(which->number, key, 0);
    return NVML_SUCCESS;
}

API int nvmlDeviceGetNvLinkRemotePciInfo_v2(device *which, unsigned link, nvmlPciInfo_t *info) {
    char value[VALUE_MAX];
    ENTER(which);
    if ((int)link >= links_of(which)) return NVML_ERROR_INVALID_ARGUMENT;
    if (!lookup(ALL, "nvswitch_bus", value, sizeof value)) {
        /* No switch: links go to the other devices in turn. */
        int others = count() - 1, other = others > 0 ? (int)link % others : 0;
        if (others <= 0) return NVML_ERROR_NOT_SUPPORTED;
        if (other >= which->number) other++;
        return nvmlDeviceGetPciInfo_v3(&table[other][0], info);
    }
    memset(info, 0, sizeof *info);
    snprintf(info->busId, sizeof info->busId, "%.30s", value);
    return NVML_SUCCESS;
}

API int nvmlDeviceGetNvLinkRemoteDeviceType(device *which, unsigned link, unsigned *kind) {
    char value[VALUE_MAX];
    ENTER(which);
    if ((int)link >= links_of(which)) return NVML_ERROR_INVALID_ARGUMENT;
    *kind = lookup(ALL, "nvswitch_bus", value, sizeof value) ? NVML_NVLINK_DEVICE_TYPE_SWITCH
                                                             : NVML_NVLINK_DEVICE_TYPE_GPU;
    return NVML_SUCCESS;
}

API int nvmlDeviceGetNvLinkErrorCounter(device *which, unsigned link, unsigned kind, unsigned long long *errors) {
    (void)kind;
    ENTER(which);
    if ((int)link >= links_of(which)) return NVML_ERROR_INVALID_ARGUMENT;
    return read_ulong(which, "nvlink_errors", errors);
}

API int nvmlDeviceGetFieldValues(device *which, int size, c_nvmlFieldValue_t *values) {
    ENTER(which);
    for (int i = 0; i < size; i++) {
        unsigned whole = 0;
        values[i].nvmlReturn = NVML_ERROR_NOT_SUPPORTED;
        values[i].valueType = NVML_VALUE_TYPE_UNSIGNED_INT;
        if (values[i].fieldId == NVML_FI_DEV_MEMORY_TEMP) values[i].nvmlReturn = read_uint(which, "memory_temp", &whole);
        if (values[i].fieldId == NVML_FI_DEV_NVLINK_LINK_COUNT && links_of(which))
            whole = (unsigned)links_of(which), values[i].nvmlReturn = NVML_SUCCESS;
        values[i].value.uiVal = whole;
    }
    return NVML_SUCCESS;
}

/* -- who uses it */

static int list_processes(device *which, unsigned *size, c_nvmlProcessInfo_v2_t *infos) {
    char text[VALUE_MAX], *rest = text, *word;
    unsigned found = 0, room = *size;
    if (!lookup(which->number, "processes", text, sizeof text)) text[0] = 0;
    while ((word = strsep(&rest, ","))) {
        unsigned pid;
        long long mib;
        int instance = 0;
        if (sscanf(word, "%u:%lld:%d", &pid, &mib, &instance) < 2) continue;
        if (which->instance && instance != which->instance) continue;
        if (infos && found < room) {
            memset(&infos[found], 0, sizeof infos[found]);
            infos[found].pid = pid;
            infos[found].usedGpuMemory = mib < 0 ? ~0ull : (unsigned long long)mib << 20;
            infos[found].gpuInstanceId = instance ? (unsigned)instance : 0xffffffffu;
            infos[found].computeInstanceId = instance ? 0 : 0xffffffffu;
        }
        found++;
    }
    *size = found;
    return found > room ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;
}

API int nvmlDeviceGetComputeRunningProcesses_v3(device *which, unsigned *size, c_nvmlProcessInfo_v2_t *infos) {
    ENTER(which);
    return list_processes(which, size, infos);
}

API int nvmlDeviceGetComputeRunningProcesses_v2(device *which, unsigned *size, c_nvmlProcessInfo_v2_t *infos) {
    ENTER(which);
    return list_processes(which, size, infos);
}

API int nvmlDeviceGetGraphicsRunningProcesses_v3(device *which, unsigned *size, c_nvmlProcessInfo_v2_t *infos) {
    (void)infos;
    ENTER(which);
    *size = 0;
    return NVML_SUCCESS;
}

API int nvmlDeviceGetMPSComputeRunningProcesses_v3(device *which, unsigned *size, c_nvmlProcessInfo_v2_t *infos) {
    return nvmlDeviceGetGraphicsRunningProcesses_v3(which, size, infos);
}

/* -- MIG: an instance is in a slot; mig.I.made says what was made of it (0: nothing, 1: a GPU instance, 2: with its
 * compute instance), and else it is there when I is below mig. */

typedef struct { int which, id, slices, memory_slices, mib; const char *name; } mig_profile;

static const mig_profile PROFILES[] = {
    {NVML_GPU_INSTANCE_PROFILE_1_SLICE, 19, 1, 1, 9856, "1g.10gb"},
    {NVML_GPU_INSTANCE_PROFILE_1_SLICE_REV1, 20, 1, 1, 9856, "1g.10gb+me"},
    {NVML_GPU_INSTANCE_PROFILE_1_SLICE_REV2, 15, 1, 2, 19968, "1g.20gb"},
    {NVML_GPU_INSTANCE_PROFILE_2_SLICE, 14, 2, 2, 20096, "2g.20gb"},
    {NVML_GPU_INSTANCE_PROFILE_3_SLICE, 9, 3, 4, 40448, "3g.40gb"},
    {NVML_GPU_INSTANCE_PROFILE_4_SLICE, 5, 4, 4, 40448, "4g.40gb"},
    {NVML_GPU_INSTANCE_PROFILE_7_SLICE, 0, 7, 8, 80896, "7g.80gb"},
};
enum { PROFILE_COUNT = sizeof PROFILES / sizeof *PROFILES };

static int made_of(int number, int slot) {
    char key[KEY_MAX];
    snprintf(key, sizeof key, "mig.%d.made", slot);
    long long said = whole_or(number, key, -1);
    return said >= 0 ? (int)said : slot < (int)whole_or(number, "mig", 0) ? 2 : 0;
}

static const mig_profile *profile_of(int number, int slot) {
    char key[KEY_MAX], name[VALUE_MAX];
    snprintf(key, sizeof key, "mig.%d.profile", slot);
    if (lookup(number, key, name, sizeof name))
        for (int i = 0; i < PROFILE_COUNT; i++)
            if (!strcmp(PROFILES[i].name, name)) return &PROFILES[i];
    return &PROFILES[0];
}

static const mig_profile *profile_with(int id) {
    for (int i = 0; i < PROFILE_COUNT; i++)
        if (PROFILES[i].id == id) return &PROFILES[i];
    return NULL;
}

static int room_for(int number, const mig_profile *wanted) {
    int slices = 7, memory = 8;
    for (int slot = 0; slot < MAX_INSTANCES - 1; slot++)
        if (made_of(number, slot)) {
            slices -= profile_of(number, slot)->slices;
            memory -= profile_of(number, slot)->memory_slices;
        }
    int by_slices = slices / wanted->slices, by_memory = memory / wanted->memory_slices;
    return by_slices < by_memory ? by_slices : by_memory;
}

static int any_made(int number) {
    for (int slot = 0; slot < MAX_INSTANCES - 1; slot++)
        if (made_of(number, slot)) return 1;
    return 0;
}

static int has_process(int number, int instance) {
    device whole = {number, instance};
    unsigned found = 0;
    list_processes(&whole, &found, NULL);
    return found > 0;
}

API int nvmlDeviceGetMigMode(device *which, unsigned *now, unsigned *pending) {
    ENTER(which);
    WHOLE_ONLY(which);
    long long mode = whole_or(which->number, "mig_mode", whole_or(which->number, "mig", -1) > 0 ? 1 : -1);
    if (mode < 0) return NVML_ERROR_NOT_SUPPORTED;
    *now = (unsigned)mode;
    *pending = (unsigned)whole_or(which->number, "mig_pending", mode);
    return NVML_SUCCESS;
}

API int nvmlDeviceSetMigMode(device *which, unsigned mode, int *status) {
    unsigned now, pending;
    ENTER(which);
    int code = nvmlDeviceGetMigMode(which, &now, &pending);
    if (code != NVML_SUCCESS) return code;
    if (any_made(which->number) || has_process(which->number, 0)) return NVML_ERROR_IN_USE;
    remember(which->number, "mig_pending", "%u", mode);
    *status = NVML_SUCCESS;
    if (mode != now && whole_or(which->number, "mig_needs_reset", 0)) *status = NVML_ERROR_RESET_REQUIRED;
    else remember(which->number, "mig_mode", "%u", mode);
    return NVML_SUCCESS;
}

API int nvmlDeviceGetMaxMigDeviceCount(device *which, unsigned *found) {
    ENTER(which);
    /* As real drivers: none at all as long as MIG is off. */
    *found = whole_or(which->number, "mig_mode", whole_or(which->number, "mig", 0)) > 0 ? MAX_INSTANCES - 1 : 0;
    return NVML_SUCCESS;
}

API int nvmlDeviceGetMigDeviceHandleByIndex(device *which, unsigned index, device **result) {
    ENTER(which);
    if (index >= MAX_INSTANCES - 1 || made_of(which->number, (int)index) < 2) return NVML_ERROR_NOT_FOUND;
    *result = &table[which->number][index + 1];
    return NVML_SUCCESS;
}

API int nvmlDeviceIsMigDeviceHandle(device *which, unsigned *answer) {
    *answer = which->instance > 0;
    return NVML_SUCCESS;
}

API int nvmlDeviceGetDeviceHandleFromMigDeviceHandle(device *which, device **whole) {
    if (!which->instance) return NVML_ERROR_INVALID_ARGUMENT;
    *whole = &table[which->number][0];
    return NVML_SUCCESS;
}

API int nvmlDeviceGetGpuInstanceId(device *which, unsigned *id) {
    ENTER(which);
    if (!which->instance) return NVML_ERROR_NOT_SUPPORTED;
    *id = (unsigned)which->instance;
    return NVML_SUCCESS;
}

API int nvmlDeviceGetComputeInstanceId(device *which, unsigned *id) {
    ENTER(which);
    if (!which->instance) return NVML_ERROR_NOT_SUPPORTED;
    *id = 0;
    return NVML_SUCCESS;
}

API int nvmlDeviceGetGpuInstanceProfileInfoV(
    device *which, unsigned profile, c_nvmlGpuInstanceProfileInfo_v2_t *info) {
    ENTER(which);
    WHOLE_ONLY(which);
    if (whole_or(which->number, "mig_mode", -1) < 0) return NVML_ERROR_NOT_SUPPORTED;
    for (int i = 0; i < PROFILE_COUNT; i++)
        if (PROFILES[i].which == (int)profile) {
            info->id = (unsigned)PROFILES[i].id;
            info->sliceCount = (unsigned)PROFILES[i].slices;
            info->instanceCount = (unsigned)(7 / PROFILES[i].slices);
            info->multiprocessorCount = 16u * (unsigned)PROFILES[i].slices;
            info->memorySizeMB = (unsigned long long)PROFILES[i].mib;
            snprintf(info->name, sizeof info->name, "MIG %s", PROFILES[i].name);
            return NVML_SUCCESS;
        }
    return profile < NVML_GPU_INSTANCE_PROFILE_COUNT ? NVML_ERROR_NOT_SUPPORTED : NVML_ERROR_INVALID_ARGUMENT;
}

API int nvmlDeviceGetGpuInstanceRemainingCapacity(device *which, unsigned id, unsigned *found) {
    ENTER(which);
    const mig_profile *wanted = profile_with((int)id);
    if (!wanted) return NVML_ERROR_INVALID_ARGUMENT;
    if (!whole_or(which->number, "mig_mode", 0)) return NVML_ERROR_NOT_SUPPORTED;
    *found = (unsigned)room_for(which->number, wanted);
    return NVML_SUCCESS;
}

API int nvmlDeviceCreateGpuInstance(device *which, unsigned id, gpu_instance **result) {
    char key[KEY_MAX];
    ENTER(which);
    WHOLE_ONLY(which);
    const mig_profile *wanted = profile_with((int)id);
    if (!wanted) return NVML_ERROR_INVALID_ARGUMENT;
    if (!whole_or(which->number, "mig_mode", 0)) return NVML_ERROR_NOT_SUPPORTED;
    if (room_for(which->number, wanted) < 1) return NVML_ERROR_INSUFFICIENT_RESOURCES;
    for (int slot = 0; slot < MAX_INSTANCES - 1; slot++)
        if (!made_of(which->number, slot)) {
            snprintf(key, sizeof key, "mig.%d.profile", slot);
            remember(which->number, key, "%s", wanted->name);
            snprintf(key, sizeof key, "mig.%d.mib", slot);
            remember(which->number, key, "%d", wanted->mib);
            snprintf(key, sizeof key, "mig.%d.used_mib", slot);
            remember(which->number, key, "%d", 12);
            snprintf(key, sizeof key, "mig.%d.uuid", slot);
            remember(which->number, key, "MIG-%08d-0000-5000-8000-%012d", which->number, slot);
            snprintf(key, sizeof key, "mig.%d.made", slot);
            remember(which->number, key, "1");
            *result = &made[which->number][slot + 1];
            return NVML_SUCCESS;
        }
    return NVML_ERROR_INSUFFICIENT_RESOURCES;
}

API int nvmlDeviceGetGpuInstanceById(device *which, unsigned id, gpu_instance **result) {
    ENTER(which);
    if (!id || id >= MAX_INSTANCES || !made_of(which->number, (int)id - 1)) return NVML_ERROR_NOT_FOUND;
    *result = &made[which->number][id];
    return NVML_SUCCESS;
}

API int nvmlDeviceGetGpuInstances(device *which, unsigned id, gpu_instance **found, unsigned *count_of) {
    ENTER(which);
    *count_of = 0;
    for (int slot = 0; slot < MAX_INSTANCES - 1; slot++)
        if (made_of(which->number, slot) && profile_of(which->number, slot)->id == (int)id)
            found[(*count_of)++] = &made[which->number][slot + 1];
    return NVML_SUCCESS;
}

API int nvmlGpuInstanceGetInfo(gpu_instance *instance, c_nvmlGpuInstanceInfo_t *info) {
    int said = scripted(__func__, instance->number);
    if (said != PASS) return said;
    info->device = &table[instance->number][0];
    info->id = (unsigned)instance->id;
    info->profileId = (unsigned)profile_of(instance->number, instance->id - 1)->id;
    info->placement.start = (unsigned)instance->id - 1;
    info->placement.size = (unsigned)profile_of(instance->number, instance->id - 1)->memory_slices;
    return NVML_SUCCESS;
}

API int nvmlGpuInstanceDestroy(gpu_instance *instance) {
    char key[KEY_MAX];
    int said = scripted(__func__, instance->number);
    if (said != PASS) return said;
    int state = made_of(instance->number, instance->id - 1);
    if (!state) return NVML_ERROR_NOT_FOUND;
    if (state == 2) return NVML_ERROR_IN_USE; /* its compute instance goes first */
    snprintf(key, sizeof key, "mig.%d.made", instance->id - 1);
    remember(instance->number, key, "0");
    return NVML_SUCCESS;
}

API int nvmlGpuInstanceGetComputeInstanceProfileInfoV(
    gpu_instance *instance, unsigned profile, unsigned engines, c_nvmlComputeInstanceProfileInfo_v2_t *info) {
    static const int SLICES[] = {1, 2, 3, 4, 7, 8, 6, 1, 7};
    int said = scripted(__func__, instance->number);
    if (said != PASS) return said;
    if (profile >= sizeof SLICES / sizeof *SLICES || engines) return NVML_ERROR_INVALID_ARGUMENT;
    if (profile > 4 || SLICES[profile] > profile_of(instance->number, instance->id - 1)->slices)
        return NVML_ERROR_NOT_SUPPORTED;
    info->id = profile;
    info->sliceCount = (unsigned)SLICES[profile];
    info->instanceCount = 1;
    return NVML_SUCCESS;
}

API int nvmlGpuInstanceCreateComputeInstance(gpu_instance *instance, unsigned id, gpu_instance **result) {
    char key[KEY_MAX];
    (void)id;
    int said = scripted(__func__, instance->number);
    if (said != PASS) return said;
    if (made_of(instance->number, instance->id - 1) != 1) return NVML_ERROR_INSUFFICIENT_RESOURCES;
    snprintf(key, sizeof key, "mig.%d.made", instance->id - 1);
    remember(instance->number, key, "2");
    *result = instance;
    return NVML_SUCCESS;
}

API int nvmlGpuInstanceGetComputeInstanceById(gpu_instance *instance, unsigned id, gpu_instance **result) {
    int said = scripted(__func__, instance->number);
    if (said != PASS) return said;
    if (id || made_of(instance->number, instance->id - 1) != 2) return NVML_ERROR_NOT_FOUND;
    *result = instance;
    return NVML_SUCCESS;
}

API int nvmlComputeInstanceDestroy(gpu_instance *instance) {
    char key[KEY_MAX];
    int said = scripted(__func__, instance->number);
    if (said != PASS) return said;
    if (has_process(instance->number, instance->id)) return NVML_ERROR_IN_USE;
    snprintf(key, sizeof key, "mig.%d.made", instance->id - 1);
    remember(instance->number, key, "1");
    return NVML_SUCCESS;
}

API int nvmlDeviceGetAttributes_v2(device *which, c_nvmlDeviceAttributes *found) {
    unsigned long long total, used, kept;
    unsigned slices = 1;
    char key[KEY_MAX], profile[VALUE_MAX];
    ENTER(which);
    if (!which->instance) return NVML_ERROR_NOT_SUPPORTED;
    int code = memory_of(which, &total, &used, &kept);
    if (code != NVML_SUCCESS) return code;
    snprintf(key, sizeof key, "mig.%d.profile", which->instance - 1);
    if (read_text(which, key, profile, sizeof profile) == NVML_SUCCESS) sscanf(profile, "%ug", &slices);
    memset(found, 0, sizeof *found);
    found->multiprocessorCount = 16 * slices;
    found->gpuInstanceSliceCount = found->computeInstanceSliceCount = slices;
    found->memorySizeMB = total >> 20;
    return NVML_SUCCESS;
}

/* -- events */

API int nvmlDeviceGetSupportedEventTypes(device *which, unsigned long long *kinds) {
    ENTER(which);
    *kinds = (unsigned long long)whole_or(which->number, "events", nvmlEventTypeXidCriticalError |
        nvmlEventTypeSingleBitEccError | nvmlEventTypeDoubleBitEccError | nvmlEventTypeSingleBitEccErrorStorm);
    return NVML_SUCCESS;
}

static void events_path(char *path, size_t size) { snprintf(path, size, "%s.events", getenv(STATE_VARIABLE)); }

API int nvmlEventSetCreate(event_set **result) {
    char path[PATH_MAX + 16];
    struct stat found;
    int said = scripted(__func__, ALL);
    if (said != PASS) return said;
    events_path(path, sizeof path);
    pthread_mutex_lock(&set_lock);
    event_set *free_one = NULL;
    for (int i = 0; i < MAX_SETS && !free_one; i++)
        if (!sets[i].used) free_one = &sets[i];
    if (free_one) {
        memset(free_one, 0, sizeof *free_one);
        free_one->used = 1;
        free_one->offset = stat(path, &found) ? 0 : found.st_size;
    }
    pthread_mutex_unlock(&set_lock);
    *result = free_one;
    return free_one ? NVML_SUCCESS : NVML_ERROR_INSUFFICIENT_RESOURCES;
}

API int nvmlDeviceRegisterEvents(device *which, unsigned long long kinds, event_set *set) {
    ENTER(which);
    set->registered[which->number] = kinds;
    return NVML_SUCCESS;
}

API int nvmlEventSetWait_v2(event_set *set, c_nvmlEventData_t *data, unsigned timeout_ms) {
    char path[PATH_MAX + 16], line[VALUE_MAX];
    events_path(path, sizeof path);
    for (unsigned waited_ms = 0;; waited_ms += 2) {
        int said = scripted(__func__, ALL);
        if (said != PASS) return said;
        if (!set->used) return NVML_ERROR_UNINITIALIZED;
        FILE *file = fopen(path, "r");
        if (file) {
            fseek(file, (long)set->offset, SEEK_SET);
            while (fgets(line, sizeof line, file) && strchr(line, '\n')) {
                int number;
                unsigned long long kind, value;
                set->offset = ftell(file);
                if (sscanf(line, "%d %llu %llu", &number, &kind, &value) != 3 || number < 0 || number >= MAX_DEVICES)
                    continue;
                if (!(set->registered[number] & kind)) continue;
                memset(data, 0, sizeof *data);
                data->device = &table[number][0];
                data->eventType = kind;
                data->eventData = value;
                data->gpuInstanceId = data->computeInstanceId = 0xffffffffu;
                fclose(file);
                return NVML_SUCCESS;
            }
            fclose(file);
        }
        if (waited_ms >= timeout_ms) return NVML_ERROR_TIMEOUT;
        usleep(2000);
    }
}

API int nvmlEventSetFree(event_set *set) {
    set->used = 0;
    return NVML_SUCCESS;
}
