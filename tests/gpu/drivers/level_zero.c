/* A libze_loader.so.1 without a driver: Sysman alone. Its state is as state.h says, in the file named by
 * LEVEL_ZERO_STUB_STATE.
 *
 * Global keys: count, init (what zesInit returns), drivers (1). Keys of device N: uuid (32 hexadecimal digits) serial
 * name pci_id driver subdevices bdf total_mib used_mib memory_health (1: good) temp memory_temp max_temp energy_uj
 * energy_at_us limit_mw default_limit_mw min_limit_mw max_limit_mw mhz max_mhz mem_mhz throttle busy_us busy_at_us
 * ecc_state ras_corrected ras_uncorrected pcie_gen pcie_width max_pcie_gen max_pcie_width replays processes
 * (PID:MIB,...) fabric (number of ports) fabric.P.remote (number of the device at its end) fabric.P.status,
 * lost (1). A missing key of a device means "not supported".
 *
 * Events are lines "DEVICE FLAGS" appended to the file LEVEL_ZERO_STUB_STATE.events.
 */
#define STATE_VARIABLE "LEVEL_ZERO_STUB_STATE"
#include "state.h"
#include "layout.h"

enum { MAX_DEVICES = 16, MAX_PORTS = 16 };

/* The part of zes_api.h that pyzes does not have; layouts as Level Zero 1.15 has them. */
typedef struct { int stype; void *next; int kind; unsigned char on_subdevice; unsigned subdevice; } ras_properties;
typedef struct { int stype; void *next; unsigned long long category[7]; } ras_state;
typedef struct { unsigned fabric, attached; unsigned char port; } port_id;
typedef struct { long long bit_rate; int width; } port_speed;
typedef struct {
    int stype; void *next; char model[256]; unsigned char on_subdevice; unsigned subdevice;
    port_id id; port_speed receive, send;
} port_properties;
typedef struct {
    int stype; void *next; int status; unsigned quality, failure; port_id remote; port_speed receive, send;
} port_state;
typedef struct { int stype; void *next; unsigned reset_reasons; int repaired; } device_state;

enum { PART_DEVICE, PART_MEMORY, PART_POWER, PART_CLOCK, PART_MEMORY_CLOCK, PART_HEAT, PART_MEMORY_HEAT, PART_ENGINE,
       PART_CORRECTED, PART_UNCORRECTED, PART_PORT, PARTS = PART_PORT + MAX_PORTS };

typedef struct { int number, part; } handle;

static handle table[MAX_DEVICES][PARTS];
static handle driver;
static long long events_seen = -1;
static unsigned registered[MAX_DEVICES];
static int ready;

__attribute__((constructor)) static void fill(void) {
    for (int number = 0; number < MAX_DEVICES; number++)
        for (int part = 0; part < PARTS; part++) table[number][part] = (handle){number, part};
}

static int count(void) { return (int)whole_or(ALL, "count", 0); }

static int state_of(const char *function, const handle *which) {
    if (!which) return ZE_RESULT_ERROR_INVALID_NULL_HANDLE;
    int said = scripted(function, which->number);
    if (said != PASS) return said;
    if (!ready) return ZE_RESULT_ERROR_UNINITIALIZED;
    if (which->number >= count() || whole_or(which->number, "lost", 0)) return ZE_RESULT_ERROR_DEVICE_LOST;
    return ZE_RESULT_SUCCESS;
}

#define ENTER(which)                                    \
    do {                                                \
        int said_ = state_of(__func__, which);          \
        if (said_ != ZE_RESULT_SUCCESS) return said_;   \
    } while (0)
#define NUMBER(which, name, otherwise) whole_or((which)->number, name, otherwise)

static int has(const handle *which, const char *name) {
    char value[VALUE_MAX];
    return lookup(which->number, name, value, sizeof value);
}

#define HAVE(which, name) \
    do { if (!has(which, name)) return ZE_RESULT_ERROR_UNSUPPORTED_FEATURE; } while (0)

