/* What a service manager is told (the protocol of sd_notify(3), which needs no library): datagrams of KEY=VALUE lines
 * to the socket that NOTIFY_SOCKET names, a path or "@" and an abstract name. Without that variable, or when nobody
 * reads there, saying does nothing. One thread. */
#ifndef DTD_COMMON_BASE_NOTIFY_H
#define DTD_COMMON_BASE_NOTIFY_H

#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>
#include <sys/un.h>

#define NOTIFY_STATUS_MAX 256

struct notify {
    int fd; /* -1: nobody is to be told */
    struct sockaddr_un to;
    socklen_t to_bytes;
    int64_t watchdog_ms; /* how often WATCHDOG=1 is expected at least; 0: never */
};

/* Reads the variables that the manager gave to this process, and removes them and what else it means for us alone from
 * the environment, so that no child speaks in our name. */
void notify_init(struct notify *n);
void notify_fini(struct notify *n);
/* One message, lines separated by '\n'. Never blocks, never fails: there is nobody else to tell. */
void notify_say(const struct notify *n, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* STATUS=, cut to NOTIFY_STATUS_MAX - 1 bytes; control characters become spaces, so that a status cannot add lines. */
void notify_status(const struct notify *n, const char *text, size_t len);

#endif
