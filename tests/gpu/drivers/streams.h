/* A device's memory, streams and events as a stub driver has them: memory is the host's, streams run what they are given
 * in order, and only when a call of the library is made. A stream that the script holds ("hold.3=1") does nothing: what
 * was given to it is pending, for as long as the test likes. Streams are numbered as they are made; 0 is the default one.
 *
 * "memory_mib" is what the device has, "devices" how many there are.
 */
#pragma once
#include "state.h"

enum { STREAMS = 64, OPERATIONS = 512, RANGES = 1024 };
enum { COPY, RECORD, WAIT };

typedef struct { long given, reached; } event;
typedef struct { int kind; void *to; const void *from; size_t size; event *of; long serial; } operation;
typedef struct { int alive; unsigned first, next; operation todo[OPERATIONS]; } stream;
typedef struct { void *at; size_t size; } range;

static pthread_mutex_t running = PTHREAD_MUTEX_INITIALIZER;
static stream streams[STREAMS] = {[0] = {.alive = 1}};
static range ranges[RANGES];
static size_t in_use;

static int is_held(int number) {
    char key[KEY_MAX];
    snprintf(key, sizeof key, "hold.%d", number);
    return whole_or(ALL, key, 0) != 0;
}

/* All streams, as far as they get. The lock is held. */
static void run_streams(void) {
    pthread_mutex_lock(&reading);
    refresh();
    pthread_mutex_unlock(&reading);
    for (int moved = 1; moved;) {
        moved = 0;
        for (int number = 0; number < STREAMS; number++) {
            stream *each = &streams[number];
            if (each->first == each->next || is_held(number)) continue;
            operation *one = &each->todo[each->first % OPERATIONS];
            if (one->kind == WAIT && one->of->reached < one->serial) continue;
            if (one->kind == COPY) memmove(one->to, one->from, one->size);
            if (one->kind == RECORD && one->of->reached < one->serial) one->of->reached = one->serial;
            each->first++;
            moved = 1;
        }
    }
}

/* 0 where that is no stream, or it has no room. */
static int give(stream *to, operation one) {
    pthread_mutex_lock(&running);
    int good = to->alive && to->next - to->first < OPERATIONS;
    if (good) {
        if (one.kind == RECORD) one.serial = ++one.of->given;
        if (one.kind == WAIT) one.serial = one.of->given;
        to->todo[to->next++ % OPERATIONS] = one;
        run_streams();
    }
    pthread_mutex_unlock(&running);
    return good;
}

UNUSED static stream *stream_of(void *handle) { return handle ? handle : &streams[0]; }

static stream *new_stream(void) {
    stream *made = NULL;
    pthread_mutex_lock(&running);
    for (int number = 1; number < STREAMS && !made; number++)
        if (!streams[number].alive) {
            made = &streams[number];
            memset(made, 0, sizeof *made);
            made->alive = 1;
        }
    pthread_mutex_unlock(&running);
    return made;
}

static int is_done(event *of) {
    pthread_mutex_lock(&running);
    run_streams();
    int done = of->reached >= of->given;
    pthread_mutex_unlock(&running);
    return done;
}

static void finish(stream *of) {
    for (;;) {
        pthread_mutex_lock(&running);
        run_streams();
        int done = of->first == of->next;
        pthread_mutex_unlock(&running);
        if (done) return;
        usleep(500);
    }
}

static void wait_for(event *of) {
    while (!is_done(of)) usleep(500);
}

static size_t memory_size(void) { return (size_t)whole_or(ALL, "memory_mib", 64) << 20; }

/* NULL where the device has not that much left. */
static void *take_range(size_t size) {
    void *made = NULL;
    pthread_mutex_lock(&running);
    if (size && size <= memory_size() - in_use)
        for (int place = 0; place < RANGES && !made; place++)
            if (!ranges[place].at && !posix_memalign(&made, 512, size)) {
                ranges[place] = (range){made, size};
                in_use += size;
            }
    pthread_mutex_unlock(&running);
    return made;
}

static int give_range(void *at) {
    int found = 0;
    pthread_mutex_lock(&running);
    for (int place = 0; place < RANGES && at; place++)
        if (ranges[place].at == at) {
            free(at);
            in_use -= ranges[place].size;
            ranges[place] = (range){NULL, 0};
            found = 1;
        }
    pthread_mutex_unlock(&running);
    return found;
}
