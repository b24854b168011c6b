/* A stub of libcuda: devices with memory, streams and events, for cuda-bindings. */
#define STATE_VARIABLE "CUDA_STUB_STATE"
#include "streams.h"

#include <stdint.h>

enum { OUT_OF_MEMORY = 2, INVALID_VALUE = 1, INVALID_HANDLE = 400, NOT_FOUND = 500, NOT_READY = 600, PEER_ACCESS_ALREADY_ENABLED = 704 };
#define SCRIPTED(name)                      \
    int said = scripted(name, ALL);         \
    if (said != PASS) return said

API int cuInit(unsigned flags) { (void)flags; SCRIPTED("cuInit"); return 0; }
API int cuDriverGetVersion(int *version) { *version = 13000; return 0; }
API int cuDeviceGetCount(int *count) { SCRIPTED("cuDeviceGetCount"); *count = (int)whole_or(ALL, "devices", 1); return 0; }
API int cuDeviceGet(int *device, int number) { *device = number; return 0; }
API int cuDevicePrimaryCtxRetain(void **context, int device) {
    SCRIPTED("cuDevicePrimaryCtxRetain");
    *context = (void *)(intptr_t)(0x1000 + device);
    return 0;
}
API int cuDevicePrimaryCtxRelease(int device) { (void)device; SCRIPTED("cuDevicePrimaryCtxRelease"); return 0; }
static _Thread_local int current[16], depth;
static int device_of(void *context) { return (int)((intptr_t)context - 0x1000); }
API int cuCtxPushCurrent(void *context) {
    SCRIPTED("cuCtxPushCurrent");
    current[depth++ & 15] = device_of(context);
    return 0;
}
API int cuCtxPopCurrent(void **context) { *context = NULL; depth--; return 0; }
/* "peer.0.1=1": device 0 may reach device 1. */
API int cuDeviceCanAccessPeer(int *can, int device, int peer) {
    SCRIPTED("cuDeviceCanAccessPeer");
    char key[KEY_MAX];
    snprintf(key, sizeof key, "peer.%d.%d", device, peer);
    *can = (int)whole_or(ALL, key, 0);
    return 0;
}
static char enabled[16][16];
API int cuCtxEnablePeerAccess(void *peer, unsigned flags) {
    (void)flags;
    SCRIPTED("cuCtxEnablePeerAccess");
    char *one = &enabled[current[(depth - 1) & 15] & 15][device_of(peer) & 15];
    if (*one) return PEER_ACCESS_ALREADY_ENABLED;
    *one = 1;
    return 0;
}
API int cuMemGetInfo(size_t *left, size_t *total) {
    SCRIPTED("cuMemGetInfo");
    *total = memory_size();
    *left = *total - in_use;
    return 0;
}
API int cuMemAlloc(uint64_t *address, size_t size) {
    SCRIPTED("cuMemAlloc");
    *address = (uint64_t)(uintptr_t)take_range(size);
    return *address ? 0 : OUT_OF_MEMORY;
}
API int cuMemFree(uint64_t address) {
    SCRIPTED("cuMemFree");
    return give_range((void *)(uintptr_t)address) ? 0 : INVALID_VALUE;
}
static int copy(void *to, const void *from, size_t size, void *of) {
    return give(stream_of(of), (operation){COPY, to, from, size, NULL, 0}) ? 0 : INVALID_HANDLE;
}
API int cuMemcpyHtoDAsync(uint64_t to, const void *from, size_t size, void *of) {
    SCRIPTED("cuMemcpyHtoDAsync");
    return copy((void *)(uintptr_t)to, from, size, of);
}
API int cuMemcpyDtoHAsync(void *to, uint64_t from, size_t size, void *of) {
    SCRIPTED("cuMemcpyDtoHAsync");
    return copy(to, (void *)(uintptr_t)from, size, of);
}
API int cuMemcpyDtoDAsync(uint64_t to, uint64_t from, size_t size, void *of) {
    SCRIPTED("cuMemcpyDtoDAsync");
    return copy((void *)(uintptr_t)to, (void *)(uintptr_t)from, size, of);
}
API int cuMemcpyPeerAsync(uint64_t to, void *there, uint64_t from, void *here, size_t size, void *of) {
    SCRIPTED("cuMemcpyPeerAsync");
    remember(ALL, "copied", "%d to %d%s", device_of(here), device_of(there),
             enabled[device_of(here) & 15][device_of(there) & 15] ? "" : " through the host");
    return copy((void *)(uintptr_t)to, (void *)(uintptr_t)from, size, of);
}
API int cuStreamCreate(void **made, unsigned flags) {
    (void)flags;
    SCRIPTED("cuStreamCreate");
    *made = new_stream();
    return *made ? 0 : INVALID_VALUE;
}
API int cuStreamDestroy(void *of) { stream_of(of)->alive = 0; return 0; }
API int cuStreamSynchronize(void *of) { SCRIPTED("cuStreamSynchronize"); finish(stream_of(of)); return 0; }
API int cuStreamWaitEvent(void *of, void *after, unsigned flags) {
    (void)flags;
    SCRIPTED("cuStreamWaitEvent");
    return give(stream_of(of), (operation){WAIT, NULL, NULL, 0, after, 0}) ? 0 : INVALID_HANDLE;
}
API int cuEventCreate(void **made, unsigned flags) {
    (void)flags;
    SCRIPTED("cuEventCreate");
    *made = calloc(1, sizeof(event));
    return 0;
}
API int cuEventDestroy(void *of) { SCRIPTED("cuEventDestroy"); free(of); return 0; }
API int cuEventRecord(void *of, void *on) {
    SCRIPTED("cuEventRecord");
    return give(stream_of(on), (operation){RECORD, NULL, NULL, 0, of, 0}) ? 0 : INVALID_HANDLE;
}
API int cuEventQuery(void *of) { SCRIPTED("cuEventQuery"); return is_done(of) ? 0 : NOT_READY; }
API int cuEventSynchronize(void *of) { SCRIPTED("cuEventSynchronize"); wait_for(of); return 0; }
API int cuGetErrorName(int code, const char **name) {
    *name = code == OUT_OF_MEMORY    ? "CUDA_ERROR_OUT_OF_MEMORY"
            : code == INVALID_HANDLE ? "CUDA_ERROR_INVALID_HANDLE"
            : code == 100            ? "CUDA_ERROR_NO_DEVICE"
            : code == 700            ? "CUDA_ERROR_ILLEGAL_ADDRESS"
                                     : NULL;
    return *name ? 0 : INVALID_VALUE;
}

