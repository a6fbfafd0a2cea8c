/* How the ranks of an epoch connect over UCX.
 *
 *   listen | put "ADDRESS PORT" into the store | get the addresses of all lower ranks of other nodes, connect | both
 *   sides send a hello
 *
 * A connection request contains the rank and epoch of its sender (UCX's client id) and is rejected at once if they are
 * not acceptable. The hello then proves the secret. Both sides must call progress until all connections are made. */
#include "worker/comm/wire/ucx/internal.h"

#include "common/base/clock.h"
#include "common/base/log.h"

#include <errno.h>
#include <inttypes.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

struct ucx_connecting {
    struct ucx_wire *u;
    const struct wire_config *config;
    int64_t deadline;
    struct why *why;
};

static uint64_t client_id(uint64_t epoch, int rank)
{
    return epoch << 16 | (uint64_t)rank;
}

/* ---- hello ---- */

static void compute_proof(const struct ucx_wire *u, struct ucx_hello *h, uint8_t *ret)
{
    unsigned bytes = 0;
    if (!HMAC(EVP_sha256(), u->key, sizeof(u->key), (const uint8_t *)h->identity, sizeof(h->identity), ret, &bytes))
        memset(ret, 0, sizeof(h->proof));
}

static void send_hello(struct ucx_peer *p)
{
    const struct ucx_wire *u = p->u;
    const struct wire_identity id = {u->epoch, u->rank, p->rank, 0, u->world};
    memset(&p->mine, 0, sizeof(p->mine));
    wire_identity_print(&id, p->mine.identity);
    compute_proof(u, &p->mine, p->mine.proof);
    p->hello_out = (struct wire_op){.buffer = (uint8_t *)&p->mine, .bytes = sizeof(p->mine)};
    ucx_post_send(p->u, p, UCX_LANE_HELLO, &p->hello_out);
}

static void receive_hello(struct ucx_peer *p)
{
    p->hello_in = (struct wire_op){.buffer = (uint8_t *)&p->theirs, .bytes = sizeof(p->theirs)};
    ucx_post_recv(p->u, p, UCX_LANE_HELLO, &p->hello_in);
}

static const char *hello_error(struct ucx_peer *p)
{
    struct wire_identity id;
    uint8_t proof[sizeof(p->theirs.proof)];
    p->theirs.identity[sizeof(p->theirs.identity) - 1] = '\0';
    compute_proof(p->u, &p->theirs, proof);
    if (CRYPTO_memcmp(proof, p->theirs.proof, sizeof(proof)) != 0)
        return "it does not have the epoch's secret";
    if (wire_identity_parse(p->theirs.identity, strlen(p->theirs.identity), &id))
        return "its identity is malformed";
    if (id.epoch != p->u->epoch || id.from != p->rank || id.to != p->u->rank || id.world != p->u->world)
        return "it belongs to another epoch, rank or number of ranks";
    return NULL;
}

/* ---- connections ---- */

static void on_error(void *arg, ucp_ep_h ep, ucs_status_t status)
{
    struct ucx_peer *p = arg;
    if (p->ep != ep && p->ep)
        return;
    p->failed = true;
    p->why_failed = status;
}

static ucs_status_t make_ep(struct ucx_peer *p, ucp_ep_params_t *params)
{
    params->field_mask |= UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE | UCP_EP_PARAM_FIELD_ERR_HANDLER;
    params->err_mode = UCP_ERR_HANDLING_MODE_PEER;
    params->err_handler = (ucp_err_handler_t){.cb = on_error, .arg = p};
    p->failed = false;
    return ucp_ep_create(p->u->worker, params, &p->ep);
}

