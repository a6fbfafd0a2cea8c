#include "daemon/control/local/sharing.h"

#include "common/base/log.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* Workers of a system-wide dtd run as other users, who may read the file. */
void sharing_init(struct sharing *s, const char *dir)
{
    *s = (struct sharing){0};
    snprintf(s->path, sizeof(s->path), "%s/" SHARING_FILE, dir);
    int fd = open(s->path, O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    void *map = MAP_FAILED;
    if (fd >= 0 && fchmod(fd, 0644) == 0 && ftruncate(fd, sizeof(*s->workers)) == 0)
        map = mmap(NULL, sizeof(*s->workers), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (map == MAP_FAILED)
        log_warn("jobs that run at the same time do not share cores path=%s why=\"%s\"", s->path, strerror(errno));
    else
        s->workers = map;
    if (fd >= 0)
        close(fd);
}

void sharing_set(struct sharing *s, uint32_t workers)
{
    if (s->workers)
        atomic_store_explicit(s->workers, workers, memory_order_relaxed);
}
