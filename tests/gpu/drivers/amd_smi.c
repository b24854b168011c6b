/* A libamd_smi.so without a driver. Its state is as state.h says, in the file named by AMD_SMI_STUB_STATE.
 *
 * Global keys: count, init (what amdsmi_init returns), driver. Keys of device N: uuid serial (hexadecimal) name board
 * gfx (target, as 0x942) pci_id total_mib used_mib bdf numa util memory_util edge_c hotspot_c vram_c critical_c power_w
 * limit_uw default_limit_uw min_limit_uw max_limit_uw sm_mhz mem_mhz max_sm_mhz max_mem_mhz energy (counts) resolution
 * (microjoules each) ecc_corrected ecc_uncorrected bad_pages pcie_width pcie_mts max_pcie_width max_pcie_mts replays
 * compute_partition memory_partition partition_id render hive processes (PID:MIB,...) vbios throttle_power
 * throttle_heat lost (1: it answers no more). link.A.B (TYPE:HOPS:WEIGHT) is between two devices. A missing key of a
 * device means "not supported".
 *
 * Events are lines "DEVICE KIND TEXT" appended to the file AMD_SMI_STUB_STATE.events.
 */
#define STATE_VARIABLE "AMD_SMI_STUB_STATE"
#include "state.h"
#include "layout.h"
#include <math.h>

enum { MAX_DEVICES = 64, MAX_PROCESSES = 64 };

typedef struct { int number; } device;

static device table[MAX_DEVICES];
static long long events_seen;
static unsigned long long masks[MAX_DEVICES];
static int ready;

__attribute__((constructor)) static void fill(void) {
    for (int number = 0; number < MAX_DEVICES; number++) table[number].number = number;
}

static int count(void) {
    long long found = whole_or(ALL, "count", 0);
    return found < MAX_DEVICES ? (int)found : MAX_DEVICES;
}

static int state_of(const char *function, const device *which) {
    if (!which) return AMDSMI_STATUS_INVAL;
    int said = scripted(function, which->number);
    if (said != PASS) return said;
    if (!ready) return AMDSMI_STATUS_NOT_INIT;
    if (which->number >= count() || whole_or(which->number, "lost", 0)) return AMDSMI_STATUS_NOT_FOUND;
    return AMDSMI_STATUS_SUCCESS;
}

#define ENTER(which)                                       \
    do {                                                   \
        int said_ = state_of(__func__, which);             \
        if (said_ != AMDSMI_STATUS_SUCCESS) return said_;  \
    } while (0)

static int text(const device *which, const char *name, char *value, size_t size) {
    return lookup(which->number, name, value, size) ? AMDSMI_STATUS_SUCCESS : AMDSMI_STATUS_NOT_SUPPORTED;
}

static int whole(const device *which, const char *name, unsigned long *value) {
    long long found;
    if (!lookup_whole(which->number, name, &found)) return AMDSMI_STATUS_NOT_SUPPORTED;
    *value = (unsigned long)found;
    return AMDSMI_STATUS_SUCCESS;
}

#define HAVE(which, name) \
    do { char value_[VALUE_MAX]; if (!lookup((which)->number, name, value_, sizeof value_)) return AMDSMI_STATUS_NOT_SUPPORTED; } while (0)
#define NUMBER(which, name, otherwise) whole_or((which)->number, name, otherwise)

/* -- the library */

API int amdsmi_init(unsigned long flags) {
    (void)flags;
    int said = scripted(__func__, ALL);
    if (said == PASS) said = (int)whole_or(ALL, "init", AMDSMI_STATUS_SUCCESS);
    if (said == AMDSMI_STATUS_SUCCESS) ready = 1;
    return said;
}

API int amdsmi_shut_down(void) {
    ready = 0;
    return AMDSMI_STATUS_SUCCESS;
}

API int amdsmi_get_socket_handles(unsigned *size, device **handles) {
    int said = scripted(__func__, ALL);
    if (said != PASS) return said;
    if (!ready) return AMDSMI_STATUS_NOT_INIT;
    if (handles)
        for (unsigned i = 0; i < *size && (int)i < count(); i++) handles[i] = &table[i];
    *size = (unsigned)count();
    return AMDSMI_STATUS_SUCCESS;
}

