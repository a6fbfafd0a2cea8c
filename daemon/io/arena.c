/* An arena is memory of the worker, which may extend it at any time. Therefore each operation reads the size again and
 * checks every piece against it. A worker never shrinks its arena; where the descriptor allows it, the arena is sealed
 * against shrinking, so that access to the mapping cannot fault. */
#include "daemon/io/io.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

static err_t piece_place(const struct io_arena *a, struct ckpt_piece *p, uint64_t offset, struct why *why)
{
    uint64_t size = dtype_bytes(p->dtype), bytes = size;
    if (!size)
        return why_set(why, ERR_INVALID, "%.200s has an unknown element type", p->fqn);
    for (int d = 0; d < p->ndim; d++)
        if (p->box.size[d] < 0 || __builtin_mul_overflow(bytes, (uint64_t)p->box.size[d], &bytes))
            return why_set(why, ERR_INVALID, "a box of %.200s is too large", p->fqn);
    if (offset > a->bytes || bytes > a->bytes - offset || offset % size)
        return why_set(why, ERR_INVALID, "%.200s needs %llu bytes at offset %llu of an arena of %zu bytes", p->fqn,
                       (unsigned long long)bytes, (unsigned long long)offset, a->bytes);
    p->data = a->map + offset;
    return OK;
}

err_t io_arena_map(int fd, bool write, struct io_request *r, struct io_arena *ret, struct why *why)
{
    static uint8_t nothing[1];
    struct stat st;
    struct io_arena a = {.map = nothing};
    (void)fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK);
    if (fstat(fd, &st))
        return why_set(why, ERR_IO, "the arena of slot %d cannot be examined: %s", r->slot, strerror(errno));
    if (st.st_size > 0) {
        a.bytes = (size_t)st.st_size;
        /* Without MAP_POPULATE a load would take a page fault for every 4 KiB. */
        a.map = mmap(NULL, a.bytes, write ? PROT_READ | PROT_WRITE : PROT_READ, MAP_SHARED | (write ? MAP_POPULATE : 0),
                     fd, 0);
        if (a.map == MAP_FAILED)
            return why_set(why, err_from_errno(errno), "the arena of slot %d cannot be mapped: %s", r->slot,
                           strerror(errno));
    }
    err_t err = OK;
    for (int i = 0; i < r->n_pieces && !err; i++)
        err = piece_place(&a, &r->pieces[i], r->arena_offsets[i], why);
    if (err)
        io_arena_unmap(&a);
    else
        *ret = a;
    return err;
}

void io_arena_unmap(struct io_arena *a)
{
    if (a->bytes)
        munmap(a->map, a->bytes);
    *a = (struct io_arena){0};
}
