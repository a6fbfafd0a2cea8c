/* The voters A, B and C. A copy of A's disk is made. Seconds later B is cut off for a moment, in which records are
 * committed by A and C alone. Then, at once, C loses its power, A comes back with the old copy, and B is connected
 * again: A and B are a majority that does not have these records. The leader among the three is drawn.
 *
 * The streams between real voters show what each had at its start, and the leader sends its own witness data in its
 * replies to heartbeats. The network of this simulation has no streams, so both are done here, before a message is
 * delivered and every 200 ms. */
#include "tests/sim/image.h"

#include "tests/sim/check.h"
#include "tests/sim/disk.h"
#include "tests/sim/net.h"
#include "tests/sim/operator.h"
#include "tests/sim/voter.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#define LEARN_US (200 * US_PER_MS) /* CLUSTER_HEARTBEAT_MS */

static bool is_blind, is_refused[MAX_HOSTS + 1];
static int lost;

static void forget(void *arg)
{
    struct host *host = arg;
    voter_kill(host);
}

static bool admits(int from, int to)
{
    const struct voter *v = &voters[from], *at = &voters[to];
    if (is_blind || !voter_is_open(v) || !voter_is_open(at))
        return true;
    const struct log_mark shown = log_opened(v->log);
    if (log_judge(at->log, &shown))
        return true;
    trace("host %d refuses the old copy of %d", to, from);
    if (!is_refused[from])
        world_after(&world.hosts[0], US_PER_MS, forget, &world.hosts[from]);
    is_refused[from] = true;
    return false;
}

static void pass_on(void *arg)
{
    struct log_mark marks[LOG_MAX_MEMBERS];
    int leader = operator_leader(), n = leader ? log_marks(voters[leader].log, marks) : 0;
    world_after(&world.hosts[0], LEARN_US, pass_on, arg);
    for (int id = 1; leader && id <= world.n_hosts; id++)
        if (id != leader && voter_is_open(&voters[id]) && !net.is_cut[leader][id] && !net.is_cut[id][leader])
            log_learn(voters[id].log, marks, n);
}

static void run_ms(int64_t low, int64_t high)
{
    world_run(world.now_us + world_between(FROM_FAULTS, low, high) * US_PER_MS, NULL);
}

static struct files copy_of(const struct files *from)
{
    struct files ret = *from;
    ret.entries = malloc((from->cap ? from->cap : 1) * sizeof(struct stored));
    assert(ret.entries);
    if (from->n)
        memcpy(ret.entries, from->entries, from->n * sizeof(struct stored));
    return ret;
}

static void cut_off(int id, bool is_cut)
{
    for (int i = 1; i <= world.n_hosts; i++)
        if (i != id)
            net.is_cut[i][id] = net.is_cut[id][i] = is_cut;
}

/* Commits since then are on the disks of a and c alone. */
static bool has_progress(uint64_t since)
{
    return check_committed() > since + 2;
}

static uint64_t committed_before;
static bool is_ahead(void)
{
    return has_progress(committed_before);
}

static bool three_vote(void)
{
    return operator_is_content();
}

void image_init(bool blind)
{
    is_blind = blind;
    lost = 0;
    memset(is_refused, 0, sizeof(is_refused));
    net_admits = admits;
}

bool image_is_lost(int id)
{
    return id == lost;
}

void image_run(void)
{
    int a = (int)world_between(FROM_FAULTS, 1, 3), b = a % 3 + 1, c = b % 3 + 1;
    if (world_chance(FROM_FAULTS, 0.5)) {
        int other = b;
        b = c;
        c = other;
    }
    wanted[IMAGE_HOSTS] = WANTED_GONE;
    pass_on(NULL);
    world_run(world.now_us + 20 * US_PER_S, three_vote);
    run_ms(1000, 6000);
    struct files image = copy_of(&disks[a].log);
    trace("the copy of host %d ends at %llu", a, files_last(&image));
    run_ms(1000, 8000);
    cut_off(b, true);
    committed_before = check_committed();
    world_run(world.now_us + 5 * US_PER_S, is_ahead); /* never, if b leads and is cut off: another one is elected */
    voter_kill(&world.hosts[c]);
    voter_kill(&world.hosts[a]);
    disks[a].log = image;
    cut_off(b, false);
    lost = is_blind ? 0 : a;
    voter_start(&world.hosts[a]);
    run_ms(2000, 6000);
    voter_start(&world.hosts[c]);
    run_ms(3000, 6000);
    if (is_blind)
        return;
    if (!is_refused[a])
        broken("the old copy of host %d was not refused", a);
    wanted[a] = WANTED_GONE;
    wanted[IMAGE_HOSTS] = WANTED_VOTER;
}