API int amdsmi_get_processor_handles(device *socket, unsigned *size, device **handles) {
    int said = scripted(__func__, ALL);
    if (said != PASS) return said;
    if (handles && *size) handles[0] = socket;
    *size = 1;
    return AMDSMI_STATUS_SUCCESS;
}

API int amdsmi_get_processor_handles_by_type(int kind, device **handles, unsigned *size) {
    (void)kind;
    return amdsmi_get_socket_handles(size, handles);
}

API int amdsmi_get_processor_type(device *which, unsigned *kind) {
    ENTER(which);
    *kind = AMDSMI_PROCESSOR_TYPE_AMD_GPU;
    return AMDSMI_STATUS_SUCCESS;
}

API int amdsmi_get_lib_version(amdsmi_version_t *version) {
    memset(version, 0, sizeof *version);
    version->major = (unsigned)whole_or(ALL, "library_major", 26);
    return AMDSMI_STATUS_SUCCESS;
}

/* -- what a device is */

API int amdsmi_get_gpu_device_uuid(device *which, unsigned *size, char *uuid) {
    ENTER(which);
    return text(which, "uuid", uuid, *size);
}

API int amdsmi_get_gpu_device_bdf(device *which, amdsmi_bdf_t *bdf) {
    char value[VALUE_MAX];
    unsigned domain, bus, slot, function;
    ENTER(which);
    int code = text(which, "bdf", value, sizeof value);
    if (code != AMDSMI_STATUS_SUCCESS) return code;
    if (sscanf(value, "%x:%x:%x.%x", &domain, &bus, &slot, &function) != 4) return AMDSMI_STATUS_UNEXPECTED_DATA;
    bdf->as_uint = (unsigned long)domain << 16 | bus << 8 | slot << 3 | function;
    return AMDSMI_STATUS_SUCCESS;
}

API int amdsmi_get_gpu_asic_info(device *which, amdsmi_asic_info_t *info) {
    ENTER(which);
    memset(info, 0, sizeof *info);
    int code = text(which, "name", info->market_name, sizeof info->market_name);
    if (code != AMDSMI_STATUS_SUCCESS) return code;
    text(which, "serial", info->asic_serial, sizeof info->asic_serial);
    strcpy(info->vendor_name, "Advanced Micro Devices Inc. [AMD/ATI]");
    info->vendor_id = info->subvendor_id = 0x1002;
    info->device_id = (unsigned long)NUMBER(which, "pci_id", 0x74a1);
    info->num_of_compute_units = (unsigned)NUMBER(which, "compute_units", 304);
    info->target_graphics_version = (unsigned long)NUMBER(which, "gfx", 0x942);
    return AMDSMI_STATUS_SUCCESS;
}

API int amdsmi_get_gpu_board_info(device *which, amdsmi_board_info_t *info) {
    ENTER(which);
    memset(info, 0, sizeof *info);
    return text(which, "board", info->product_name, sizeof info->product_name);
}

API int amdsmi_get_gpu_vbios_info(device *which, amdsmi_vbios_info_t *info) {
    ENTER(which);
    memset(info, 0, sizeof *info);
    return text(which, "vbios", info->version, sizeof info->version);
}

API int amdsmi_get_gpu_driver_info(device *which, amdsmi_driver_info_t *info) {
    ENTER(which);
    memset(info, 0, sizeof *info);
    strcpy(info->driver_name, "amdgpu");
    if (!lookup(ALL, "driver", info->driver_version, sizeof info->driver_version)) return AMDSMI_STATUS_NOT_SUPPORTED;
    return AMDSMI_STATUS_SUCCESS;
}

API int amdsmi_get_gpu_enumeration_info(device *which, amdsmi_enumeration_info_t *info) {
    ENTER(which);
    HAVE(which, "render");
    memset(info, 0, sizeof *info);
    info->drm_render = (unsigned)NUMBER(which, "render", 128 + which->number);
    info->drm_card = (unsigned)which->number;
    info->hip_id = info->hsa_id = (unsigned)which->number;
    return AMDSMI_STATUS_SUCCESS;
}