/* Give the parts of *which that it has as handles, by the protocol of all zes...Enum... functions. */
static int parts(const handle *which, const int *wanted, const char *const *names, int size, unsigned *found, handle **out) {
    unsigned there = 0;
    for (int i = 0; i < size; i++) {
        if (!has(which, names[i])) continue;
        if (out && there < *found) out[there] = &table[which->number][wanted[i]];
        there++;
    }
    *found = there;
    return ZE_RESULT_SUCCESS;
}

#define ENUMERATE(function, ...)                                                             \
    API int function(handle *which, unsigned *found, handle **out) {                         \
        static const struct { int part; const char *name; } all[] = {__VA_ARGS__};           \
        int wanted[8];                                                                       \
        const char *names[8];                                                                \
        int size = (int)(sizeof all / sizeof *all);                                          \
        ENTER(which);                                                                        \
        for (int i = 0; i < size; i++) wanted[i] = all[i].part, names[i] = all[i].name;      \
        return parts(which, wanted, names, size, found, out);                                \
    }

API int zesInit(unsigned flags) {
    (void)flags;
    int said = scripted(__func__, ALL);
    if (said == PASS) said = (int)whole_or(ALL, "init", ZE_RESULT_SUCCESS);
    if (said == ZE_RESULT_SUCCESS) ready = 1;
    return said;
}

API int zesDriverGet(unsigned *found, handle **out) {
    int said = scripted(__func__, ALL);
    if (said != PASS) return said;
    if (!ready) return ZE_RESULT_ERROR_UNINITIALIZED;
    unsigned there = (unsigned)whole_or(ALL, "drivers", 1);
    if (out && *found && there) out[0] = &driver;
    *found = there;
    return ZE_RESULT_SUCCESS;
}

API int zesDeviceGet(handle *of, unsigned *found, handle **out) {
    (void)of;
    int said = scripted(__func__, ALL);
    if (said != PASS) return said;
    if (out)
        for (unsigned i = 0; i < *found && (int)i < count(); i++) out[i] = &table[i][PART_DEVICE];
    *found = (unsigned)count();
    return ZE_RESULT_SUCCESS;
}

static void copy(const handle *which, const char *name, char *value, size_t size) {
    lookup(which->number, name, value, size);
}

API int zesDeviceGetProperties(handle *which, zes_device_properties_t *found) {
    char uuid[VALUE_MAX] = "";
    ENTER(which);
    HAVE(which, "name");
    found->core.type = ZE_DEVICE_TYPE_GPU;
    found->core.vendorId = 0x8086;
    found->core.deviceId = (unsigned)NUMBER(which, "pci_id", 0x0bd5);
    copy(which, "name", found->core.name, sizeof found->core.name);
    copy(which, "name", found->modelName, sizeof found->modelName);
    copy(which, "driver", found->driverVersion, sizeof found->driverVersion);
    copy(which, "serial", found->serialNumber, sizeof found->serialNumber);
    strcpy(found->vendorName, "Intel(R) Corporation");
    found->numSubdevices = (unsigned)NUMBER(which, "subdevices", 0);
    lookup(which->number, "uuid", uuid, sizeof uuid);
    /* Level Zero writes UUIDs from the last byte on. */
    for (int i = 0; i < 16 && strlen(uuid) == 32; i++) {
        unsigned byte;
        sscanf(uuid + 2 * i, "%2x", &byte);
        found->core.uuid.id[15 - i] = (unsigned char)byte;
    }
    return ZE_RESULT_SUCCESS;
}

API int zesDevicePciGetProperties(handle *which, zes_pci_properties_t *found) {
    char value[VALUE_MAX];
    ENTER(which);
    if (!lookup(which->number, "bdf", value, sizeof value)) return ZE_RESULT_ERROR_UNSUPPORTED_FEATURE;
    if (sscanf(value, "%x:%x:%x.%x", &found->address.domain, &found->address.bus, &found->address.device,
               &found->address.function) != 4) return ZE_RESULT_ERROR_UNKNOWN;
    found->maxSpeed.gen = (int)NUMBER(which, "max_pcie_gen", -1);
    found->maxSpeed.width = (int)NUMBER(which, "max_pcie_width", -1);
    return ZE_RESULT_SUCCESS;
}

