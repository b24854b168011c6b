/* What a stub driver knows of its devices, read from a text file that a test may change at any moment.
 *
 * The file is named by the variable STATE_VARIABLE, which each driver defines. Its lines are KEY=VALUE; "0.temp=40" is
 * of device 0. What setters of the driver change is appended to FILE.set, whose lines win over those of FILE. A file is
 * read again when it is another than the last time.
 *
 * "fault.FUNCTION=WHAT" scripts an exported function, "0.fault.FUNCTION=WHAT" that function for device 0 alone. WHAT is
 * a number, which is returned at once; hang, until the line is gone; abort; segv; or slow MILLISECONDS.
 */
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define API __attribute__((visibility("default")))
#define UNUSED __attribute__((unused))

enum { PASS = INT_MIN, ALL = -1, KEY_MAX = 128, VALUE_MAX = 512 };

typedef struct { const char *key, *value; } entry;
typedef struct { dev_t device; ino_t inode; off_t size; struct timespec changed; } stamp;

static pthread_mutex_t reading = PTHREAD_MUTEX_INITIALIZER;
static entry *entries;
static size_t entry_count;
static int has_faults;
static char *contents;
static stamp seen;
static int has_set;

static stamp stamp_of(const char *path) {
    struct stat found;
    stamp now;
    memset(&now, 0, sizeof now);
    if (!stat(path, &found)) {
        now.device = found.st_dev;
        now.inode = found.st_ino;
        now.size = found.st_size;
        now.changed = found.st_mtim;
    }
    return now;
}

static size_t append_file(const char *path, size_t used) {
    FILE *file = fopen(path, "r");
    if (!file) return used;
    for (;;) {
        contents = realloc(contents, used + 65536 + 2);
        size_t got = fread(contents + used, 1, 65536, file);
        if (!got) break;
        used += got;
    }
    fclose(file);
    contents[used++] = '\n';
    return used;
}

static int by_key_then_place(const void *one, const void *other) {
    const entry *left = one, *right = other;
    int order = strcmp(left->key, right->key);
    return order ? order : (left->key > right->key) - (left->key < right->key);
}

/* Read both files anew where the first has changed, or this library has set something. The lock is held. One look at the
 * disk for each call of the library: calls of a real one cost about as much. */
static void refresh(void) {
    char setters[PATH_MAX + 8];
    const char *path = getenv(STATE_VARIABLE);
    if (!path) return;
    stamp now = stamp_of(path);
    if (entries && !has_set && !memcmp(&now, &seen, sizeof now)) return;
    seen = now;
    has_set = 0;
    snprintf(setters, sizeof setters, "%s.set", path);
    free(contents);
    contents = malloc(2);
    size_t used = append_file(setters, append_file(path, 0)), lines = 1;
    contents[used] = 0;
    for (size_t i = 0; i < used; i++) lines += contents[i] == '\n';
    free(entries);
    entries = calloc(lines, sizeof *entries);
    entry_count = 0;
    has_faults = 0;
    char *rest = contents, *line;
    while ((line = strsep(&rest, "\n"))) {
        char *equals = strchr(line, '=');
        if (!equals) continue;
        *equals = 0;
        if (strstr(line, "fault.")) has_faults = 1;
        entries[entry_count++] = (entry){line, equals + 1};
    }
    qsort(entries, entry_count, sizeof *entries, by_key_then_place);
    /* Of equal keys the last one wins. */
    size_t kept = 0;
    for (size_t i = 0; i < entry_count; i++)
        if (i + 1 == entry_count || strcmp(entries[i].key, entries[i + 1].key)) entries[kept++] = entries[i];
    entry_count = kept;
}

static const char *find(const char *key) {
    size_t low = 0, high = entry_count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        int order = strcmp(key, entries[middle].key);
        if (!order) return entries[middle].value;
        if (order < 0) high = middle;
        else low = middle + 1;
    }
    return NULL;
}

/* Copy the value of KEY; 0 when there is none. A device's key starts with its number. */
static int lookup(int device, const char *name, char *value, size_t size) {
    char key[KEY_MAX];
    if (device == ALL) snprintf(key, sizeof key, "%s", name);
    else snprintf(key, sizeof key, "%d.%s", device, name);
    pthread_mutex_lock(&reading);
    if (!entries) refresh();
    const char *found = find(key);
    if (found) snprintf(value, size, "%s", found);
    pthread_mutex_unlock(&reading);
    return found != NULL;
}

UNUSED static int lookup_real(int device, const char *name, double *result) {
    char value[VALUE_MAX];
    if (!lookup(device, name, value, sizeof value)) return 0;
    *result = strtod(value, NULL);
    return 1;
}

UNUSED static int lookup_whole(int device, const char *name, long long *result) {
    char value[VALUE_MAX];
    if (!lookup(device, name, value, sizeof value)) return 0;
    *result = (long long)strtoull(value, NULL, 0);
    if (value[0] == '-') *result = strtoll(value, NULL, 0);
    return 1;
}

UNUSED static long long whole_or(int device, const char *name, long long fallback) {
    long long found;
    return lookup_whole(device, name, &found) ? found : fallback;
}

/* Remember what a setter set, for this library and for the test that asks. */
UNUSED static void remember(int device, const char *name, const char *format, ...) {
    char path[PATH_MAX + 8], line[KEY_MAX + VALUE_MAX], value[VALUE_MAX];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(value, sizeof value, format, arguments);
    va_end(arguments);
    snprintf(path, sizeof path, "%s.set", getenv(STATE_VARIABLE) ? getenv(STATE_VARIABLE) : "/dev/null");
    int length = device == ALL ? snprintf(line, sizeof line, "%s=%s\n", name, value)
                               : snprintf(line, sizeof line, "%d.%s=%s\n", device, name, value);
    int file = open(path, O_WRONLY | O_CREAT | O_APPEND, 0600);
    if (file >= 0) {
        if (write(file, line, (size_t)length) != length) abort();
        close(file);
        pthread_mutex_lock(&reading);
        has_set = 1;
        pthread_mutex_unlock(&reading);
    }
}

/* What the script has FUNCTION do for DEVICE: PASS, or what it is to return. */
static int scripted(const char *function, int device) {
    char name[KEY_MAX], value[VALUE_MAX];
    for (;;) {
        pthread_mutex_lock(&reading);
        refresh();
        int any = has_faults;
        pthread_mutex_unlock(&reading);
        if (!any) return PASS;
        snprintf(name, sizeof name, "fault.%s", function);
        if (!(device != ALL && lookup(device, name, value, sizeof value)) && !lookup(ALL, name, value, sizeof value))
            return PASS;
        if (!strcmp(value, "abort")) abort();
        if (!strcmp(value, "segv")) *(volatile int *)NULL = 0;
        if (!strncmp(value, "slow ", 5)) {
            usleep(1000u * (unsigned)atoi(value + 5));
            return PASS;
        }
        if (strcmp(value, "hang")) return (int)strtoll(value, NULL, 0);
        usleep(5000);
    }
}

/* For functions that are not written: what the script says, or OTHERWISE. */
int scripted_or(const char *function, int otherwise) {
    int said = scripted(function, ALL);
    return said == PASS ? otherwise : said;
}