API int amdsmi_get_gpu_kfd_info(device *which, amdsmi_kfd_info_t *info) {
    ENTER(which);
    HAVE(which, "partition_id");
    memset(info, 0, sizeof *info);
    info->node_id = (unsigned)which->number + 2;
    info->current_partition_id = (unsigned)NUMBER(which, "partition_id", 0);
    return AMDSMI_STATUS_SUCCESS;
}

API int amdsmi_get_gpu_compute_partition(device *which, char *value, unsigned size) {
    ENTER(which);
    return text(which, "compute_partition", value, size);
}

API int amdsmi_get_gpu_memory_partition(device *which, char *value, unsigned size) {
    ENTER(which);
    return text(which, "memory_partition", value, size);
}

API int amdsmi_set_gpu_compute_partition(device *which, unsigned kind) {
    static const char *const names[] = {"INVALID", "SPX", "DPX", "TPX", "QPX", "CPX"};
    ENTER(which);
    HAVE(which, "compute_partition");
    if (kind < 1 || kind > 5) return AMDSMI_STATUS_INVAL;
    if (lookup(which->number, "processes", (char[VALUE_MAX]){0}, VALUE_MAX)) return AMDSMI_STATUS_BUSY;
    remember(which->number, "compute_partition", "%s", names[kind]);
    /* With another mode there are other devices: as many as the test said with count_CPX. */
    char key[16];
    snprintf(key, sizeof key, "count_%s", names[kind]);
    long long devices = whole_or(ALL, key, 0);
    if (devices) remember(ALL, "count", "%lld", devices);
    return AMDSMI_STATUS_SUCCESS;
}

API int amdsmi_set_gpu_memory_partition(device *which, unsigned kind) {
    ENTER(which);
    HAVE(which, "memory_partition");
    if (lookup(which->number, "processes", (char[VALUE_MAX]){0}, VALUE_MAX)) return AMDSMI_STATUS_BUSY;
    remember(which->number, "memory_partition", "NPS%u", kind);
    return AMDSMI_STATUS_SUCCESS;
}

API int amdsmi_topo_get_numa_node_number(device *which, unsigned *node) {
    unsigned long found = 0;
    ENTER(which);
    int code = whole(which, "numa", &found);
    *node = (unsigned)found;
    return code;
}

API int amdsmi_get_gpu_topo_numa_affinity(device *which, int *node) {
    return amdsmi_topo_get_numa_node_number(which, (unsigned *)node);
}

/* -- what it reads */

API int amdsmi_get_gpu_memory_total(device *which, unsigned kind, unsigned long *bytes) {
    ENTER(which);
    if (kind != AMDSMI_MEM_TYPE_VRAM) return AMDSMI_STATUS_NOT_SUPPORTED;
    int code = whole(which, "total_mib", bytes);
    *bytes <<= 20;
    return code;
}

API int amdsmi_get_gpu_memory_usage(device *which, unsigned kind, unsigned long *bytes) {
    ENTER(which);
    if (kind != AMDSMI_MEM_TYPE_VRAM) return AMDSMI_STATUS_NOT_SUPPORTED;
    int code = whole(which, "used_mib", bytes);
    *bytes <<= 20;
    return code;
}

API int amdsmi_get_gpu_vram_usage(device *which, amdsmi_vram_usage_t *usage) {
    ENTER(which);
    HAVE(which, "used_mib");
    usage->vram_total = (unsigned)NUMBER(which, "total_mib", 0);
    usage->vram_used = (unsigned)NUMBER(which, "used_mib", 0);
    return AMDSMI_STATUS_SUCCESS;
}

API int amdsmi_get_gpu_vram_info(device *which, amdsmi_vram_info_t *info) {
    ENTER(which);
    HAVE(which, "total_mib");
    memset(info, 0, sizeof *info);
    info->vram_type = AMDSMI_VRAM_TYPE_HBM3;
    info->vram_size = (unsigned long)NUMBER(which, "total_mib", 0);
    return AMDSMI_STATUS_SUCCESS;
}