static err_t connect_to(struct ucx_connecting *m, int rank)
{
    struct ucx_peer *p = &m->u->peers[rank];
    union wire_address at;
    err_t err = wire_lookup_address(m->config, "ucx", rank, m->deadline, &at, m->why);
    if (err)
        return err;
    ucp_ep_params_t params = {.field_mask = UCP_EP_PARAM_FIELD_FLAGS | UCP_EP_PARAM_FIELD_SOCK_ADDR,
                              .flags = UCP_EP_PARAMS_FLAGS_CLIENT_SERVER | UCP_EP_PARAMS_FLAGS_SEND_CLIENT_ID,
                              .sockaddr = {&at.any, wire_address_bytes(&at)}};
    p->outgoing = true;
    ucs_status_t status = make_ep(p, &params);
    if (status != UCS_OK)
        return why_set(m->why, ERR_IO, "cannot connect to rank %d on node %d: %s", rank, m->u->node_of[rank],
                       ucs_status_string(status));
    send_hello(p);
    return OK;
}

static void refuse(const struct sockaddr_storage *at, const char *text)
{
    char from[WIRE_ADDRESS_MAX] = "?";
    union wire_address address;
    memcpy(&address, at, sizeof(address));
    if (address.any.sa_family == AF_INET || address.any.sa_family == AF_INET6)
        wire_address_print(&address, from);
    log_warn("comm_connection_refused from=\"%s\" why=\"%s\"", from, text);
}

/* The peer with this client id; NULL if it must not connect to this rank or is connected already. */
static struct ucx_peer *find_peer(struct ucx_wire *u, uint64_t id)
{
    const int rank = (int)(id & 0xffff);
    if (id != client_id(u->epoch, rank) || rank <= u->rank || rank >= u->world || !ucx_is_remote(u, rank))
        return NULL;
    return u->peers[rank].ep ? NULL : &u->peers[rank];
}

static void on_request(ucp_conn_request_h request, void *arg)
{
    struct ucx_wire *u = arg;
    ucp_conn_request_attr_t attr = {.field_mask = UCP_CONN_REQUEST_ATTR_FIELD_CLIENT_ADDR |
                                                  UCP_CONN_REQUEST_ATTR_FIELD_CLIENT_ID};
    ucp_ep_params_t params = {.field_mask = UCP_EP_PARAM_FIELD_CONN_REQUEST, .conn_request = request};
    const bool known = ucp_conn_request_query(request, &attr) == UCS_OK;
    struct ucx_peer *p = known ? find_peer(u, attr.client_id) : NULL;
    if (!p) {
        refuse(&attr.client_address, "its rank or epoch must not connect to this rank");
        ucp_listener_reject(u->listener, request);
        return;
    }
    if (make_ep(p, &params) != UCS_OK) {
        p->ep = NULL;
        return;
    }
    send_hello(p);
}

