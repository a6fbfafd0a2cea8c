#include "worker/share.h"

#include "common/base/log.h"
#include "common/base/paths.h"
#include "kernels/device.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

void core_share_init(struct core_share *s)
{
    struct stat st;
    const char *path = getenv(PATH_WORKERS_ENV);
    *s = (struct core_share){.cores = (int)sysconf(_SC_NPROCESSORS_ONLN)};
    if (!path)
        return;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    void *map = MAP_FAILED;
    if (fd >= 0 && fstat(fd, &st) == 0 && st.st_size >= (off_t)sizeof(*s->workers))
        map = mmap(NULL, sizeof(*s->workers), PROT_READ, MAP_SHARED, fd, 0);
    if (map == MAP_FAILED)
        log_warn("cores are not shared with other jobs path=%s why=\"%s\"", path, strerror(errno));
    else
        s->workers = map;
    if (fd >= 0)
        close(fd);
}

void core_share_follow(struct core_share *s, int threads)
{
    int workers = s->workers ? (int)atomic_load_explicit(s->workers, memory_order_relaxed) : 0;
    int share = workers > 0 ? s->cores / workers : threads;
    share = share < 1 ? 1 : share < threads ? share : threads;
    if (share == s->threads)
        return;
    if (share < threads || s->threads)
        log_info("threads=%d of=%d workers_on_node=%d", share, threads, workers);
    s->threads = share;
    dev_cpu_limit(share);
}
