/* Messages and waiting. Messages in flight are in a list, with their UCX requests, so that they can be ended: UCX uses
 * a buffer until its completion callback has run, with or without an error. */
#include "worker/comm/wire/ucx/internal.h"

#include "common/base/clock.h"

#include <poll.h>
#include <unistd.h>

#define TURNS 64      /* most progress calls in a row */
#define END_MS 2000   /* limit for canceled requests to complete */
#define CLOSE_MS 1000 /* limit for an endpoint to close in order */

static bool is_callers(int lane)
{
    return lane < WIRE_LANES;
}

static void unlink_op(struct ucx_wire *u, const struct wire_op *op)
{
    for (struct wire_op **at = &u->in_flight; *at; at = &(*at)->next)
        if (*at == op) {
            *at = op->next;
            return;
        }
}

static void peer_lost(struct ucx_wire *u, const struct ucx_peer *p, ucs_status_t status)
{
    wire_fail(&u->base, ERR_CLOSED, "lost rank %d on node %d: %s", p->rank, u->node_of[p->rank],
              ucs_status_string(status));
}

/* Completes a message. UCX does not use op->at, so it holds the lane. */
static void finish_op(struct ucx_wire *u, struct ucx_peer *p, struct wire_op *op, ucs_status_t status)
{
    const int lane = (int)op->at;
    unlink_op(u, op);
    op->request = NULL;
    p->pending -= is_callers(lane);
    if (status == UCS_OK)
        op->done = true;
    else if (is_callers(lane) && !u->ended)
        peer_lost(u, p, status);
}

static void on_sent(void *request, ucs_status_t status, void *arg)
{
    struct wire_op *op = arg;
    struct ucx_peer *p = op->peer;
    finish_op(p->u, p, op, status);
    ucp_request_free(request);
}

static void on_received(void *request, ucs_status_t status, const ucp_tag_recv_info_t *info, void *arg)
{
    struct wire_op *op = arg;
    struct ucx_peer *p = op->peer;
    const bool came = status == UCS_OK || status == UCS_ERR_MESSAGE_TRUNCATED;
    if (came && (info->sender_tag & UCX_TAG_BYTES) != op->bytes && is_callers((int)op->at)) {
        wire_sizes_differ(&p->u->base, p->rank, info->sender_tag & UCX_TAG_BYTES, p->u->rank, op->bytes);
        status = UCS_ERR_CANCELED;
    }
    finish_op(p->u, p, op, status);
    ucp_request_free(request);
}

static void add_in_flight(struct ucx_wire *u, struct ucx_peer *p, int lane, struct wire_op *op)
{
    op->peer = p;
    op->at = (size_t)lane;
    op->done = false;
    op->next = u->in_flight;
    u->in_flight = op;
    p->pending += is_callers(lane);
}

void ucx_post_send(struct ucx_wire *u, struct ucx_peer *p, int lane, struct wire_op *op)
{
    const ucp_request_param_t param = {
        .op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA, .cb.send = on_sent, .user_data = op};
    if (u->ended)
        return;
    add_in_flight(u, p, lane, op);
    u->unflushed = true;
    ucs_status_ptr_t r = ucp_tag_send_nbx(p->ep, op->buffer, op->bytes, UCX_TAG(lane, u->rank, op->bytes), &param);
    if (r && UCS_PTR_IS_PTR(r))
        op->request = r;
    else
        finish_op(u, p, op, UCS_PTR_STATUS(r));
}

void ucx_post_recv(struct ucx_wire *u, struct ucx_peer *p, int lane, struct wire_op *op)
{
    const ucp_request_param_t param = {.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA |
                                                       UCP_OP_ATTR_FLAG_NO_IMM_CMPL,
                                       .cb.recv = on_received,
                                       .user_data = op};
    if (u->ended)
        return;
    add_in_flight(u, p, lane, op);
    ucs_status_ptr_t r =
        ucp_tag_recv_nbx(u->worker, op->buffer, op->bytes, UCX_TAG(lane, p->rank, 0), UCX_TAG_MASK, &param);
    if (UCS_PTR_IS_PTR(r))
        op->request = r;
    else
        finish_op(u, p, op, r ? UCS_PTR_STATUS(r) : UCS_ERR_IO_ERROR);
}

/* ---- ends ---- */

