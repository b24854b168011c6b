/* A stub of libze_loader's calls for memory: in-order immediate lists, events that are cleared by hand. */
#define STATE_VARIABLE "ZE_STUB_STATE"
#include "layout.h"
#include "streams.h"

#include <stdint.h>

enum { NOT_YET = 1, OUT_OF_DEVICE_MEMORY = 0x70000003, INVALID_ARGUMENT = 0x78000004, EVENTS_MAX = 64 };
#define SCRIPTED(name)                      \
    int said = scripted(name, ALL);         \
    if (said != PASS) return said

static char driver, devices[16], context;

API int zeInit(unsigned flags) { (void)flags; SCRIPTED("zeInit"); return 0; }
API int zeDriverGet(uint32_t *count, void **found) {
    SCRIPTED("zeDriverGet");
    *count = 1;
    if (found) found[0] = &driver;
    return 0;
}
API int zeDeviceGet(void *of, uint32_t *count, void **found) {
    (void)of;
    SCRIPTED("zeDeviceGet");
    *count = (uint32_t)whole_or(ALL, "devices", 1);
    for (uint32_t i = 0; found && i < *count; i++) found[i] = &devices[i];
    return 0;
}
API int zeDeviceGetMemoryProperties(void *device, uint32_t *count, MemoryProperties *told) {
    (void)device;
    SCRIPTED("zeDeviceGetMemoryProperties");
    *count = 1;
    if (told && told->stype != 0x7) return INVALID_ARGUMENT;
    if (told) told->totalSize = memory_size();
    return 0;
}
API int zeContextCreate(void *of, const ContextDescription *described, void **made) {
    (void)of;
    SCRIPTED("zeContextCreate");
    *made = &context;
    return described->stype == 0xD ? 0 : INVALID_ARGUMENT;
}
API int zeContextDestroy(void *of) { (void)of; return 0; }
API int zeMemAllocDevice(void *of, const AllocationDescription *described, size_t size, size_t alignment, void *device,
                         void **address) {
    (void)of, (void)alignment, (void)device;
    SCRIPTED("zeMemAllocDevice");
    if (described->stype != 0x15) return INVALID_ARGUMENT;
    *address = take_range(size);
    return *address ? 0 : OUT_OF_DEVICE_MEMORY;
}
API int zeMemFree(void *of, void *address) {
    (void)of;
    SCRIPTED("zeMemFree");
    return give_range(address) ? 0 : INVALID_ARGUMENT;
}
API int zeCommandListCreateImmediate(void *of, void *device, const QueueDescription *described, void **made) {
    (void)of, (void)device;
    SCRIPTED("zeCommandListCreateImmediate");
    if (described->stype != 0xE || !(described->flags & 2)) return INVALID_ARGUMENT;
    *made = new_stream();
    return *made ? 0 : INVALID_ARGUMENT;
}
API int zeCommandListDestroy(void *of) { ((stream *)of)->alive = 0; return 0; }
API int zeCommandListHostSynchronize(void *of, uint64_t timeout_ns) {
    (void)timeout_ns;
    SCRIPTED("zeCommandListHostSynchronize");
    finish(of);
    return 0;
}
API int zeCommandListAppendMemoryCopy(void *of, void *to, const void *from, size_t size, void *signal, uint32_t count,
                                      void **waits) {
    (void)signal, (void)count, (void)waits;
    SCRIPTED("zeCommandListAppendMemoryCopy");
    return give(of, (operation){COPY, to, from, size, NULL, 0}) ? 0 : INVALID_ARGUMENT;
}
/* Level Zero's event is set or not. That of streams.h counts, so a cleared one wants one more than it has. */
API int zeCommandListAppendSignalEvent(void *of, event *which) {
    SCRIPTED("zeCommandListAppendSignalEvent");
    if (which->given != which->reached + 1) return INVALID_ARGUMENT;  /* set already, and not cleared */
    which->given--;
    return give(of, (operation){RECORD, NULL, NULL, 0, which, 0}) ? 0 : INVALID_ARGUMENT;
}
API int zeCommandListAppendWaitOnEvents(void *of, uint32_t count, event **which) {
    SCRIPTED("zeCommandListAppendWaitOnEvents");
    for (uint32_t i = 0; i < count; i++)
        if (!give(of, (operation){WAIT, NULL, NULL, 0, which[i], 0})) return INVALID_ARGUMENT;
    return 0;
}
API int zeEventPoolCreate(void *of, const EventPoolDescription *described, uint32_t count, void **among, void **made) {
    (void)of, (void)count, (void)among;
    SCRIPTED("zeEventPoolCreate");
    if (described->stype != 0x10 || described->count > EVENTS_MAX) return INVALID_ARGUMENT;
    event *all = calloc(EVENTS_MAX, sizeof *all);
    for (int i = 0; i < EVENTS_MAX; i++) all[i].given = 1;
    *made = all;
    return 0;
}
API int zeEventPoolDestroy(void *of) { free(of); return 0; }
API int zeEventCreate(event *of, const EventDescription *described, void **made) {
    SCRIPTED("zeEventCreate");
    if (described->stype != 0x11 || described->index >= EVENTS_MAX) return INVALID_ARGUMENT;
    *made = &of[described->index];
    return 0;
}
API int zeEventDestroy(void *of) { (void)of; return 0; }
API int zeEventHostReset(event *of) {
    SCRIPTED("zeEventHostReset");
    of->given = of->reached + 1;
    return 0;
}
API int zeEventQueryStatus(event *of) { SCRIPTED("zeEventQueryStatus"); return is_done(of) ? 0 : NOT_YET; }
API int zeEventHostSynchronize(event *of, uint64_t timeout_ns) {
    (void)timeout_ns;
    SCRIPTED("zeEventHostSynchronize");
    wait_for(of);
    return 0;
}
