/* Notifications to the service manager (the protocol of sd_notify(3), implemented without a library): datagrams of
 * KEY=VALUE lines to the socket in NOTIFY_SOCKET, which is a path, or "@" and an abstract name. Without that variable,
 * or if no process reads the socket, notifications do nothing. One thread. */
#ifndef DTD_COMMON_BASE_NOTIFY_H
#define DTD_COMMON_BASE_NOTIFY_H

#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>
#include <sys/un.h>

#define NOTIFY_STATUS_MAX 256 /* bytes; one line of `systemctl status` */

struct notify {
    int fd; /* -1: there is no service manager */
    struct sockaddr_un to;
    socklen_t to_bytes;
    int64_t watchdog_ms; /* maximum interval between WATCHDOG=1 messages; 0: no watchdog */
};

/* Reads the variables that the manager set for this process. Removes them, and other variables that are meant only for
 * this process, from the environment, so that child processes cannot send notifications in its name. */
void notify_init(struct notify *n);
void notify_fini(struct notify *n);
/* Sends one message; lines are separated by '\n'. Never blocks. A message that cannot be sent is dropped. */
void notify_send(const struct notify *n, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* Sends STATUS=, truncated to NOTIFY_STATUS_MAX - 1 bytes. Control characters become spaces, so a status cannot add
 * lines. */
void notify_status(const struct notify *n, const char *text, size_t len);

#endif
