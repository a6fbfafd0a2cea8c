/* A message is copied when it is sent, and again for each arrival. */
#include "tests/sim/net.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define USUAL_US 1500          /* delay within a data centre */
#define LATE_US (2 * US_PER_S) /* several election timeouts */

struct packet {
    struct raft_message message;
    int from, to, copies;
    raft_id id;               /* of the sender */
    struct raft_buffer *data; /* data of the entries */
};

struct net net;
bool (*net_admits)(int from, int to);

void net_init(void)
{
    net = (struct net){.delay_us = USUAL_US, .late = 0.001};
}

void net_heal(void)
{
    net_init();
}

void net_cut(int from, int to)
{
    net.is_cut[from][to] = true;
}

/* ---- copies ---- */

static void *copy(void *(*allocate)(size_t), const void *data, size_t len)
{
    void *to = allocate(len ? len : 8);
    assert(to);
    return len ? memcpy(to, data, len) : to;
}

static void copy_configuration(const struct raft_configuration *from, struct raft_configuration *to)
{
    raft_configuration_init(to);
    for (unsigned i = 0; i < from->n; i++) {
        int status = raft_configuration_add(to, from->servers[i].id, from->servers[i].address, from->servers[i].role);
        assert(!status);
    }
}

/* All entries share one allocation, as libraft requires for received messages. */
static void copy_entries(const struct raft_append_entries *from, struct raft_append_entries *to)
{
    size_t bytes = 8, at = 0;
    for (unsigned i = 0; i < from->n_entries; i++)
        bytes += from->entries[i].buf.len;
    to->entries = NULL;
    if (!from->n_entries)
        return;
    to->entries = raft_malloc(from->n_entries * sizeof(struct raft_entry));
    char *batch = raft_malloc(bytes);
    assert(to->entries && batch);
    for (unsigned i = 0; i < from->n_entries; i++) {
        const struct raft_entry *e = &from->entries[i];
        to->entries[i] = (struct raft_entry){e->term, e->type, {batch + at, e->buf.len}, batch};
        memcpy(batch + at, e->buf.base, e->buf.len);
        at += e->buf.len;
    }
}

static void copy_message(const struct raft_message *from, struct raft_message *to)
{
    *to = *from;
    if (from->type == RAFT_APPEND_ENTRIES) {
        copy_entries(&from->append_entries, &to->append_entries);
    } else if (from->type == RAFT_INSTALL_SNAPSHOT) {
        copy_configuration(&from->install_snapshot.conf, &to->install_snapshot.conf);
        to->install_snapshot.data.base =
            copy(raft_malloc, from->install_snapshot.data.base, from->install_snapshot.data.len);
    }
}

/* About as many as raft_uv sends. */
static size_t bytes_of(const struct raft_message *m)
{
    size_t bytes = 64;
    for (unsigned i = 0; m->type == RAFT_APPEND_ENTRIES && i < m->append_entries.n_entries; i++)
        bytes += 16 + m->append_entries.entries[i].buf.len;
    return m->type == RAFT_INSTALL_SNAPSHOT ? bytes + m->install_snapshot.data.len : bytes;
}

void net_message_free(struct raft_message *m)
{
    if (m->type == RAFT_APPEND_ENTRIES && m->append_entries.entries) {
        raft_free(m->append_entries.entries[0].batch);
        raft_free(m->append_entries.entries);
    } else if (m->type == RAFT_INSTALL_SNAPSHOT) {
        raft_configuration_close(&m->install_snapshot.conf);
        raft_free(m->install_snapshot.data.base);
    }
}

/* ---- delivery ---- */

static void drop(struct packet *p)
{
    if (--p->copies)
        return;
    net_message_free(&p->message);
    free(p);
}

static void received(void *arg)
{
    struct packet *p = arg;
    struct raft_message m;
    char address[32];
    if (net_admits && !net_admits(p->from, p->to)) {
        drop(p);
        return;
    }
    copy_message(&p->message, &m);
    snprintf(address, sizeof(address), "%s-%d", p->id == 1 ? "node" : "voter", (int)p->id);
    m.server_id = p->id;
    m.server_address = address;
    libraft_receive(&world.hosts[p->from], &world.hosts[p->to], &m);
    drop(p);
}

/* The event belongs to host 0 until the arrival, because a packet does not end with its receiver. */
static void arrived(void *arg)
{
    struct packet *p = arg;
    struct host *to = &world.hosts[p->to];
    if (to->is_up && !net.is_cut[p->from][p->to])
        world_after(to, 0, received, p);
    else
        drop(p);
}

static void travel(struct packet *p)
{
    int64_t us = world_between(FROM_NETWORK, 50, net.delay_us);
    if (world_chance(FROM_NETWORK, net.late))
        us += world_between(FROM_NETWORK, 0, LATE_US);
    p->copies++;
    world_after(&world.hosts[0], us, arrived, p);
}

int net_send(int from, raft_id id, int to, const struct raft_message *message)
{
    if (to < 1 || to > world.n_hosts || net.is_cut[from][to] || net.is_cut[to][from])
        return RAFT_NOCONNECTION;
    if (world_chance(FROM_NETWORK, net.loss))
        return 0;
    struct packet *p = calloc(1, sizeof(*p));
    assert(p);
    copy_message(message, &p->message);
    p->from = from;
    p->id = id;
    host_sends(&world.hosts[from], &world.hosts[to], bytes_of(message));
    p->to = to;
    bool is_twice = world_chance(FROM_NETWORK, net.twice);
    travel(p);
    if (is_twice)
        travel(p);
    return 0;
}
