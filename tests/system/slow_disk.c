/* A disk that gets slower: preloaded into an agent. The file named by SLOW_DISK says by how many microseconds each
 * fdatasync takes longer than the one before; only the small writes that measure the disk (.disk_probe) are held up.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static long grows_by(void) {
    const char *path = getenv("SLOW_DISK");
    char text[32] = {0};
    int fd = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (fd < 0) return 0;
    ssize_t size = read(fd, text, sizeof text - 1);
    close(fd);
    return size > 0 ? atol(text) : 0;
}

int fdatasync(int fd) {
    static int (*real)(int);
    static long delay_us;
    char link[64], name[4096] = {0};
    if (!real) real = (int (*)(int))dlsym(RTLD_NEXT, "fdatasync");
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    if (readlink(link, name, sizeof name - 1) > 0 && strstr(name, "/.disk_probe")) {
        delay_us += grows_by();
        usleep((useconds_t)delay_us);
    }
    return real(fd);
}