API int zesDevicePciGetState(handle *which, zes_pci_state_t *found) {
    ENTER(which);
    HAVE(which, "pcie_gen");
    found->status = ZES_PCI_LINK_STATUS_GOOD;
    found->speed.gen = (int)NUMBER(which, "pcie_gen", -1);
    found->speed.width = (int)NUMBER(which, "pcie_width", -1);
    return ZE_RESULT_SUCCESS;
}

API int zesDevicePciGetStats(handle *which, zes_pci_stats_t *found) {
    ENTER(which);
    HAVE(which, "replays");
    memset(found, 0, sizeof *found);
    found->replayCounter = (unsigned long long)NUMBER(which, "replays", 0);
    return ZE_RESULT_SUCCESS;
}

API int zesDeviceGetEccState(handle *which, zes_device_ecc_properties_t *found) {
    ENTER(which);
    HAVE(which, "ecc_state");
    found->currentState = found->pendingState = (int)NUMBER(which, "ecc_state", 0);
    return ZE_RESULT_SUCCESS;
}

API int zesDeviceGetState(handle *which, device_state *found) {
    ENTER(which);
    found->reset_reasons = (unsigned)NUMBER(which, "reset_reasons", 0);
    found->repaired = 0;
    return ZE_RESULT_SUCCESS;
}

API int zesDeviceProcessesGetState(handle *which, unsigned *found, zes_process_state_t *list) {
    char text[VALUE_MAX], *rest = text, *word;
    unsigned there = 0, room = *found;
    ENTER(which);
    if (!lookup(which->number, "processes", text, sizeof text)) text[0] = 0;
    while ((word = strsep(&rest, ","))) {
        unsigned pid;
        unsigned long long mib;
        if (sscanf(word, "%u:%llu", &pid, &mib) != 2) continue;
        if (list && there < room) {
            memset(&list[there], 0, sizeof list[there]);
            list[there].processId = pid;
            list[there].memSize = mib << 20;
        }
        there++;
    }
    *found = there;
    return list && there > room ? (int)ZE_RESULT_ERROR_INVALID_SIZE : ZE_RESULT_SUCCESS;
}

/* -- memory, power, clocks, heat, engines */

ENUMERATE(zesDeviceEnumMemoryModules, {PART_MEMORY, "total_mib"})
ENUMERATE(zesDeviceEnumPowerDomains, {PART_POWER, "energy_uj"})
ENUMERATE(zesDeviceEnumFrequencyDomains, {PART_CLOCK, "mhz"}, {PART_MEMORY_CLOCK, "mem_mhz"})
ENUMERATE(zesDeviceEnumTemperatureSensors, {PART_HEAT, "temp"}, {PART_MEMORY_HEAT, "memory_temp"})
ENUMERATE(zesDeviceEnumEngineGroups, {PART_ENGINE, "busy_us"})
ENUMERATE(zesDeviceEnumRasErrorSets, {PART_CORRECTED, "ras_corrected"}, {PART_UNCORRECTED, "ras_uncorrected"})

API int zesMemoryGetProperties(handle *which, zes_mem_properties_t *found) {
    ENTER(which);
    found->type = ZES_MEM_TYPE_HBM;
    found->location = ZES_MEM_LOC_DEVICE;
    found->physicalSize = (unsigned long long)NUMBER(which, "total_mib", 0) << 20;
    found->busWidth = found->numChannels = -1;
    return ZE_RESULT_SUCCESS;
}

API int zesMemoryGetState(handle *which, zes_mem_state_t *found) {
    ENTER(which);
    HAVE(which, "used_mib");
    found->health = (int)NUMBER(which, "memory_health", ZES_MEM_HEALTH_OK);
    found->size = (unsigned long long)NUMBER(which, "total_mib", 0) << 20;
    found->free = found->size - ((unsigned long long)NUMBER(which, "used_mib", 0) << 20);
    return ZE_RESULT_SUCCESS;
}

