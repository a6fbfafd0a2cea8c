/* All-gather of one tensor or of all tensors of a unit. Pieces in shared bytes are copied from where they lie. A
 * member's private pieces form a stream, one piece after another in the order of the parts, which the member copies
 * through its window block by block. The longest stream determines the number of rounds. A member writes the block of
 * a round while the others may still read the previous one, so a round needs one barrier. */
#include "worker/comm/shm/shm.h"

#include <string.h>

struct shm_gather_call {
    struct comm_group *g;
    const uint8_t *pieces;
    uint8_t *local;
    const struct comm_part *parts;
    int n;
    int64_t size;
    bool shared; /* whether this rank's pieces are */
};

static int64_t min_of(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static int64_t max_of(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

/* Address of member i's part k in this rank's local tensor. */
static uint8_t *place(const struct shm_gather_call *c, int k, int i)
{
    int64_t at = c->parts[k].local;
    for (int j = 0; j < i; j++)
        at += c->parts[k].counts[j];
    return c->local + at * c->size;
}

static int64_t bytes_of(const struct shm_gather_call *c, int k, int i)
{
    return c->parts[k].counts[i] * c->size;
}

static void publish(struct shm_gather_call *c)
{
    struct shm_range ranges[SHM_PARTS];
    for (int k = 0; k < c->n; k++)
        ranges[k] = (struct shm_range){c->pieces + c->parts[k].piece * c->size, (size_t)bytes_of(c, k, c->g->me)};
    c->shared = shm_publish_ranges(c->g, ranges, c->n);
}

static void write_block(const struct shm_gather_call *c, int64_t round)
{
    const int64_t begin = round * (int64_t)SHM_BLOCK, end = begin + (int64_t)SHM_BLOCK;
    uint8_t *block = shm_window(c->g, c->g->me)->in[round & 1];
    int64_t at = 0; /* offset of the part in the stream */
    for (int k = 0; k < c->n && !c->shared && at < end; k++) {
        int64_t bytes = bytes_of(c, k, c->g->me), lo = max_of(at, begin), hi = min_of(at + bytes, end);
        if (lo < hi)
            shm_pass(shm_of(c->g), block + (lo - begin), c->pieces + c->parts[k].piece * c->size + (lo - at),
                     (size_t)(hi - lo));
        at += bytes;
    }
}

static void read_block(const struct shm_gather_call *c, int i, int64_t round)
{
    const int64_t begin = round * (int64_t)SHM_BLOCK, end = begin + (int64_t)SHM_BLOCK;
    const uint8_t *block = shm_window(c->g, i)->in[round & 1];
    int64_t at = 0;
    for (int k = 0; k < c->n && at < end; k++) {
        int64_t bytes = bytes_of(c, k, i), lo = max_of(at, begin), hi = min_of(at + bytes, end);
        if (lo < hi)
            memcpy(place(c, k, i) + (lo - at), block + (lo - begin), (size_t)(hi - lo));
        at += bytes;
    }
}

static void read_shared(const struct shm_gather_call *c, int i)
{
    for (int k = 0; k < c->n; k++)
        if (bytes_of(c, k, i) > 0)
            memcpy(place(c, k, i), shm_peer_range(c->g, i, k), (size_t)bytes_of(c, k, i));
}

static void copy_own(const struct shm_gather_call *c)
{
    for (int k = 0; k < c->n; k++) {
        const uint8_t *from = c->pieces + c->parts[k].piece * c->size;
        uint8_t *to = place(c, k, c->g->me);
        if (from != to && bytes_of(c, k, c->g->me) > 0)
            memmove(to, from, (size_t)bytes_of(c, k, c->g->me));
    }
}

/* Begins with the member after this rank, so that not all ranks read from the same member. */
static void read_round(const struct shm_gather_call *c, int64_t round)
{
    for (int step = 1; step < c->g->n; step++) {
        int i = (c->g->me + step) % c->g->n;
        if (!shm_peer_range(c->g, i, 0))
            read_block(c, i, round);
        else if (round == 0)
            read_shared(c, i);
    }
    if (round == 0)
        copy_own(c);
}

static int64_t rounds_of(const struct shm_gather_call *c)
{
    int64_t most = 1;
    for (int i = 0; i < c->g->n; i++) {
        int64_t bytes = 0;
        for (int k = 0; k < c->n && !shm_peer_range(c->g, i, 0); k++)
            bytes += bytes_of(c, k, i);
        most = max_of(most, (bytes + (int64_t)SHM_BLOCK - 1) / (int64_t)SHM_BLOCK);
    }
    return most;
}

static err_t gather_parts(struct shm_gather_call *c)
{
    publish(c);
    write_block(c, 0);
    err_t err = shm_barrier(c->g);
    if (err)
        return err;
    const int64_t rounds = rounds_of(c);
    read_round(c, 0);
    for (int64_t round = 1; !err && round < rounds; round++) {
        write_block(c, round);
        err = shm_barrier(c->g);
        if (!err)
            read_round(c, round);
    }
    return err ? err : shm_barrier(c->g);
}

err_t shm_unit_gather(struct comm_group *g, struct kern_stream *stream, const void *pieces, void *local,
                      const struct comm_part *parts, int n, enum dtype dtype)
{
    (void)stream;
    err_t err = n ? OK : shm_barrier(g);
    for (int at = 0; !err && at < n; at += SHM_PARTS) {
        struct shm_gather_call c = {
            g, pieces, local, parts + at, (int)min_of(n - at, SHM_PARTS), (int64_t)dtype_bytes(dtype), false};
        err = gather_parts(&c);
    }
    return err;
}

err_t shm_all_gather(struct comm_group *g, struct kern_stream *stream, const void *src, void *dst,
                     const int64_t *counts, enum dtype dtype)
{
    return shm_unit_gather(g, stream, src, dst, &(const struct comm_part){0, 0, counts}, 1, dtype);
}
