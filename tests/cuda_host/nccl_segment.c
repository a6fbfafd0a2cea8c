/* The shared segment of a communicator. Its name is removed as soon as all ranks have joined, so that nothing remains
 * when they crash. */
#include "tests/cuda_host/nccl_inner.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static size_t segment_bytes(int n)
{
    return sizeof(struct nccl_segment) + (size_t)n * NCCL_PIECE_BYTES +
           (size_t)n * (size_t)n * sizeof(struct nccl_lane);
}

/* The identity of the host, as NCCL determines it. */
static void host_name(char *ret, size_t bytes)
{
    const char *id = getenv("NCCL_HOSTID");
    if (id)
        snprintf(ret, bytes, "%s", id);
    else if (gethostname(ret, bytes))
        ret[0] = '\0';
    ret[bytes - 1] = '\0';
}

bool nccl_segment_join(struct ncclComm *c)
{
    size_t bytes = segment_bytes(c->n);
    int fd = shm_open(c->name, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0 || ftruncate(fd, (off_t)bytes)) {
        snprintf(c->error, sizeof(c->error), "the segment %s: %m", c->name);
        if (fd >= 0)
            close(fd);
        return false;
    }
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (p == MAP_FAILED) {
        snprintf(c->error, sizeof(c->error), "the segment %s: %m", c->name);
        return false;
    }
    c->segment = p;
    struct nccl_seat *me = &c->segment->seat[c->rank];
    host_name(me->host, sizeof(me->host));
    me->device = c->device;
    atomic_store(&me->here, 1);
    return true;
}

void nccl_segment_leave(struct ncclComm *c)
{
    if (!c->segment)
        return;
    if (!nccl_segment_all_here(c))
        shm_unlink(c->name);
    munmap(c->segment, segment_bytes(c->n));
    c->segment = NULL;
}

bool nccl_segment_all_here(const struct ncclComm *c)
{
    for (int i = 0; i < c->n; i++)
        if (!atomic_load(&c->segment->seat[i].here))
            return false;
    shm_unlink(c->name);
    return true;
}

bool nccl_segment_duplicate(struct ncclComm *c)
{
    const struct nccl_seat *seat = c->segment->seat;
    for (int a = 0; a < c->n; a++)
        for (int b = a + 1; b < c->n; b++)
            if (seat[a].device == seat[b].device && strcmp(seat[a].host, seat[b].host) == 0) {
                snprintf(c->error, sizeof(c->error),
                         "Duplicate GPU detected : rank %d and rank %d both on CUDA device %d", a, b, seat[a].device);
                return true;
            }
    return false;
}