API int zesPowerGetEnergyCounter(handle *which, zes_power_energy_counter_t *found) {
    ENTER(which);
    HAVE(which, "energy_uj");
    found->energy = (unsigned long long)NUMBER(which, "energy_uj", 0);
    found->timestamp = (unsigned long long)NUMBER(which, "energy_at_us", 0);
    return ZE_RESULT_SUCCESS;
}

API int zesPowerGetProperties(handle *which, zes_power_properties_t *found) {
    ENTER(which);
    found->onSubdevice = 0;
    found->canControl = (unsigned char)has(which, "limit_mw");
    found->defaultLimit = (int)NUMBER(which, "default_limit_mw", -1);
    found->minLimit = (int)NUMBER(which, "min_limit_mw", -1);
    found->maxLimit = (int)NUMBER(which, "max_limit_mw", -1);
    return ZE_RESULT_SUCCESS;
}

API int zesPowerGetLimitsExt(handle *which, unsigned *found, zes_power_limit_ext_desc_t *limits) {
    ENTER(which);
    HAVE(which, "limit_mw");
    if (limits && *found) {
        memset(limits, 0, sizeof *limits);
        limits->level = ZES_POWER_LEVEL_SUSTAINED;
        limits->limitUnit = ZES_LIMIT_UNIT_POWER;
        limits->enabled = 1;
        limits->limit = (int)NUMBER(which, "limit_mw", 0);
    }
    *found = 1;
    return ZE_RESULT_SUCCESS;
}

API int zesPowerSetLimitsExt(handle *which, unsigned *found, zes_power_limit_ext_desc_t *limits) {
    ENTER(which);
    HAVE(which, "limit_mw");
    if (*found != 1) return ZE_RESULT_ERROR_INVALID_ARGUMENT;
    if (limits->limit < NUMBER(which, "min_limit_mw", 0) || limits->limit > NUMBER(which, "max_limit_mw", 0))
        return ZE_RESULT_ERROR_INVALID_ARGUMENT;
    remember(which->number, "limit_mw", "%d", limits->limit);
    return ZE_RESULT_SUCCESS;
}

API int zesFrequencyGetProperties(handle *which, zes_freq_properties_t *found) {
    ENTER(which);
    found->type = which->part == PART_CLOCK ? ZES_FREQ_DOMAIN_GPU : ZES_FREQ_DOMAIN_MEMORY;
    found->min = 0;
    found->max = (double)NUMBER(which, which->part == PART_CLOCK ? "max_mhz" : "max_mem_mhz", -1);
    return ZE_RESULT_SUCCESS;
}

API int zesFrequencyGetState(handle *which, zes_freq_state_t *found) {
    ENTER(which);
    found->actual = found->request = (double)NUMBER(which, which->part == PART_CLOCK ? "mhz" : "mem_mhz", -1);
    found->throttleReasons = (unsigned)NUMBER(which, "throttle", 0);
    return ZE_RESULT_SUCCESS;
}

API int zesTemperatureGetProperties(handle *which, zes_temp_properties_t *found) {
    ENTER(which);
    found->type = which->part == PART_HEAT ? ZES_TEMP_SENSORS_GPU : ZES_TEMP_SENSORS_MEMORY;
    found->maxTemperature = (double)NUMBER(which, "max_temp", -1);
    return ZE_RESULT_SUCCESS;
}

API int zesTemperatureGetState(handle *which, double *celsius) {
    ENTER(which);
    return lookup_real(which->number, which->part == PART_HEAT ? "temp" : "memory_temp", celsius)
               ? ZE_RESULT_SUCCESS : (int)ZE_RESULT_ERROR_UNSUPPORTED_FEATURE;
}

API int zesEngineGetProperties(handle *which, zes_engine_properties_t *found) {
    ENTER(which);
    found->type = ZES_ENGINE_GROUP_ALL;
    found->onSubdevice = 0;
    return ZE_RESULT_SUCCESS;
}