static void *close_begin(struct ucx_peer *p, bool force)
{
    const ucp_request_param_t param = {.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS,
                                       .flags = force ? UCP_EP_CLOSE_FLAG_FORCE : 0};
    ucs_status_ptr_t r = p->ep ? ucp_ep_close_nbx(p->ep, &param) : NULL;
    p->ep = NULL;
    return r && UCS_PTR_IS_PTR(r) ? r : NULL;
}

static void close_end(struct ucx_wire *u, void *request, int64_t deadline)
{
    if (!request)
        return;
    while (ucp_request_check_status(request) == UCS_INPROGRESS && clock_mono_ms() < deadline)
        ucp_worker_progress(u->worker);
    ucp_request_free(request);
}

void ucx_close_ep(struct ucx_wire *u, struct ucx_peer *p, bool force)
{
    close_end(u, close_begin(p, force), clock_mono_ms() + CLOSE_MS);
}

void ucx_close_all(struct ucx_wire *u, bool force)
{
    const int64_t deadline = clock_mono_ms() + CLOSE_MS;
    for (int r = 0; r < u->world; r++)
        u->peers[r].closing = close_begin(&u->peers[r], force || u->peers[r].failed);
    for (int r = 0; r < u->world; r++)
        close_end(u, u->peers[r].closing, deadline);
}

/* A forced close ends the sends of an endpoint. Receives belong to no endpoint and are canceled one by one. */
void ucx_end(struct ucx_wire *u)
{
    const int64_t deadline = clock_mono_ms() + END_MS;
    if (u->ended)
        return;
    u->ended = true;
    ucx_close_all(u, true);
    for (struct wire_op *op = u->in_flight; op; op = op->next)
        if (op->request)
            ucp_request_cancel(u->worker, op->request);
    while (u->in_flight && clock_mono_ms() < deadline)
        ucp_worker_progress(u->worker);
}

/* A peer that is done first may leave. It is an error only if messages are outstanding. */
static void check_left(struct ucx_wire *u)
{
    for (int r = 0; r < u->world; r++) {
        const struct ucx_peer *p = &u->peers[r];
        if (p->bye_in.done && p->pending > 0)
            wire_fail(&u->base, ERR_CLOSED, "rank %d on node %d has left the epoch", r, u->node_of[r]);
        else if (p->failed && !p->bye_in.done)
            peer_lost(u, p, p->why_failed);
    }
}

/* ---- progress ---- */

static bool move(struct ucx_wire *u)
{
    bool moved = false;
    for (int i = 0; i < TURNS && ucp_worker_progress(u->worker); i++)
        moved = true;
    return moved;
}

static void sleep_on(struct ucx_wire *u, int wait_ms)
{
    struct pollfd fds[2] = {{.fd = u->efd, .events = POLLIN}, {.fd = u->bell, .events = POLLIN}};
    if (ucp_worker_arm(u->worker) == UCS_OK)
        (void)poll(fds, 2, wait_ms); /* the caller checks everything, whatever ended the wait */
}

static err_t check_dead(struct ucx_wire *u)
{
    const bool aborted = atomic_load(&u->base.aborted);
    if (!aborted && !u->base.dead)
        return OK;
    ucx_end(u);
    return aborted ? ERR_CANCELED : u->base.dead;
}

err_t ucx_progress(struct comm_wire *w, int wait_ms)
{
    struct ucx_wire *u = (struct ucx_wire *)w;
    err_t err = check_dead(u);
    if (err)
        return err;
    if (!move(u)) {
        check_left(u);
        if (wait_ms > 0 && !w->dead) {
            sleep_on(u, wait_ms);
            move(u);
        }
    }
    return check_dead(u);
}

bool ucx_flushed(struct comm_wire *w)
{
    static const ucp_request_param_t param = {0};
    struct ucx_wire *u = (struct ucx_wire *)w;
    if (u->flush && ucp_request_check_status(u->flush) == UCS_INPROGRESS)
        return false;
    if (u->flush)
        ucp_request_free(u->flush);
    u->flush = NULL;
    if (!u->unflushed || u->ended)
        return true;
    u->unflushed = false;
    ucs_status_ptr_t r = ucp_worker_flush_nbx(u->worker, &param);
    if (UCS_PTR_IS_PTR(r))
        u->flush = r;
    return !u->flush;
}