API int amdsmi_get_gpu_activity(device *which, amdsmi_engine_usage_t *usage) {
    ENTER(which);
    HAVE(which, "util");
    memset(usage, 0, sizeof *usage);
    usage->gfx_activity = (unsigned)NUMBER(which, "util", 0);
    usage->umc_activity = (unsigned)NUMBER(which, "memory_util", 0xffff);
    usage->mm_activity = 0xffff;
    return AMDSMI_STATUS_SUCCESS;
}

API int amdsmi_get_temp_metric(device *which, unsigned sensor, unsigned metric, long *celsius) {
    unsigned long found = 0;
    const char *name = sensor == AMDSMI_TEMPERATURE_TYPE_EDGE      ? "edge_c"
                       : sensor == AMDSMI_TEMPERATURE_TYPE_HOTSPOT ? "hotspot_c"
                       : sensor == AMDSMI_TEMPERATURE_TYPE_VRAM    ? "vram_c"
                                                                   : "";
    ENTER(which);
    if (metric == AMDSMI_TEMP_CRITICAL) name = "critical_c";
    else if (metric != AMDSMI_TEMP_CURRENT) return AMDSMI_STATUS_NOT_SUPPORTED;
    int code = whole(which, name, &found);
    *celsius = (long)found;
    return code;
}

API int amdsmi_get_power_info(device *which, amdsmi_power_info_t *info) {
    ENTER(which);
    HAVE(which, "power_w");
    memset(info, 0, sizeof *info);
    info->socket_power = info->current_socket_power = (unsigned)NUMBER(which, "power_w", 0);
    info->average_socket_power = 0xffff;
    info->power_limit = (unsigned)NUMBER(which, "limit_uw", 0);
    return AMDSMI_STATUS_SUCCESS;
}

/* The table that newer tools read instead: what is not set in it stays "not available". */
API int amdsmi_get_gpu_metrics_info(device *which, amdsmi_gpu_metrics_t *metrics) {
    ENTER(which);
    HAVE(which, "util");
    memset(metrics, 0xff, sizeof *metrics);
    metrics->average_gfx_activity = (unsigned short)NUMBER(which, "util", 0xffff);
    metrics->average_umc_activity = (unsigned short)NUMBER(which, "memory_util", 0xffff);
    metrics->temperature_hotspot = (unsigned short)NUMBER(which, "hotspot_c", 0xffff);
    metrics->current_socket_power = (unsigned short)NUMBER(which, "power_w", 0xffff);
    return AMDSMI_STATUS_SUCCESS;
}

API int amdsmi_get_power_cap_info(device *which, unsigned sensor, amdsmi_power_cap_info_t *info) {
    (void)sensor;
    ENTER(which);
    HAVE(which, "limit_uw");
    memset(info, 0, sizeof *info);
    info->power_cap = (unsigned long)NUMBER(which, "limit_uw", 0);
    info->default_power_cap = (unsigned long)NUMBER(which, "default_limit_uw", 0);
    info->min_power_cap = (unsigned long)NUMBER(which, "min_limit_uw", 0);
    info->max_power_cap = (unsigned long)NUMBER(which, "max_limit_uw", 0);
    return AMDSMI_STATUS_SUCCESS;
}

API int amdsmi_set_power_cap(device *which, unsigned sensor, unsigned long microwatts) {
    (void)sensor;
    ENTER(which);
    HAVE(which, "limit_uw");
    if ((long long)microwatts < NUMBER(which, "min_limit_uw", 0) || (long long)microwatts > NUMBER(which, "max_limit_uw", 0))
        return AMDSMI_STATUS_INVAL;
    remember(which->number, "limit_uw", "%lu", microwatts);
    return AMDSMI_STATUS_SUCCESS;
}

API int amdsmi_get_clock_info(device *which, unsigned kind, amdsmi_clk_info_t *info) {
    const char *now = kind == AMDSMI_CLK_TYPE_MEM ? "mem_mhz" : "sm_mhz";
    const char *most = kind == AMDSMI_CLK_TYPE_MEM ? "max_mem_mhz" : "max_sm_mhz";
    ENTER(which);
    if (kind != AMDSMI_CLK_TYPE_MEM && kind != AMDSMI_CLK_TYPE_GFX) return AMDSMI_STATUS_NOT_SUPPORTED;
    HAVE(which, now);
    memset(info, 0, sizeof *info);
    info->clk = (unsigned)NUMBER(which, now, 0);
    info->max_clk = (unsigned)NUMBER(which, most, 0xffffffffu);
    return AMDSMI_STATUS_SUCCESS;
}

