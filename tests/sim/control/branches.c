/* A branch is made when a log gets the configuration with one voter, before the record of the recovery is in it;
 * control may end in between, and recovers once more then, which makes a branch of that branch. So the branch is a
 * property of the disk. An empty log gets the branch of the generation that the node has joined. */
#include "tests/sim/control/branches.h"

#include "daemon/control/cluster/internal.h"
#include "tests/sim/check.h"
#include "tests/sim/control/ledger.h"
#include "tests/sim/control/process.h"
#include "tests/sim/disk.h"
#include "tests/sim/libraft.h"

#include <inttypes.h>
#include <string.h>

#define MAX_GENERATIONS 8
#define MAX_IDS 64

static struct {
    int of_generation[MAX_GENERATIONS];
    int of_disk[MAX_HOSTS + 1];
    int hosts[CHECK_MAX_BRANCHES][MAX_IDS]; /* by the id of a voter; 0: not known */
    int newest;
} all;

static uint64_t generation_of(const struct cluster *c)
{
    return c->self.generation ? c->self.generation : 1;
}

static int host_of(const struct voter *v, raft_id id)
{
    return id < MAX_IDS ? all.hosts[v->branch][id] : 0;
}

static void note_id(const struct voter *v, uint64_t id)
{
    int *host = id < MAX_IDS ? &all.hosts[v->branch][id] : NULL;
    if (!host)
        broken("host %d is voter %" PRIu64, v->host->id, id);
    const struct voter *other = *host && *host != v->host->id ? &voters[*host] : NULL;
    if (other && other->log && other->branch == v->branch)
        broken("hosts %d and %d are voter %" PRIu64, *host, v->host->id, id);
    *host = v->host->id;
}

int branch_host(int branch, uint64_t id)
{
    int host = id < MAX_IDS ? all.hosts[branch][id] : 0;
    for (int i = all.newest; id < MAX_IDS && !host && i >= 0; i--)
        host = all.hosts[i][id];
    return host;
}

struct machine *branch_leader(void)
{
    for (int id = 1; id <= world.n_hosts; id++)
        if (machines[id].node && machines[id].host->is_up && machines[id].node->jobs.leads && voters[id].log &&
            voters[id].branch == all.newest)
            return &machines[id];
    return NULL;
}

static bool is_empty(const struct files *f)
{
    return !f->n && !f->snapshot;
}

void branch_open(struct voter *v, const struct log_config *config)
{
    int *of_disk = &all.of_disk[v->host->id];
    uint64_t generation = generation_of(machines[v->host->id].node->cluster);
    if (generation >= MAX_GENERATIONS)
        broken("host %d has generation %" PRIu64, v->host->id, generation);
    if (is_empty(&disks[v->host->id].log))
        *of_disk = all.of_generation[generation];
    v->branch = *of_disk;
    if (libraft_uses_streams)
        note_id(v, config->id ? config->id : LOG_FIRST_ID);
}

void branch_generation(int branch, uint64_t generation)
{
    if (generation < MAX_GENERATIONS)
        all.of_generation[generation] = branch;
}

static void recovered(struct host *host)
{
    struct voter *v = &voters[host->id];
    int from = v->branch;
    ledger_fork_begin(from);
    int to = check_fork(v);
    ledger_fork_end(to);
    if (to == from)
        return;
    process_fork(from, to);
    memcpy(all.hosts[to], all.hosts[from], sizeof(all.hosts[to]));
    all.of_disk[host->id] = all.newest = to;
}

void branches_init(void)
{
    memset(&all, 0, sizeof(all));
    libraft_uses_streams = true;
    libraft_recovered = recovered;
    check_host_of = host_of;
}

int branch_newest(void)
{
    return all.newest;
}

void branch_note(struct machine *m)
{
    const struct control *n = m->host->is_up ? m->node : NULL;
    const char *name = n && n->cluster ? cluster_leader(n->cluster) : NULL;
    const struct voter *leader = name ? &voters[machine_of(name)->host->id] : NULL;
    if (!leader || !leader->log || leader->branch == m->branch)
        return;
    trace("host %d follows branch %d", m->host->id, leader->branch);
    m->branch = leader->branch;
    m->branched_us = world.now_us;
}
