/* See notify.h. The address is checked once. A message is one datagram; if the manager's queue is full it is dropped,
 * because a daemon that blocked on its watchdog's reader could be killed by that watchdog. */
#include "common/base/notify.h"

#include "common/base/log.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Variables that the manager sets for this process only. */
static const char *const ours_alone[] = {
    "NOTIFY_SOCKET",    "WATCHDOG_USEC",         "WATCHDOG_PID",         "LISTEN_PID",    "LISTEN_FDS",
    "LISTEN_FDNAMES",   "STATE_DIRECTORY",       "RUNTIME_DIRECTORY",    "INVOCATION_ID", "JOURNAL_STREAM",
    "SYSTEMD_EXEC_PID", "MEMORY_PRESSURE_WATCH", "MEMORY_PRESSURE_WRITE"};

static void address_parse(struct notify *n, const char *name)
{
    size_t len = name ? strlen(name) : 0;
    if (!len)
        return;
    if ((name[0] != '/' && name[0] != '@') || len < 2 || len >= sizeof(n->to.sun_path)) {
        log_warn("NOTIFY_SOCKET is not a socket name; no notifications are sent value=%s", name);
        return;
    }
    n->to.sun_family = AF_UNIX;
    memcpy(n->to.sun_path, name, len);
    n->to_bytes = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + len + (name[0] == '/'));
    if (name[0] == '@')
        n->to.sun_path[0] = '\0';
    n->fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (n->fd < 0)
        log_warn("cannot create a socket; no notifications are sent error=%s", strerror(errno));
}

/* Digits only; 0 for anything else. */
static int64_t number_of(const char *text)
{
    size_t len = text ? strlen(text) : 0;
    return len && len <= 18 && strspn(text, "0123456789") == len ? strtoll(text, NULL, 10) : 0;
}

void notify_init(struct notify *n)
{
    const char *pid = getenv("WATCHDOG_PID");
    *n = (struct notify){.fd = -1};
    address_parse(n, getenv("NOTIFY_SOCKET"));
    if (!pid || number_of(pid) == getpid())
        n->watchdog_ms = number_of(getenv("WATCHDOG_USEC")) / 1000;
    for (size_t i = 0; i < sizeof(ours_alone) / sizeof(*ours_alone); i++)
        unsetenv(ours_alone[i]);
}

void notify_fini(struct notify *n)
{
    if (n->fd >= 0)
        close(n->fd);
    n->fd = -1;
}

void notify_send(const struct notify *n, const char *fmt, ...)
{
    char text[512];
    va_list ap;
    if (n->fd < 0)
        return;
    va_start(ap, fmt);
    int len = vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    if (len > 0 && (size_t)len < sizeof(text) &&
        sendto(n->fd, text, (size_t)len, MSG_NOSIGNAL | MSG_DONTWAIT, (const struct sockaddr *)&n->to, n->to_bytes) < 0)
        log_debug("notification not sent error=%s", strerror(errno));
}

void notify_status(const struct notify *n, const char *text, size_t len)
{
    char line[NOTIFY_STATUS_MAX];
    size_t at = 0;
    for (; at < len && at < sizeof(line) - 1 && text[at]; at++)
        line[at] = (unsigned char)text[at] < 0x20 || text[at] == 0x7f ? ' ' : text[at];
    line[at] = '\0';
    notify_send(n, "STATUS=%s", line);
}