API int amdsmi_get_energy_count(device *which, unsigned long *counts, float *resolution, unsigned long *timestamp) {
    double each = 15.259;
    ENTER(which);
    lookup_real(which->number, "resolution", &each);
    *resolution = (float)each;
    *timestamp = 0;
    return whole(which, "energy", counts);
}

API int amdsmi_get_gpu_total_ecc_count(device *which, amdsmi_error_count_t *errors) {
    ENTER(which);
    HAVE(which, "ecc_corrected");
    memset(errors, 0, sizeof *errors);
    errors->correctable_count = (unsigned long)NUMBER(which, "ecc_corrected", 0);
    errors->uncorrectable_count = (unsigned long)NUMBER(which, "ecc_uncorrected", 0);
    return AMDSMI_STATUS_SUCCESS;
}

API int amdsmi_get_gpu_bad_page_info(device *which, unsigned *size, amdsmi_retired_page_record_t *pages) {
    ENTER(which);
    HAVE(which, "bad_pages");
    unsigned there = (unsigned)NUMBER(which, "bad_pages", 0);
    if (pages)
        for (unsigned i = 0; i < *size && i < there; i++) {
            memset(&pages[i], 0, sizeof pages[i]);
            pages[i].page_address = i;
            pages[i].page_size = 4096;
        }
    *size = there;
    return AMDSMI_STATUS_SUCCESS;
}

API int amdsmi_get_pcie_info(device *which, amdsmi_pcie_info_t *info) {
    ENTER(which);
    HAVE(which, "pcie_width");
    memset(info, 0, sizeof *info);
    info->pcie_static.max_pcie_width = (unsigned short)NUMBER(which, "max_pcie_width", 0xffff);
    info->pcie_static.max_pcie_speed = (unsigned)NUMBER(which, "max_pcie_mts", 0xffffffffu);
    info->pcie_metric.pcie_width = (unsigned short)NUMBER(which, "pcie_width", 0xffff);
    info->pcie_metric.pcie_speed = (unsigned)NUMBER(which, "pcie_mts", 0xffffffffu);
    info->pcie_metric.pcie_replay_count = (unsigned long)NUMBER(which, "replays", -1);
    return AMDSMI_STATUS_SUCCESS;
}

API int amdsmi_get_violation_status(device *which, amdsmi_violation_status_t *status) {
    ENTER(which);
    HAVE(which, "throttle_heat");
    memset(status, 0, sizeof *status);
    status->active_socket_thrm = (unsigned char)NUMBER(which, "throttle_heat", 0);
    status->active_ppt_pwr = (unsigned char)NUMBER(which, "throttle_power", 0);
    return AMDSMI_STATUS_SUCCESS;
}

/* -- how devices are joined */

static int link_between(const device *one, const device *other, unsigned *kind, unsigned long *hops, unsigned long *weight) {
    char key[KEY_MAX], value[VALUE_MAX];
    int low = one->number < other->number ? one->number : other->number, high = one->number + other->number - low;
    snprintf(key, sizeof key, "link.%d.%d", low, high);
    if (low == high || !lookup(ALL, key, value, sizeof value)) return AMDSMI_STATUS_NOT_SUPPORTED;
    return sscanf(value, "%u:%lu:%lu", kind, hops, weight) == 3 ? AMDSMI_STATUS_SUCCESS : AMDSMI_STATUS_UNEXPECTED_DATA;
}

API int amdsmi_topo_get_link_type(device *one, device *other, unsigned long *hops, unsigned *kind) {
    unsigned long weight;
    ENTER(one);
    return link_between(one, other, kind, hops, &weight);
}

API int amdsmi_topo_get_link_weight(device *one, device *other, unsigned long *weight) {
    unsigned long hops;
    unsigned kind;
    ENTER(one);
    return link_between(one, other, &kind, &hops, weight);
}

