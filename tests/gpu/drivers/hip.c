/* A stub of libamdhip64: devices with memory, streams and events. */
#define STATE_VARIABLE "HIP_STUB_STATE"
#include "streams.h"

enum { OUT_OF_MEMORY = 2, INVALID_VALUE = 1, INVALID_DEVICE = 101, INVALID_HANDLE = 400, NOT_READY = 600, PEER_ACCESS_ALREADY_ENABLED = 704 };
#define SCRIPTED(name)                      \
    int said = scripted(name, ALL);         \
    if (said != PASS) return said

static _Thread_local int current;

API int hipInit(unsigned flags) { (void)flags; SCRIPTED("hipInit"); return 0; }
API int hipGetDeviceCount(int *count) { SCRIPTED("hipGetDeviceCount"); *count = (int)whole_or(ALL, "devices", 1); return 0; }
API int hipGetDevice(int *device) { *device = current; return 0; }
API int hipSetDevice(int device) {
    SCRIPTED("hipSetDevice");
    if (device < 0 || device >= whole_or(ALL, "devices", 1)) return INVALID_DEVICE;
    current = device;
    return 0;
}
API int hipMemGetInfo(size_t *left, size_t *total) {
    SCRIPTED("hipMemGetInfo");
    *total = memory_size();
    *left = *total - in_use;
    return 0;
}
API int hipMalloc(void **address, size_t size) {
    SCRIPTED("hipMalloc");
    *address = take_range(size);
    return *address ? 0 : OUT_OF_MEMORY;
}
API int hipFree(void *address) { SCRIPTED("hipFree"); return give_range(address) ? 0 : INVALID_VALUE; }
static int copy(void *to, const void *from, size_t size, void *of) {
    return give(stream_of(of), (operation){COPY, to, from, size, NULL, 0}) ? 0 : INVALID_HANDLE;
}
API int hipMemcpyHtoDAsync(void *to, const void *from, size_t size, void *of) {
    SCRIPTED("hipMemcpyHtoDAsync");
    return copy(to, from, size, of);
}
API int hipMemcpyDtoHAsync(void *to, const void *from, size_t size, void *of) {
    SCRIPTED("hipMemcpyDtoHAsync");
    return copy(to, from, size, of);
}
API int hipMemcpyDtoDAsync(void *to, const void *from, size_t size, void *of) {
    SCRIPTED("hipMemcpyDtoDAsync");
    return copy(to, from, size, of);
}
/* "peer.0.1=1": device 0 may reach device 1. */
API int hipDeviceCanAccessPeer(int *can, int device, int peer) {
    SCRIPTED("hipDeviceCanAccessPeer");
    char key[KEY_MAX];
    snprintf(key, sizeof key, "peer.%d.%d", device, peer);
    *can = (int)whole_or(ALL, key, 0);
    return 0;
}
static char enabled[16][16];
API int hipDeviceEnablePeerAccess(int peer, unsigned flags) {
    (void)flags;
    SCRIPTED("hipDeviceEnablePeerAccess");
    if (enabled[current & 15][peer & 15]) return PEER_ACCESS_ALREADY_ENABLED;
    enabled[current & 15][peer & 15] = 1;
    return 0;
}
API int hipMemcpyPeerAsync(void *to, int there, const void *from, int here, size_t size, void *of) {
    SCRIPTED("hipMemcpyPeerAsync");
    remember(ALL, "copied", "%d to %d%s", here, there, enabled[here & 15][there & 15] ? "" : " through the host");
    return copy(to, from, size, of);
}
API int hipStreamCreateWithFlags(void **made, unsigned flags) {
    (void)flags;
    SCRIPTED("hipStreamCreateWithFlags");
    *made = new_stream();
    return *made ? 0 : INVALID_VALUE;
}
API int hipStreamDestroy(void *of) { stream_of(of)->alive = 0; return 0; }
API int hipStreamSynchronize(void *of) { SCRIPTED("hipStreamSynchronize"); finish(stream_of(of)); return 0; }
API int hipStreamWaitEvent(void *of, void *after, unsigned flags) {
    (void)flags;
    SCRIPTED("hipStreamWaitEvent");
    return give(stream_of(of), (operation){WAIT, NULL, NULL, 0, after, 0}) ? 0 : INVALID_HANDLE;
}
API int hipEventCreateWithFlags(void **made, unsigned flags) {
    (void)flags;
    SCRIPTED("hipEventCreateWithFlags");
    *made = calloc(1, sizeof(event));
    return 0;
}
API int hipEventDestroy(void *of) { SCRIPTED("hipEventDestroy"); free(of); return 0; }
API int hipEventRecord(void *of, void *on) {
    SCRIPTED("hipEventRecord");
    return give(stream_of(on), (operation){RECORD, NULL, NULL, 0, of, 0}) ? 0 : INVALID_HANDLE;
}
API int hipEventQuery(void *of) { SCRIPTED("hipEventQuery"); return is_done(of) ? 0 : NOT_READY; }
API int hipEventSynchronize(void *of) { SCRIPTED("hipEventSynchronize"); wait_for(of); return 0; }
API const char *hipGetErrorName(int code) {
    return code == OUT_OF_MEMORY ? "hipErrorOutOfMemory" : code == INVALID_HANDLE ? "hipErrorInvalidHandle" : "hipErrorUnknown";
}
