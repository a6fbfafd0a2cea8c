/* Messages and all-to-all: several NCCL sends and receives in one NCCL group, which the device runs concurrently.
 *
 * A post is only recorded. A push or a wait submits all recorded posts of the rank as one NCCL group on the root
 * communicator, whichever groups they were posted in. With two communicators, kernels would run one after the other on
 * the stream, and ranks with different orders would deadlock. So a ring step, or an exchange between two slots of a
 * pipeline, is one launch on every rank, and no send delays the receive after it, although sends are not buffered. A
 * wait does not block the host: work that is queued on the stream later runs after the messages. An empty message
 * needs no NCCL call, because both ends have the same size. */
#include "worker/comm/nccl/internal.h"

static err_t post_message(struct comm_group *g, struct nccl_post p, int slot)
{
    struct nccl_comm *n = nccl_of(g);
    if (atomic_load(&n->dead))
        return nccl_canceled(n);
    p.peer = g->ranks[p.peer];
    p.pending = true;
    p.serial = ++n->posted;
    n->post[slot] = p;
    return OK;
}

err_t nccl_send_post(struct comm_group *g, struct kern_stream *s, const void *src, int64_t bytes, int to, int slot)
{
    return post_message(
        g, (struct nccl_post){.buffer = (uint8_t *)src, .bytes = bytes, .peer = to, .send = true, .stream = s}, slot);
}

err_t nccl_recv_post(struct comm_group *g, struct kern_stream *s, void *dst, int64_t bytes, int from, int slot)
{
    return post_message(g, (struct nccl_post){.buffer = dst, .bytes = bytes, .peer = from, .stream = s}, slot);
}

/* Lists the posts that have not been submitted, in the order of posting. */
static int find_posts(struct nccl_comm *n, struct nccl_post *ret[COMM_SLOTS])
{
    int found = 0;
    for (int slot = 0; slot < COMM_SLOTS; slot++) {
        struct nccl_post *p = &n->post[slot];
        if (!p->pending)
            continue;
        int at = found++;
        for (; at > 0 && ret[at - 1]->serial > p->serial; at--)
            ret[at] = ret[at - 1];
        ret[at] = p;
    }
    return found;
}

static ncclResult_t submit(const struct nccl_comm *n, const struct nccl_post *p)
{
    if (p->bytes == 0)
        return ncclSuccess;
    return p->send ? ncclSend(p->buffer, (size_t)p->bytes, ncclUint8, p->peer, n->root, nccl_native(p->stream))
                   : ncclRecv(p->buffer, (size_t)p->bytes, ncclUint8, p->peer, n->root, nccl_native(p->stream));
}

static err_t submit_posts(struct nccl_comm *n, struct kern_stream *s)
{
    struct nccl_post *posts[COMM_SLOTS];
    int64_t bytes = 0;
    int n_posts = find_posts(n, posts);
    for (int i = 0; i < n_posts; i++)
        bytes += posts[i]->bytes;
    err_t err = nccl_enter(n);
    if (err)
        return err;
    ncclResult_t code = bytes ? ncclGroupStart() : ncclSuccess;
    for (int i = 0; i < n_posts && nccl_in_order(code); i++)
        code = submit(n, posts[i]);
    for (int i = 0; i < n_posts; i++)
        posts[i]->pending = false;
    return nccl_queued_on(n, &n->root, s, bytes ? nccl_group_end(code) : code, "ncclSend and ncclRecv", __LINE__);
}

err_t nccl_push(struct comm *c)
{
    struct nccl_comm *n = (struct nccl_comm *)c;
    struct nccl_post *posts[COMM_SLOTS];
    if (atomic_load(&n->dead))
        return nccl_canceled(n);
    return find_posts(n, posts) ? submit_posts(n, posts[0]->stream) : OK;
}

err_t nccl_message_wait(struct comm_group *g, int slot)
{
    struct nccl_comm *n = nccl_of(g);
    const struct nccl_post *p = &n->post[slot];
    if (atomic_load(&n->dead))
        return nccl_canceled(n);
    return p->pending ? submit_posts(n, p->stream) : OK;
}

err_t nccl_copy(struct comm_group *g, struct kern_stream *s, void *dst, const void *src, int64_t bytes)
{
    return atomic_load(&nccl_of(g)->dead) ? nccl_canceled(nccl_of(g)) : nccl_copy_alone(s, dst, src, bytes);
}

/* ---- all-to-all ---- */

struct nccl_exchange {
    struct comm_group *g;
    struct kern_stream *s;
    const uint8_t *src;
    uint8_t *dst;
    const int64_t *send_counts, *recv_counts;
    size_t size;
};

static ncclResult_t exchange_all(const struct nccl_exchange *x)
{
    const uint8_t *src = x->src;
    uint8_t *dst = x->dst;
    ncclComm_t comm = *nccl_comm_of(x->g);
    ncclResult_t code = ncclGroupStart();
    for (int i = 0; i < x->g->n && nccl_in_order(code); i++) {
        size_t out = (size_t)x->send_counts[i] * x->size, in = (size_t)x->recv_counts[i] * x->size;
        if (i != x->g->me && out)
            code = ncclSend(src, out, ncclUint8, i, comm, nccl_native(x->s));
        if (i != x->g->me && in && nccl_in_order(code))
            code = ncclRecv(dst, in, ncclUint8, i, comm, nccl_native(x->s));
        src += out;
        dst += in;
    }
    return nccl_group_end(code);
}

static err_t copy_own(const struct nccl_exchange *x)
{
    int64_t out = 0, in = 0;
    for (int i = 0; i < x->g->me; i++) {
        out += x->send_counts[i];
        in += x->recv_counts[i];
    }
    return nccl_copy_alone(x->s, x->dst + (size_t)in * x->size, x->src + (size_t)out * x->size,
                           x->send_counts[x->g->me] * (int64_t)x->size);
}

static bool has_any(const struct nccl_exchange *x)
{
    for (int i = 0; i < x->g->n; i++)
        if (i != x->g->me && (x->send_counts[i] || x->recv_counts[i]))
            return true;
    return false;
}

err_t nccl_all_to_all(struct comm_group *g, struct kern_stream *s, const void *src, const int64_t *send_counts,
                      void *dst, const int64_t *recv_counts, enum dtype dtype)
{
    const struct nccl_exchange x = {g, s, src, dst, send_counts, recv_counts, dtype_bytes(dtype)};
    err_t err = copy_own(&x);
    if (err || !has_any(&x))
        return err;
    err = nccl_enter(nccl_of(g));
    if (err)
        return err;
    return nccl_queued(g, s, exchange_all(&x), "ncclSend and ncclRecv of an all-to-all", __LINE__);
}
