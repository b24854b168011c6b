/* A replica that is never what is waited for: reads requests with a content-length, answers each with the same bytes.

   canned_replica PORT HEAD_AND_BODY_FILE. One thread, epoll, loopback; a request is at most 64 KiB. */
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

enum { FDS_MAX = 4096, ROOM = 65536 };

static char *kept[FDS_MAX];
static size_t count[FDS_MAX];
static char answer[ROOM];
static size_t answer_bytes;

/* How many bytes the first whole request in data takes; 0: it is not whole. */
static size_t request_bytes(const char *data, size_t size) {
    const char *end = memmem(data, size, "\r\n\r\n", 4);
    if (end == NULL) return 0;
    size_t head = (size_t)(end - data) + 4, body = 0;
    for (const char *line = data; line < end; line = (const char *)memchr(line, '\n', (size_t)(end + 2 - line)) + 1)
        if (strncasecmp(line, "content-length:", 15) == 0) body = strtoul(line + 15, NULL, 10);
    return size >= head + body ? head + body : 0;
}

static void hang_up(int fd) {
    close(fd);
    free(kept[fd]);
    kept[fd] = NULL;
    count[fd] = 0;
}

static void serve(int fd) {
    if (kept[fd] == NULL && (kept[fd] = malloc(ROOM)) == NULL) exit(2);
    ssize_t got = read(fd, kept[fd] + count[fd], ROOM - count[fd]);
    if (got <= 0) {
        hang_up(fd);
        return;
    }
    count[fd] += (size_t)got;
    size_t taken;
    while ((taken = request_bytes(kept[fd], count[fd])) != 0) {
        if (write(fd, answer, answer_bytes) != (ssize_t)answer_bytes) {
            hang_up(fd);
            return;
        }
        count[fd] -= taken;
        memmove(kept[fd], kept[fd] + taken, count[fd]);
    }
    if (count[fd] == ROOM) hang_up(fd);
}

int main(int argc, char **argv) {
    FILE *file = argc == 3 ? fopen(argv[2], "rb") : NULL;
    if (file == NULL) return 2;
    answer_bytes = fread(answer, 1, sizeof answer, file);
    fclose(file);
    int listening = socket(AF_INET, SOCK_STREAM, 0), on = 1, polled = epoll_create1(0);
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons((unsigned short)atoi(argv[1]))};
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    setsockopt(listening, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (bind(listening, (struct sockaddr *)&at, sizeof at) != 0 || listen(listening, 1024) != 0) return 1;
    struct epoll_event event = {.events = EPOLLIN, .data.fd = listening}, found[64];
    epoll_ctl(polled, EPOLL_CTL_ADD, listening, &event);
    for (;;) {
        int ready = epoll_wait(polled, found, 64, -1);
        for (int at_event = 0; at_event < ready; at_event++) {
            int fd = found[at_event].data.fd;
            if (fd != listening) {
                serve(fd);
                continue;
            }
            if ((fd = accept(listening, NULL, NULL)) < 0) continue;
            if (fd >= FDS_MAX) {
                close(fd);
                continue;
            }
            setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
            event.data.fd = fd;
            epoll_ctl(polled, EPOLL_CTL_ADD, fd, &event);
        }
    }
}