#define CALL(name) {#name, (void *)name}
static const struct { const char *name; void *at; } CALLS[] = {
    CALL(cuInit), CALL(cuDriverGetVersion), CALL(cuDeviceGetCount), CALL(cuDeviceGet), CALL(cuDevicePrimaryCtxRetain),
    CALL(cuDevicePrimaryCtxRelease), CALL(cuCtxPushCurrent), CALL(cuCtxPopCurrent), CALL(cuMemGetInfo), CALL(cuMemAlloc),
    CALL(cuMemFree), CALL(cuMemcpyHtoDAsync), CALL(cuMemcpyDtoHAsync), CALL(cuMemcpyDtoDAsync), CALL(cuStreamCreate),
    CALL(cuStreamDestroy), CALL(cuStreamSynchronize), CALL(cuStreamWaitEvent), CALL(cuEventCreate), CALL(cuEventDestroy),
    CALL(cuDeviceCanAccessPeer), CALL(cuCtxEnablePeerAccess), CALL(cuMemcpyPeerAsync), CALL(cuEventRecord), CALL(cuEventQuery), CALL(cuEventSynchronize), CALL(cuGetErrorName),
};

/* How cuda-bindings finds the rest, by names without their versions. */
API int cuGetProcAddress_v2(const char *name, void **found, int version, uint64_t flags, int *status) {
    (void)version;
    (void)flags;
    *found = NULL;
    for (size_t i = 0; i < sizeof CALLS / sizeof *CALLS; i++)
        if (!strcmp(CALLS[i].name, name)) *found = CALLS[i].at;
    if (!strcmp(name, "cuGetProcAddress")) *found = (void *)cuGetProcAddress_v2;
    if (status) *status = *found ? 0 : 1;
    return *found ? 0 : NOT_FOUND;
}