API int zesEngineGetActivity(handle *which, zes_engine_stats_t *found) {
    ENTER(which);
    found->activeTime = (unsigned long long)NUMBER(which, "busy_us", 0);
    found->timestamp = (unsigned long long)NUMBER(which, "busy_at_us", 0);
    return ZE_RESULT_SUCCESS;
}

/* -- errors, fabric and events, which pyzes does not have */

API int zesRasGetProperties(handle *which, ras_properties *found) {
    ENTER(which);
    found->kind = which->part == PART_CORRECTED ? 0 : 1;
    found->on_subdevice = 0;
    return ZE_RESULT_SUCCESS;
}

API int zesRasGetState(handle *which, unsigned char clear, ras_state *found) {
    (void)clear;
    ENTER(which);
    memset(found->category, 0, sizeof found->category);
    found->category[4] = (unsigned long long)NUMBER(which, which->part == PART_CORRECTED ? "ras_corrected" : "ras_uncorrected", 0);
    return ZE_RESULT_SUCCESS;
}

API int zesDeviceEnumFabricPorts(handle *which, unsigned *found, handle **out) {
    ENTER(which);
    unsigned there = (unsigned)NUMBER(which, "fabric", 0);
    if (!there) return ZE_RESULT_ERROR_UNSUPPORTED_FEATURE;
    for (unsigned i = 0; out && i < *found && i < there && i < MAX_PORTS; i++)
        out[i] = &table[which->number][PART_PORT + i];
    *found = there;
    return ZE_RESULT_SUCCESS;
}

API int zesFabricPortGetProperties(handle *which, port_properties *found) {
    ENTER(which);
    strcpy(found->model, "XeLink");
    found->id = (port_id){(unsigned)which->number + 100, 0, (unsigned char)(which->part - PART_PORT + 1)};
    return ZE_RESULT_SUCCESS;
}

API int zesFabricPortGetState(handle *which, port_state *found) {
    char key[KEY_MAX];
    ENTER(which);
    snprintf(key, sizeof key, "fabric.%d.status", which->part - PART_PORT);
    found->status = (int)NUMBER(which, key, 1);
    snprintf(key, sizeof key, "fabric.%d.remote", which->part - PART_PORT);
    found->remote = (port_id){(unsigned)NUMBER(which, key, 0) + 100, 0, 1};
    return ZE_RESULT_SUCCESS;
}

API int zesDeviceEventRegister(handle *which, unsigned kinds) {
    char path[PATH_MAX + 16];
    struct stat found;
    ENTER(which);
    /* From here on nothing is missed, whenever somebody listens. */
    snprintf(path, sizeof path, "%s.events", getenv(STATE_VARIABLE));
    if (events_seen < 0) events_seen = stat(path, &found) ? 0 : found.st_size;
    registered[which->number] = kinds;
    return ZE_RESULT_SUCCESS;
}

API int zesDriverEventListenEx(handle *of, unsigned long long timeout_ms, unsigned size, handle **devices, unsigned *number, unsigned *kinds) {
    char path[PATH_MAX + 16], line[VALUE_MAX];
    (void)of;
    snprintf(path, sizeof path, "%s.events", getenv(STATE_VARIABLE));
    memset(kinds, 0, size * sizeof *kinds);
    *number = 0;
    for (unsigned long long waited_ms = 0;; waited_ms += 2) {
        int said = scripted(__func__, ALL);
        if (said != PASS) return said;
        FILE *file = fopen(path, "r");
        if (file) {
            fseek(file, (long)events_seen, SEEK_SET);
            while (fgets(line, sizeof line, file) && strchr(line, '\n')) {
                int device;
                unsigned flags;
                events_seen = ftell(file);
                if (sscanf(line, "%d %u", &device, &flags) != 2) continue;
                for (unsigned i = 0; i < size; i++)
                    if (devices[i]->number == device && registered[device] & flags) kinds[i] |= flags, ++*number;
            }
            fclose(file);
        }
        if (*number || waited_ms >= timeout_ms) return ZE_RESULT_SUCCESS;
        usleep(2000);
    }
}
