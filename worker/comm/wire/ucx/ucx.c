/* The function table of the ucx wire: settings of UCX, open, close and abort. */
#include "worker/comm/wire/ucx/internal.h"

#include "common/base/clock.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <openssl/crypto.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#define BYE_MS 1000 /* limit for the farewell messages to leave this process */

/* ---- the library's settings ---- */

static bool has_rdma(void)
{
    DIR *d = opendir("/sys/class/infiniband");
    bool any = false;
    for (const struct dirent *e = d ? readdir(d) : NULL; e && !any; e = readdir(d))
        any = e->d_name[0] != '.';
    if (d)
        closedir(d);
    return any;
}

static bool has_address(const struct ifaddrs *i, const union wire_address *at)
{
    if (!i->ifa_addr || i->ifa_addr->sa_family != at->any.sa_family)
        return false;
    if (at->any.sa_family == AF_INET)
        return ((const struct sockaddr_in *)(const void *)i->ifa_addr)->sin_addr.s_addr == at->v4.sin_addr.s_addr;
    return memcmp(&((const struct sockaddr_in6 *)(const void *)i->ifa_addr)->sin6_addr, &at->v6.sin6_addr, 16) == 0;
}

/* Returns the network interface that has the address, so that UCX uses no other. Returns "all" if no interface has it,
 * or if there are RDMA devices, whose names differ from those of the interfaces. */
static void find_device(const char *address, char *ret, size_t room)
{
    union wire_address at;
    struct ifaddrs *list = NULL;
    snprintf(ret, room, "all");
    if (has_rdma() || !address || wire_address_find(address, 0, &at) || getifaddrs(&list))
        return;
    for (const struct ifaddrs *i = list; i; i = i->ifa_next)
        if (has_address(i, &at))
            snprintf(ret, room, "%s", i->ifa_name);
    freeifaddrs(list);
}

/* Rendezvous transfers are disabled. In UCX 1.13, smaller messages that are sent later overtake them, and the process
 * terminates when an endpoint is closed by force during one. */
static ucs_status_t configure(ucp_config_t *settings, const struct wire_config *config)
{
    const char *tls = getenv("DTD_UCX_TLS");
    char device[IF_NAMESIZE + 1];
    if (config->ports && config->ports[0]) /* each transport over TCP listens, too; a user's own setting stays */
        setenv("UCX_TCP_PORT_RANGE", config->ports, 0);
    find_device(config->address, device, sizeof(device));
    ucs_status_t status = ucp_config_modify(settings, "TLS", tls ? tls : has_rdma() ? "rc,tcp,self" : "tcp,self");
    if (status == UCS_OK)
        status = ucp_config_modify(settings, "NET_DEVICES", device);
    return status == UCS_OK ? ucp_config_modify(settings, "RNDV_THRESH", "inf") : status;
}

static ucs_status_t make_context(struct ucx_wire *u, const struct wire_config *config, int remote)
{
    ucp_config_t *settings;
    const ucp_params_t params = {.field_mask = UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_ESTIMATED_NUM_EPS,
                                 .features = UCP_FEATURE_TAG | UCP_FEATURE_WAKEUP,
                                 .estimated_num_eps = (size_t)remote};
    ucs_status_t status = ucp_config_read(NULL, NULL, &settings);
    if (status != UCS_OK)
        return status;
    status = configure(settings, config);
    if (status == UCS_OK)
        status = ucp_init(&params, settings, &u->context);
    ucp_config_release(settings);
    return status;
}

static ucs_status_t make_worker(struct ucx_wire *u)
{
    const ucp_worker_params_t params = {.field_mask =
                                            UCP_WORKER_PARAM_FIELD_THREAD_MODE | UCP_WORKER_PARAM_FIELD_CLIENT_ID,
                                        .thread_mode = UCS_THREAD_MODE_SERIALIZED,
                                        .client_id = u->epoch << 16 | (uint64_t)u->rank};
    ucs_status_t status = ucp_worker_create(u->context, &params, &u->worker);
    return status == UCS_OK ? ucp_worker_get_efd(u->worker, &u->efd) : status;
}

/* ---- open and close ---- */

