/* See thief.h. A tunnel for joining is not tried: in the simulation nodes join by the file with the first key. */
#include "tests/sim/control/thief.h"

#include "common/tunnel/tunnel.h"
#include "tests/sim/control/machine.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

static struct {
    struct host *host;
    struct tunnel_host *tunnel;
    char name[16];
    struct identity identity;
    int node; /* whose former identity that is; 0: of no node */
    bool is_over;
    struct state_key key; /* version 0: none yet */
    uint64_t attempts;
} thief;

static err_t find_key(void *owner, struct tunnel_key_id id, struct tunnel_secret *ret)
{
    (void)owner;
    if (id.number != thief.key.version)
        return ERR_NOTFOUND;
    memcpy(ret->bytes, thief.key.secret, sizeof(thief.key.secret));
    ret->len = sizeof(thief.key.secret);
    return OK;
}

static void steal(void)
{
    const struct machine *m = &machines[world_between(FROM_CLIENTS, 1, world.n_hosts)];
    const struct state_cluster *c = m->node && m->host->is_up ? cluster_known(m->node->cluster) : NULL;
    if (c && c->n_keys)
        thief.key = c->keys[world_between(FROM_CLIENTS, 0, c->n_keys - 1)];
}

static void answered(void *owner, err_t err, const char *why, const struct tunnel_peer *peer, int fd)
{
    (void)owner, (void)why, (void)fd;
    thief.attempts++;
    if (!err)
        broken("%s opens a tunnel for a thief who calls himself %s", peer->name, thief.name);
}

/* A new host for each name, as a new process would have. */
static void attempt(void *arg)
{
    static const enum tunnel_purpose purposes[] = {TUNNEL_RPC, TUNNEL_RAFT, TUNNEL_STORE};
    static const struct tunnel_keys keys = {NULL, find_key};
    int to = (int)world_between(FROM_CLIENTS, 1, world.n_hosts);
    int as = (int)world_between(FROM_CLIENTS, 1, world.n_hosts + 1);
    as = thief.node ? thief.node : as;
    char address[32], argument[32];
    struct tunnel_request *request;
    struct why why = {""};
    if (thief.is_over)
        return;
    world_after(thief.host, world_between(FROM_CLIENTS, 20, 400) * US_PER_MS, attempt, arg);
    steal();
    if (!thief.key.version || as == to)
        return;
    snprintf(thief.name, sizeof(thief.name), "node-%d", as);
    snprintf(address, sizeof(address), "10.0.0.%d:7811", to);
    snprintf(argument, sizeof(argument), "%d %d", as, to);
    const struct tunnel_host_config host = {
        .name = thief.name, .keys = keys, .identity = {.own = &thief.identity, .owner = NULL}};
    const struct tunnel_connect_config config = {.address = address,
                                                 .key = {TUNNEL_KEY_CLUSTER, thief.key.version},
                                                 .purpose = purposes[world_between(FROM_CLIENTS, 0, 2)],
                                                 .argument = argument,
                                                 .deadline_ms = 2000};
    err_t err = tunnel_host_open(&host, &thief.tunnel, &why);
    err = err ? err : tunnel_connect(thief.tunnel, &config, answered, NULL, &request, &why);
    assert(!err);
}

void thief_start(void)
{
    memset(&thief, 0, sizeof(thief));
    thief.host = host_beside(&world.hosts[1]);
    host_up(thief.host);
    memset(thief.identity.public_key, 0x77, IDENTITY_BYTES);
    world_after(thief.host, world_between(FROM_CLIENTS, 0, US_PER_S), attempt, NULL);
}

void thief_has(int node, const uint8_t public_key[32])
{
    thief.node = node;
    memcpy(thief.identity.public_key, public_key, IDENTITY_BYTES);
}

void thief_end(void)
{
    thief.is_over = true;
}

uint64_t thief_attempts(void)
{
    return thief.attempts;
}
