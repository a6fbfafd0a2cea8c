/* Sends and receives. Those of one NCCL group are one item of their stream. At most one chunk is buffered: a send
 * completes when its receiver has all data, and the item when all its messages are complete. Messages proceed
 * concurrently, except those of one direction to one peer. Items of a communicator run in the order in which they were
 * queued, on any stream, as NCCL's launches do. A length that differs on the two ends ends the process. */
#include "tests/cuda_host/nccl_inner.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct p2p_item {
    struct ncclComm *comm;
    struct nccl_batch *batch;
    uint64_t turn;
};

static struct nccl_lane *lane_of(const struct ncclComm *c, const struct nccl_message *m)
{
    struct nccl_lane *lanes = (struct nccl_lane *)(void *)(c->segment->piece + (size_t)c->n * NCCL_PIECE_BYTES);
    int from = m->send ? c->rank : m->peer, to = m->send ? m->peer : c->rank;
    return &lanes[from * c->n + to];
}

static void send_some(const struct ncclComm *c, struct nccl_message *m)
{
    struct nccl_lane *lane = lane_of(c, m);
    uint64_t written = atomic_load(&lane->written);
    if (atomic_load(&lane->taken) != written)
        return;
    size_t left = m->bytes - m->done, bytes = left < NCCL_LANE_BYTES ? left : NCCL_LANE_BYTES;
    m->over = left == 0; /* the last chunk was read */
    if (m->over)
        return;
    memcpy(lane->chunk, m->at + m->done, bytes);
    lane->total = m->bytes;
    m->done += bytes;
    atomic_store(&lane->written, written + 1);
}

static void receive_some(const struct ncclComm *c, struct nccl_message *m)
{
    struct nccl_lane *lane = lane_of(c, m);
    uint64_t taken = atomic_load(&lane->taken);
    if (atomic_load(&lane->written) == taken)
        return;
    if (lane->total != m->bytes)
        cuda_host_fail("ncclSend of %zu bytes from rank %d to rank %d, which receives %zu", lane->total, m->peer,
                       c->rank, m->bytes);
    size_t left = m->bytes - m->done, bytes = left < NCCL_LANE_BYTES ? left : NCCL_LANE_BYTES;
    memcpy(m->at + m->done, lane->chunk, bytes);
    m->done += bytes;
    m->over = m->done == m->bytes;
    atomic_store(&lane->taken, taken + 1);
}

static bool move_all(struct p2p_item *w)
{
    bool busy[2][NCCL_MAX_RANKS] = {{false}}, over = true;
    for (int i = 0; i < w->batch->n; i++) {
        struct nccl_message *m = &w->batch->message[i];
        if (!m->over && !busy[m->send][m->peer])
            (m->send ? send_some : receive_some)(w->comm, m);
        busy[m->send][m->peer] |= !m->over;
        over = over && m->over;
    }
    return over;
}

static bool run_item(void *arg)
{
    struct p2p_item *w = arg;
    struct ncclComm *c = w->comm;
    if (c->aborted || host_sticky)
        return true;
    if (c->p2p_over != w->turn || !move_all(w))
        return false;
    c->p2p_over++;
    return true;
}

static void drop_item(void *arg)
{
    struct p2p_item *w = arg;
    w->comm->queued--;
    nccl_comm_release(w->comm);
    free(w->batch);
    free(w);
}

void nccl_p2p_submit(struct ncclComm *c, cudaStream_t stream, struct nccl_batch *batch)
{
    struct p2p_item *w = malloc(sizeof(*w));
    if (!w)
        abort();
    *w = (struct p2p_item){c, batch, c->p2p_given++};
    for (int i = 0; i < batch->n; i++)
        if (host_memory_of(batch->message[i].at, batch->message[i].bytes, "ncclSend or ncclRecv") != HOST_DEVICE)
            cuda_host_fail("ncclSend or ncclRecv of memory that is not the device's");
    c->refs++;
    c->queued++;
    host_counts.collectives++;
    host_submit(host_stream_of(stream, c->device),
                &(struct host_work){"ncclSend and ncclRecv", run_item, drop_item, w});
}