/* Notifies all peers and waits at most BYE_MS until the messages have left; then closes the endpoints. */
static void send_goodbyes(struct ucx_wire *u)
{
    const int64_t deadline = clock_mono_ms() + BYE_MS;
    for (int r = 0; r < u->world; r++) {
        struct ucx_peer *p = &u->peers[r];
        if (p->ep && !p->failed)
            ucx_post_send(u, p, UCX_LANE_BYE, &p->bye_out);
    }
    while (!ucx_flushed(&u->base) && clock_mono_ms() < deadline)
        ucp_worker_progress(u->worker);
    ucx_close_all(u, false);
}

static void ucx_close(struct comm_wire *w)
{
    struct ucx_wire *u = (struct ucx_wire *)w;
    if (u->worker && !w->dead && !atomic_load(&w->aborted))
        send_goodbyes(u);
    if (u->worker)
        ucx_end(u);
    if (u->flush)
        ucp_request_free(u->flush);
    if (u->worker)
        ucp_worker_destroy(u->worker);
    if (u->context)
        ucp_cleanup(u->context);
    OPENSSL_cleanse(u->key, sizeof(u->key));
    if (u->bell >= 0)
        close(u->bell);
    free(u->peers);
    free(u->node_of);
    free(u);
}

static err_t allocate(struct ucx_wire *u, const struct wire_config *config, struct why *why)
{
    const size_t world = (size_t)config->world;
    int remote = 0;
    u->node_of = malloc(world * sizeof(*u->node_of));
    u->peers = calloc(world, sizeof(*u->peers));
    u->bell = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (!u->node_of || !u->peers)
        return why_set(why, ERR_NOMEM, "out of memory");
    if (u->bell < 0)
        return why_set(why, ERR_LIMIT, "cannot create an eventfd: %s", strerror(errno));
    memcpy(u->node_of, config->node_of, world * sizeof(*u->node_of));
    u->node = u->node_of[config->rank];
    for (int r = 0; r < config->world; r++) {
        u->peers[r].u = u;
        u->peers[r].rank = r;
        remote += ucx_is_remote(u, r);
    }
    ucs_status_t status = make_context(u, config, remote);
    if (status == UCS_OK)
        status = make_worker(u);
    if (status != UCS_OK)
        return why_set(why, ERR_UNSUPPORTED, "UCX cannot be used here: %s", ucs_status_string(status));
    return wire_key(config, u->key, why);
}

static err_t ucx_open(const struct wire_config *config, struct comm_wire **ret, struct why *why)
{
    struct ucx_wire *u = calloc(1, sizeof(*u));
    if (!u)
        return why_set(why, ERR_NOMEM, "out of memory");
    *u = (struct ucx_wire){.rank = config->rank, .world = config->world, .epoch = config->epoch, .efd = -1, .bell = -1};
    u->base.ops = dtd_ucx_module.ops;
    err_t err = allocate(u, config, why);
    err = err ? err : ucx_connect_all(u, config, why);
    if (err) {
        u->base.dead = err; /* close without notifying the peers */
        ucx_close(&u->base);
        return err;
    }
    for (int r = 0; r < u->world; r++)
        if (ucx_is_remote(u, r))
            ucx_post_recv(u, &u->peers[r], UCX_LANE_BYE, &u->peers[r].bye_in);
    snprintf(u->base.note, sizeof(u->base.note), "UCX %s", ucp_get_version_string());
    *ret = &u->base;
    return OK;
}

static void ucx_abort(struct comm_wire *w)
{
    struct ucx_wire *u = (struct ucx_wire *)w;
    const uint64_t one = 1;
    if (!atomic_exchange(&w->aborted, 1) && write(u->bell, &one, sizeof(one)) < 0)
        return; /* the eventfd is full, so the thread wakes up anyway */
}

static void ucx_send(struct comm_wire *w, int rank, enum wire_lane lane, struct wire_op *op)
{
    struct ucx_wire *u = (struct ucx_wire *)w;
    ucx_post_send(u, &u->peers[rank], (int)lane, op);
}

static void ucx_recv(struct comm_wire *w, int rank, enum wire_lane lane, struct wire_op *op)
{
    struct ucx_wire *u = (struct ucx_wire *)w;
    ucx_post_recv(u, &u->peers[rank], (int)lane, op);
}

static const struct wire_ops ops = {.name = "ucx",
                                    .open = ucx_open,
                                    .close = ucx_close,
                                    .abort = ucx_abort,
                                    .send = ucx_send,
                                    .recv = ucx_recv,
                                    .progress = ucx_progress,
                                    .flushed = ucx_flushed};

__attribute__((visibility("default"))) const struct wire_module dtd_ucx_module = {WIRE_MODULE_ABI, &ops};
