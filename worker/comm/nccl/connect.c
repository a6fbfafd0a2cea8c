/* Ranks find each other through the epoch's store: every rank R puts nccl/here/R (its GPU and host), and rank 0 puts
 * nccl/id.
 *
 * NCCL refuses two ranks of one host on one GPU. If ranks share a GPU, every rank sets NCCL_HOSTID to a value of its
 * own, so NCCL sees one host per rank and connects them by sockets; on a single machine NCCL_SOCKET_IFNAME selects the
 * loopback interface. NCCL reads both variables once per process, in its first call, so they are set before that and
 * stay set. Values that the user has set are kept. */
#include "worker/comm/nccl/internal.h"

#include "common/base/clock.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define LOCATION_MAX 256

/* A rank's GPU ("GPU-...") and host name, as published in the store. */
struct nccl_location {
    char gpu[96], host[160];
};

static int64_t left_ms(int64_t deadline)
{
    int64_t left = deadline - clock_mono_ms();
    return left > 0 ? left : 0;
}

static err_t publish_location(struct nccl_comm *n, struct why *why)
{
    struct dev_facts facts;
    char key[32], host[HOST_NAME_MAX + 1] = "", value[LOCATION_MAX];
    err_t err = n->dev->ops->facts(n->dev, &facts, why);
    if (err)
        return err;
    if (gethostname(host, sizeof(host) - 1) || !host[0])
        strcpy(host, "unknown");
    snprintf(key, sizeof(key), "nccl/here/%d", n->base.rank);
    snprintf(value, sizeof(value), "%s %s", facts.uuid[0] ? facts.uuid : "-", host);
    return n->store->put(n->store->arg, key, value, strlen(value), why);
}

static err_t get_location(struct nccl_comm *n, int rank, int64_t timeout_ms, struct nccl_location *ret, struct why *why)
{
    char key[32], value[LOCATION_MAX];
    size_t bytes = sizeof(value) - 1;
    snprintf(key, sizeof(key), "nccl/here/%d", rank);
    err_t err = n->store->get(n->store->arg, key, timeout_ms, value, &bytes, why);
    if (err)
        return err;
    value[bytes] = '\0';
    if (sscanf(value, "%95s %159s", ret->gpu, ret->host) != 2)
        return why_set(why, ERR_PROTO, "rank %d published \"%s\", which is not a GPU and a host name", rank, value);
    return OK;
}

/* Called after the deadline: names the ranks that are still missing. */
static err_t name_missing(struct nccl_comm *n, struct why *why)
{
    char ranks[256] = "";
    size_t at = 0;
    struct nccl_location h;
    for (int r = 0; r < n->base.world && at < sizeof(ranks) - 16; r++)
        if (get_location(n, r, 0, &h, NULL))
            at += (size_t)snprintf(ranks + at, sizeof(ranks) - at, "%s%d", at ? ", " : "", r);
    return why_set(why, ERR_TIMEOUT, "not all of the epoch's %d ranks joined NCCL within %lld ms; missing: %s",
                   n->base.world, (long long)n->timeout_ms, at ? ranks : "none, the last rank joined too late");
}

static err_t get_locations(struct nccl_comm *n, int64_t deadline, struct nccl_location *ret, struct why *why)
{
    for (int r = 0; r < n->base.world; r++) {
        err_t err = get_location(n, r, left_ms(deadline), &ret[r], why);
        if (err == ERR_TIMEOUT)
            return name_missing(n, why);
        if (err)
            return err;
    }
    return OK;
}

/* Finds the first two ranks that share a GPU. */
static bool find_pair(const struct nccl_location *h, int world, int *ret_a, int *ret_b)
{
    for (int a = 0; a < world; a++)
        for (int b = a + 1; b < world; b++)
            if (strcmp(h[a].gpu, h[b].gpu) == 0 && strcmp(h[a].gpu, "-") != 0) {
                *ret_a = a;
                *ret_b = b;
                return true;
            }
    return false;
}

static void set_environment(struct nccl_comm *n, const struct nccl_location *h)
{
    char id[256];
    int a, b;
    bool one_host = true;
    if (!find_pair(h, n->base.world, &a, &b))
        return;
    for (int r = 1; r < n->base.world; r++)
        one_host = one_host && strcmp(h[r].host, h[0].host) == 0;
    snprintf(id, sizeof(id), "%s-%d-rank-%d", h[n->base.rank].host, (int)getpid(), n->base.rank);
    setenv("NCCL_HOSTID", id, 0);
    if (one_host)
        setenv("NCCL_SOCKET_IFNAME", "lo", 0);
    snprintf(
        n->base.note, sizeof(n->base.note),
        "ranks %d and %d share %.64s: NCCL treats every rank as a separate host (NCCL_HOSTID) and connects them by "
        "sockets%s",
        a, b, h[a].gpu, one_host ? " on lo" : "");
}

static err_t share_id(struct nccl_comm *n, int64_t deadline, ncclUniqueId *ret, struct why *why)
{
    size_t bytes = sizeof(*ret);
    if (n->base.rank == 0) {
        err_t err = nccl_why(why, ncclGetUniqueId(ret), NULL, "ncclGetUniqueId", __FILE__, __LINE__);
        return err ? err : n->store->put(n->store->arg, "nccl/id", ret, sizeof(*ret), why);
    }
    err_t err = n->store->get(n->store->arg, "nccl/id", left_ms(deadline), ret, &bytes, why);
    if (err == ERR_TIMEOUT)
        return why_set(why, err, "rank 0 joined but did not publish NCCL's id within %lld ms",
                       (long long)n->timeout_ms);
    if (!err && bytes != sizeof(*ret))
        return why_set(why, ERR_PROTO, "NCCL's id has %zu bytes instead of %zu", bytes, sizeof(*ret));
    return err;
}

err_t nccl_rendezvous(struct nccl_comm *n, ncclUniqueId *ret, struct why *why)
{
    int64_t deadline = clock_mono_ms() + n->timeout_ms;
    struct nccl_location *h = calloc((size_t)n->base.world, sizeof(*h));
    if (!h)
        return why_set(why, ERR_NOMEM, "out of memory");
    err_t err = publish_location(n, why);
    if (!err)
        err = get_locations(n, deadline, h, why);
    if (!err) {
        set_environment(n, h);
        err = share_id(n, deadline, ret, why);
    }
    free(h);
    return err;
}