/* UCX logs a port that is in use as an error, so this asks the kernel first. */
static bool is_used(const union wire_address *at)
{
    int fd = socket(at->any.sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    bool ret = fd >= 0 && bind(fd, &at->any, wire_address_bytes(at)) < 0 && errno == EADDRINUSE;
    if (fd >= 0)
        close(fd);
    return ret;
}

static err_t listen_at(void *arg, const union wire_address *at, struct why *why)
{
    struct ucx_connecting *m = arg;
    const ucp_listener_params_t params = {.field_mask = UCP_LISTENER_PARAM_FIELD_SOCK_ADDR |
                                                        UCP_LISTENER_PARAM_FIELD_CONN_HANDLER,
                                          .sockaddr = {&at->any, wire_address_bytes(at)},
                                          .conn_handler = {on_request, m->u}};
    if (is_used(at))
        return ERR_EXISTS;
    ucs_status_t status = ucp_listener_create(m->u->worker, &params, &m->u->listener);
    if (status == UCS_OK)
        return OK;
    m->u->listener = NULL;
    return why_set(why, status == UCS_ERR_BUSY ? ERR_EXISTS : ERR_IO,
                   "UCX cannot listen on %s: %s; " WIRE_ADDRESS_REMEDY, m->config->address, ucs_status_string(status));
}

static err_t listen_here(struct ucx_connecting *m)
{
    union wire_address at;
    ucp_listener_attr_t attr = {.field_mask = UCP_LISTENER_ATTR_FIELD_SOCKADDR};
    err_t err = wire_listen(m->config, listen_at, m, m->why);
    if (err)
        return err;
    ucs_status_t status = ucp_listener_query(m->u->listener, &attr);
    if (status != UCS_OK)
        return why_set(m->why, ERR_IO, "UCX cannot listen on %s: %s", m->config->address, ucs_status_string(status));
    memcpy(&at, &attr.sockaddr, sizeof(at));
    return wire_publish_address(m->config, "ucx", &at, m->why);
}

/* ---- opening ---- */

/* Checks the peer's hello and sets p->connected. An incoming peer without the secret is disconnected and may connect
 * again. A peer that was connected and is lost is detected by progress later. */
static err_t check_peer(struct ucx_connecting *m, struct ucx_peer *p)
{
    if (p->connected)
        return OK;
    const char *wrong = p->hello_in.done ? hello_error(p) : NULL;
    p->connected = p->hello_in.done && !wrong;
    if (p->connected || (!wrong && !p->failed))
        return OK;
    if (p->outgoing)
        return why_set(m->why, wrong ? ERR_DENIED : ERR_IO, "cannot connect to rank %d on node %d: %s", p->rank,
                       m->u->node_of[p->rank], wrong ? wrong : ucs_status_string(p->why_failed));
    log_warn("comm_connection_refused rank=%d why=\"%s\"", p->rank, wrong ? wrong : ucs_status_string(p->why_failed));
    ucx_close_ep(m->u, p, true);
    p->failed = false;
    if (wrong)
        receive_hello(p);
    return OK;
}

static err_t name_missing(const struct ucx_connecting *m)
{
    char text[128] = "";
    size_t at = 0;
    for (int r = 0; r < m->u->world && at < sizeof(text) - 16; r++)
        if (ucx_is_remote(m->u, r) && !m->u->peers[r].connected)
            at += (size_t)snprintf(text + at, sizeof(text) - at, " %d", r);
    return why_set(m->why, ERR_TIMEOUT, "no connection with rank%s of other nodes within %" PRId64 " ms", text,
                   m->config->timeout_ms);
}

static err_t wait_for_all(struct ucx_connecting *m)
{
    bool all = false;
    err_t err = OK;
    while (!err && !all) {
        all = true;
        for (int r = 0; !err && r < m->u->world; r++) {
            struct ucx_peer *p = &m->u->peers[r];
            if (!ucx_is_remote(m->u, r))
                continue;
            err = check_peer(m, p);
            all &= p->connected && (p->hello_out.done || p->failed);
        }
        if (!err && !all && clock_mono_ms() >= m->deadline)
            err = name_missing(m);
        err = err ? err : wire_check_canceled(m->config, m->why);
        if (!err && !all && !ucp_worker_progress(m->u->worker) && ucp_worker_arm(m->u->worker) == UCS_OK) {
            struct timespec nap = {.tv_nsec = 1000000};
            nanosleep(&nap, NULL); /* simpler than to poll the descriptor; connecting may take a millisecond more */
        }
    }
    return err;
}

err_t ucx_connect_all(struct ucx_wire *u, const struct wire_config *config, struct why *why)
{
    struct ucx_connecting m = {.u = u, .config = config, .deadline = clock_mono_ms() + config->timeout_ms, .why = why};
    for (int r = 0; r < u->world; r++)
        if (ucx_is_remote(u, r))
            receive_hello(&u->peers[r]);
    err_t err = listen_here(&m);
    for (int r = 0; !err && r < u->rank; r++)
        if (ucx_is_remote(u, r))
            err = connect_to(&m, r);
    err = err ? err : wait_for_all(&m);
    if (u->listener)
        ucp_listener_destroy(u->listener);
    u->listener = NULL;
    return err;
}