API int amdsmi_is_P2P_accessible(device *one, device *other, unsigned char *accessible) {
    unsigned long hops, weight;
    unsigned kind;
    ENTER(one);
    *accessible = link_between(one, other, &kind, &hops, &weight) == AMDSMI_STATUS_SUCCESS;
    return AMDSMI_STATUS_SUCCESS;
}

API int amdsmi_get_xgmi_info(device *which, amdsmi_xgmi_info_t *info) {
    ENTER(which);
    HAVE(which, "hive");
    memset(info, 0, sizeof *info);
    info->xgmi_lanes = 16;
    info->xgmi_hive_id = (unsigned long)NUMBER(which, "hive", 0);
    info->index = (unsigned)which->number;
    return AMDSMI_STATUS_SUCCESS;
}

/* -- who uses it */

API int amdsmi_get_gpu_process_list(device *which, unsigned *size, amdsmi_proc_info_t *list) {
    char found[VALUE_MAX], *rest = found, *word;
    unsigned there = 0, room = *size;
    ENTER(which);
    if (!lookup(which->number, "processes", found, sizeof found)) found[0] = 0;
    while ((word = strsep(&rest, ","))) {
        unsigned pid;
        unsigned long mib;
        if (sscanf(word, "%u:%lu", &pid, &mib) != 2) continue;
        if (there < room) {
            memset(&list[there], 0, sizeof list[there]);
            list[there].pid = pid;
            list[there].mem = list[there].memory_usage.vram_mem = mib << 20;
            snprintf(list[there].name, sizeof list[there].name, "process-%u", pid);
        }
        there++;
    }
    *size = there < room ? there : room;
    return there > room ? AMDSMI_STATUS_OUT_OF_RESOURCES : AMDSMI_STATUS_SUCCESS;
}

/* -- events */

static void events_path(char *path, size_t size) { snprintf(path, size, "%s.events", getenv(STATE_VARIABLE)); }

API int amdsmi_init_gpu_event_notification(device *which) {
    char path[PATH_MAX + 16];
    struct stat found;
    ENTER(which);
    if (!whole_or(ALL, "events", 1)) return AMDSMI_STATUS_NO_PERM;
    events_path(path, sizeof path);
    events_seen = stat(path, &found) ? 0 : found.st_size;
    return AMDSMI_STATUS_SUCCESS;
}

API int amdsmi_set_gpu_event_notification_mask(device *which, unsigned long mask) {
    ENTER(which);
    masks[which->number] = mask;
    return AMDSMI_STATUS_SUCCESS;
}

API int amdsmi_stop_gpu_event_notification(device *which) {
    masks[which->number] = 0;
    return AMDSMI_STATUS_SUCCESS;
}

API int amdsmi_get_gpu_event_notification(int timeout_ms, unsigned *size, amdsmi_evt_notification_data_t *data) {
    char path[PATH_MAX + 16], line[VALUE_MAX];
    unsigned room = *size;
    events_path(path, sizeof path);
    *size = 0;
    for (int waited_ms = 0;; waited_ms += 2) {
        int said = scripted(__func__, ALL);
        if (said != PASS) return said;
        FILE *file = fopen(path, "r");
        if (file) {
            fseek(file, (long)events_seen, SEEK_SET);
            while (*size < room && fgets(line, sizeof line, file) && strchr(line, '\n')) {
                int number, taken = 0;
                unsigned kind;
                events_seen = ftell(file);
                line[strcspn(line, "\n")] = 0;
                if (sscanf(line, "%d %u %n", &number, &kind, &taken) != 2 || number < 0 || number >= MAX_DEVICES) continue;
                if (!kind || !(masks[number] & 1ul << (kind - 1))) continue;
                memset(&data[*size], 0, sizeof data[*size]);
                data[*size].processor_handle = &table[number];
                data[*size].event = kind;
                snprintf(data[*size].message, sizeof data[*size].message, "%.200s", line + taken);
                ++*size;
            }
            fclose(file);
        }
        if (*size) return AMDSMI_STATUS_SUCCESS;
        if (waited_ms >= timeout_ms) return AMDSMI_STATUS_NO_DATA;
        usleep(2000);
    }
}
