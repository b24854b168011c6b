/* A libnvidia-ml.so.1 for tests: devices and behaviour come from the text file named by NVML_STUB_STATE.
 *
 * Lines are KEY=VALUE. Global keys: count, driver, init (error code of nvmlInit), hang and abort (name of a
 * function that never returns, or that aborts). Per device N: N.uuid N.name N.total_mib N.used_mib N.bus
 * N.capability N.numa N.util N.temp N.power_mw N.lost N.mig (number of instances). A missing per-device key
 * means "not supported". The file is read again at every call, so a test changes it under a running probe.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SUCCESS = 0, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, GPU_IS_LOST = 15 };
enum { MAX_DEVICES = 16, MAX_INSTANCES = 8 };

#define API __attribute__((visibility("default")))

typedef struct { int number; int instance; } device;
typedef struct { unsigned long long total, free, used; } memory;
typedef struct { unsigned int gpu, memory; } utilization;
typedef struct {
    char bus_legacy[16];
    unsigned int domain, bus_number, device_number, device_id, subsystem_id;
    char bus_id[32];
} pci_info;

static device table[MAX_DEVICES][MAX_INSTANCES + 1];

static int lookup(const char *key, char *value, size_t size) {
    const char *path = getenv("NVML_STUB_STATE");
    FILE *file = path ? fopen(path, "r") : NULL;
    char line[512];
    size_t length = strlen(key);
    int found = 0;
    if (!file) return 0;
    while (!found && fgets(line, sizeof line, file)) {
        line[strcspn(line, "\n")] = 0;
        if (!strncmp(line, key, length) && line[length] == '=') {
            snprintf(value, size, "%s", line + length + 1);
            found = 1;
        }
    }
    fclose(file);
    return found;
}

static int lookup_number(const char *key, long fallback) {
    char value[64];
    return lookup(key, value, sizeof value) ? (int)atol(value) : (int)fallback;
}

static void behave(const char *function) {
    char value[128];
    if (lookup("abort", value, sizeof value) && !strcmp(value, function)) abort();
    while (lookup("hang", value, sizeof value) && !strcmp(value, function)) pause();
}

/* The text of device property NAME; an error code when the device is lost or does not have it. */
static int property(device *which, const char *name, char *value, size_t size) {
    char key[64];
    snprintf(key, sizeof key, "%d.lost", which->number);
    if (lookup_number(key, 0)) return GPU_IS_LOST;
    snprintf(key, sizeof key, "%d.%s", which->number, name);
    return lookup(key, value, size) ? SUCCESS : NOT_SUPPORTED;
}

static int number_property(device *which, const char *name, unsigned int *result) {
    char value[64];
    int code = property(which, name, value, sizeof value);
    if (code == SUCCESS) *result = (unsigned int)strtoul(value, NULL, 10);
    return code;
}

API int nvmlInitWithFlags(unsigned int flags) {
    (void)flags;
    behave("nvmlInit");
    for (int number = 0; number < MAX_DEVICES; number++)
        for (int instance = 0; instance <= MAX_INSTANCES; instance++)
            table[number][instance] = (device){number, instance};
    return lookup_number("init", 0);
}

API int nvmlShutdown(void) { return SUCCESS; }

API const char *nvmlErrorString(int code) {
    switch (code) {
    case NOT_SUPPORTED: return "Not Supported";
    case GPU_IS_LOST: return "GPU is lost";
    case 9: return "Driver Not Loaded";
    default: return "Error";
    }
}

API int nvmlSystemGetDriverVersion(char *version, unsigned int size) {
    if (!lookup("driver", version, size)) snprintf(version, size, "0.0");
    return SUCCESS;
}

API int nvmlDeviceGetCount_v2(unsigned int *count) {
    *count = (unsigned int)lookup_number("count", 0);
    return SUCCESS;
}

API int nvmlDeviceGetHandleByIndex_v2(unsigned int index, device **result) {
    if (index >= MAX_DEVICES) return INVALID_ARGUMENT;
    *result = &table[index][0];
    return SUCCESS;
}

API int nvmlDeviceGetMigMode(device *which, unsigned int *current, unsigned int *pending) {
    int code = number_property(which, "mig", current);
    *pending = *current = code == SUCCESS && *current > 0;
    return code;
}

API int nvmlDeviceGetMaxMigDeviceCount(device *which, unsigned int *count) {
    (void)which;
    *count = MAX_INSTANCES - 1;
    return SUCCESS;
}

API int nvmlDeviceGetMigDeviceHandleByIndex(device *which, unsigned int index, device **result) {
    unsigned int there = 0;
    number_property(which, "mig", &there);
    if (index >= there) return NOT_FOUND;
    *result = &table[which->number][index + 1];
    return SUCCESS;
}

API int nvmlDeviceGetUUID(device *which, char *uuid, unsigned int size) {
    char whole[96];
    int code = property(which, "uuid", whole, sizeof whole);
    if (code == SUCCESS && which->instance) snprintf(uuid, size, "MIG-%s-%d", whole, which->instance - 1);
    else if (code == SUCCESS) snprintf(uuid, size, "%s", whole);
    return code;
}

API int nvmlDeviceGetName(device *which, char *name, unsigned int size) {
    return which->instance ? NOT_SUPPORTED : property(which, "name", name, size);
}

API int nvmlDeviceGetMemoryInfo(device *which, memory *info) {
    unsigned int total = 0, used = 0;
    int code = number_property(which, "total_mib", &total);
    if (code == SUCCESS) code = number_property(which, "used_mib", &used);
    if (which->instance) total /= MAX_INSTANCES;
    info->total = (unsigned long long)total << 20;
    info->used = (unsigned long long)used << 20;
    info->free = info->total - info->used;
    return code;
}

API int nvmlDeviceGetPciInfo_v3(device *which, pci_info *info) {
    memset(info, 0, sizeof *info);
    return property(which, "bus", info->bus_id, sizeof info->bus_id);
}

API int nvmlDeviceGetCudaComputeCapability(device *which, int *major, int *minor) {
    char value[32];
    int code = property(which, "capability", value, sizeof value);
    if (code == SUCCESS && sscanf(value, "%d.%d", major, minor) != 2) code = NOT_SUPPORTED;
    return code;
}

API int nvmlDeviceGetNumaNodeId(device *which, unsigned int *node) { return number_property(which, "numa", node); }

API int nvmlDeviceGetUtilizationRates(device *which, utilization *rates) {
    behave("nvmlDeviceGetUtilizationRates");
    rates->memory = 0;
    return which->instance ? NOT_SUPPORTED : number_property(which, "util", &rates->gpu);
}

API int nvmlDeviceGetTemperature(device *which, int sensor, unsigned int *celsius) {
    (void)sensor;
    return number_property(which, "temp", celsius);
}

API int nvmlDeviceGetPowerUsage(device *which, unsigned int *milliwatts) {
    return number_property(which, "power_mw", milliwatts);
}
