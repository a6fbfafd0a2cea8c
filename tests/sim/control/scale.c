/* sim-scale: control with many nodes. A few computers (the voters) run all of control; the others are those of crowd.h,
 * or run all of control too. Each phase prints a row: what the leader and an average other node have sent, received and
 * computed.
 *
 * sim-scale [--nodes N] [--full F] [--seed S] [--busy] [--bounds] [--old] [--spread B] [--liars]
 *
 * --full F: nodes 1 to F run all of control (7). --busy: processor time passes in virtual time, too, so times and
 * latencies contain what the event loops cost; the run then depends on the machine. --bounds: exits with status 1 if
 * one of the limits in `bounds` is exceeded; these depend on the seed alone. --old: one node is of a version that holds
 * only STATE_MAX_NODES_BEFORE nodes; no more may join. --spread B: a leader sends B bytes of large answers with the
 * view in a tick, instead of CLUSTER_SPREAD_BYTES, and what it sends is compared with its limit. --liars: half of the
 * nodes without control serve a false view, which no node may take. Messages and bytes are those between computers,
 * before encryption; processor time includes what the simulation of sockets costs. */
#include "daemon/control/cluster/internal.h"
#include "daemon/control/job/job.h"
#include "tests/sim/bugs.h"
#include "tests/sim/check.h"
#include "tests/sim/control/crowd.h"
#include "tests/sim/control/ledger.h"
#include "tests/sim/control/machine.h"
#include "tests/sim/control/process.h"
#include "tests/sim/control/versions.h"
#include "tests/sim/disk.h"
#include "tests/sim/net.h"
#include "tests/sim/stream.h"

#include "common/base/log.h"

#include <assert.h>
#include <getopt.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define VOTERS 5
#define FIRST 7                   /* nodes that join one after another: the voters, and two that may replace one */
#define FORM_US (20 * US_PER_S)   /* limit for a node to join alone */
#define PHASE_US (600 * US_PER_S) /* limit for a phase */
#define IDLE_US (10 * US_PER_S)
#define RACK 32                   /* nodes of a rack */
#define PROBE_US (20 * US_PER_MS) /* between two records whose latency is measured */
#define CHECK_US (10 * US_PER_MS) /* between two questions whether a phase is over; they look at all nodes */
#define MAX_PROBES 65536

static struct {
    int nodes, full;
    uint64_t seed;
    size_t spread;
    bool has_bounds, is_broken, has_old, has_liars;
} o = {.nodes = 300, .full = FIRST, .seed = 1};

/* ---- phases ---- */

static struct use before[MAX_HOSTS + 1];
static struct {
    int64_t us[MAX_PROBES];
    int n;
    bool is_under_way;
    int64_t since_us;
} probe;

static int leader_number(void)
{
    for (int id = 1; id <= o.full; id++)
        if (machines[id].node && machines[id].node->jobs.leads)
            return id;
    return 0;
}

static struct control *leader(void)
{
    int id = leader_number();
    return id ? machines[id].node : NULL;
}

static void phase_begin(void)
{
    for (int id = 0; id <= o.nodes; id++) {
        struct use *u = &world.hosts[id].use;
        u->longest_ns = 0;
        u->memory_peak = u->memory;
        before[id] = *u;
    }
    probe.n = 0;
}

static int compare(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

static double p99_ms(void)
{
    qsort(probe.us, (size_t)probe.n, sizeof(probe.us[0]), compare);
    const int at = (probe.n - 1) * 99 / 100;
    return probe.n ? (double)probe.us[at] / 1e3 : 0;
}

struct figures {
    double seconds, messages, bytes, kb_s;             /* of an average other node: both directions */
    double leader_messages, leader_mb, leader_kb_node, /* sent, for each other node */
        cpu_s, pause_ms, memory_mb, record_ms, files, file_kb;
};

static struct figures figures_of(int64_t begin_us)
{
    int id = leader_number();
    const struct use *u = &world.hosts[id].use, *b = &before[id];
    struct figures f = {.seconds = (double)(world.now_us - begin_us) * 1e-6, .record_ms = p99_ms()};
    uint64_t files = 0, file_bytes = 0;
    int others = 0, others_full = 0;
    for (int i = 1; i <= o.nodes; i++) {
        const struct use *x = &world.hosts[i].use, *y = &before[i];
        if (i == id)
            continue;
        others++;
        f.messages += (double)(x->messages_out + x->messages_in - y->messages_out - y->messages_in);
        f.bytes += (double)(x->bytes_out + x->bytes_in - y->bytes_out - y->bytes_in);
        others_full += i <= o.full;
        files += x->files - y->files;
        file_bytes += x->file_bytes - y->file_bytes;
    }
    f.messages /= others;
    f.bytes /= others;
    f.files = (double)files / (others_full ? others_full : 1);
    f.file_kb = (double)file_bytes / 1e3 / (others_full ? others_full : 1);
    f.leader_messages = (double)(u->messages_out + u->messages_in - b->messages_out - b->messages_in);
    f.leader_kb_node = (double)(u->bytes_out - b->bytes_out) / 1e3 / others;
    f.leader_mb = (double)(u->bytes_out + u->bytes_in - b->bytes_out - b->bytes_in) / 1e6;
    f.cpu_s = (double)(u->cpu_ns - b->cpu_ns) * 1e-9;
    f.pause_ms = (double)u->longest_ns * 1e-6;
    f.memory_mb = (double)u->memory_peak / 1e6;
    return f;
}

/* Limits of a phase for an average node, whose figures must not grow with the number of nodes. leader_kb: what the
 * leader sends to it, with --spread. 0: none. */
struct bounds {
    const char *phase;
    double seconds, messages_s, bytes_s, files, leader_kb;
};

static void check_bounds(const char *phase, const struct figures *f)
{
    static const struct bounds bounds[] = {
        {"join", 4, 30, 48000, 8, 16},     {"views", 4, 20, 0, 0, 6},         {"idle", 11, 13, 550, 0.5, 0},
        {"rack lost", 3, 13, 800, 0.5, 0}, {"leader lost", 8, 13, 800, 1, 0}, {"half lost", 1.9, 13, 1000, 1, 0},
    };
    for (size_t i = 0; i < sizeof(bounds) / sizeof(bounds[0]); i++) {
        const struct bounds *b = &bounds[i];
        if (strcmp(b->phase, phase) != 0)
            continue;
        double s = f->seconds > 1 ? f->seconds : 1;
        bool has_few = s <= b->seconds && f->messages <= b->messages_s * s &&
                       (!b->bytes_s || f->bytes <= b->bytes_s * s) && (!b->files || f->files <= b->files);
        bool leader_has_few = !b->leader_kb || !o.spread || o.has_liars || f->leader_kb_node <= b->leader_kb;
        bool is_within = (has_few || !o.has_bounds) && leader_has_few;
        if (!is_within)
            printf("broken: phase %s has %.1f s, %.1f messages and %.0f bytes a second and node, %.1f files a node, "
                   "%.1f kB from the leader for each node\n",
                   phase, f->seconds, f->messages / s, f->bytes / s, f->files, f->leader_kb_node);
        o.is_broken |= !is_within;
    }
}

static void phase_end(const char *phase, int64_t begin_us)
{
    const struct figures f = figures_of(begin_us);
    printf("| %d | %s | %.1f | %.0f | %.1f | %.0f | %.1f | %.3f | %.1f | %.0f | %.1f | %.1f | %.1f |\n", o.nodes, phase,
           f.seconds, f.messages, f.bytes / 1e3, f.leader_messages, f.leader_mb, f.cpu_s, f.pause_ms, f.memory_mb,
           f.record_ms, f.files, f.file_kb);
    fflush(stdout);
    check_bounds(phase, &f);
}

static void look_at_full_nodes(void)
{
    for (int id = 1; id <= o.full; id++) {
        const struct control *n = machines[id].node;
        if (n && n->cluster && o.spread)
            n->cluster->spread_limit = o.spread;
        if (n && n->cluster && crowd_is_deceived(n->cluster))
            broken("node %d has taken a false view", id);
    }
}

static void run_phase(const char *phase, int64_t limit_us, bool (*is_done)(void))
{
    int64_t begin_us = world.now_us;
    while (world.now_us < begin_us + limit_us && !(is_done && is_done())) {
        world_run(world.now_us + CHECK_US, NULL);
        look_at_full_nodes();
    }
    if (is_done && !is_done())
        broken("phase %s has not ended within %d s", phase, (int)(limit_us / US_PER_S));
    phase_end(phase, begin_us);
}

/* ---- records whose latency is measured ---- */

static void probe_answered(void *arg, err_t err, uint64_t index, const void *result)
{
    (void)arg, (void)index, (void)result;
    probe.is_under_way = false;
    if (!err && probe.n < MAX_PROBES)
        probe.us[probe.n++] = world.now_us - probe.since_us;
}

static void probe_now(void *arg)
{
    struct control *n = arg;
    struct record r = {.kind = RECORD_INCIDENT, .incident = incident_none};
    r.incident.event = EVENT_NODE_BACK;
    r.incident.node = "node-1";
    r.incident.seen = r.incident.decided = "";
    if (n != leader() || probe.is_under_way)
        return;
    probe.since_us = world.now_us;
    probe.is_under_way = replica_propose(&n->replica, &r, probe_answered, n) == OK;
}

/* The record is made in an event of the leader, which may have to wait for the ones before it. */
static void probe_often(void *arg)
{
    struct control *n = leader();
    (void)arg;
    world_after(&world.hosts[0], PROBE_US, probe_often, NULL);
    if (n && !probe.is_under_way)
        world_after(machines[leader_number()].host, 0, probe_now, n);
}

/* ---- what is waited for ---- */

static int joining, lost_first, lost_last;

static bool has_joined(void)
{
    return machine_is_well(&machines[joining]) && cluster_named(machines[joining].node->cluster);
}

static bool five_vote(void)
{
    struct log_member in_log[LOG_MAX_MEMBERS];
    const struct control *n = leader();
    int votes = 0, count = n ? log_members(n->replica.log, in_log) : 0;
    for (int i = 0; i < count; i++)
        votes += in_log[i].role == LOG_VOTER;
    return votes == (o.full < VOTERS ? o.full : VOTERS);
}

static bool follows(const struct machine *m, const char *leader_name)
{
    const char *its = machine_is_well(m) && cluster_named(m->node->cluster) ? cluster_leader(m->node->cluster) : NULL;
    return its && strcmp(its, leader_name) == 0;
}

static bool all_follow(void)
{
    const struct control *n = leader();
    if (!n || crowd_following(leader_number()) < o.nodes - o.full - (lost_last ? lost_last - lost_first + 1 : 0))
        return false;
    for (int id = 1; id <= o.full; id++)
        if (machines[id].has_dtd && !follows(&machines[id], cluster_self(n->cluster)))
            return false;
    return true;
}

static bool all_joined(void)
{
    const struct control *n = leader();
    int wanted = o.has_old && o.nodes > STATE_MAX_NODES_BEFORE ? STATE_MAX_NODES_BEFORE : o.nodes;
    return n && cluster_nodes(n->cluster) >= wanted && (o.has_old || all_follow());
}

/* All nodes have the view of the leader. */
static bool all_have_view(void)
{
    const struct control *n = leader();
    uint64_t hash = n ? cluster_view_hash(n->cluster) : 0;
    if (!n || crowd_having(hash) < o.nodes - o.full)
        return false;
    for (int id = 1; id <= o.full; id++)
        if (machines[id].has_dtd && cluster_view_hash(machines[id].node->cluster) != hash)
            return false;
    return true;
}

/* The leader has declared the lost nodes lost, and the log has the events. */
static bool are_lost(void)
{
    struct control *n = leader();
    if (!n || n->jobs.outbox.n)
        return false;
    int count = 0;
    for (const struct node_view *a = n->jobs.nodes; a; a = a->next)
        count += a->state == NODE_LOST;
    return count >= lost_last - lost_first + 1;
}

/* ---- the run ---- */

static void join_alone(int id)
{
    joining = id;
    machine_start(&machines[id]);
    world_run(world.now_us + FORM_US, has_joined);
    if (!has_joined())
        broken("node %d has not joined in %d s", id, (int)(FORM_US / US_PER_S));
}

static void form(void)
{
    int first = o.full < FIRST ? o.full : FIRST;
    for (int id = 1; id <= first; id++)
        join_alone(id);
    world_run(world.now_us + FORM_US, five_vote);
    world_after(&world.hosts[0], PROBE_US, probe_often, NULL);
    phase_begin();
    for (int id = first + 1; id <= o.full; id++)
        machine_start(&machines[id]);
    crowd_start(US_PER_S);
    run_phase("join", PHASE_US, all_joined);
    if (o.has_old)
        return;
    phase_begin();
    run_phase("views", PHASE_US, all_have_view);
}

static void lose_nodes(const char *phase, int n)
{
    lost_first = lost_first ? lost_first : o.full + 1;
    int first = lost_last ? lost_last + 1 : lost_first;
    phase_begin();
    for (lost_last = first; lost_last < first + n; lost_last++)
        crowd_kill(lost_last);
    lost_last--;
    run_phase(phase, PHASE_US, are_lost);
}

static void lose_leader(void)
{
    phase_begin();
    machine_kill(&machines[leader_number()], true);
    run_phase("leader lost", PHASE_US, all_follow);
}

static void run(void)
{
    int crowd = o.nodes - o.full;
    form();
    world_run(world.now_us + 2 * US_PER_S, NULL);
    phase_begin();
    run_phase("idle", IDLE_US, NULL);
    if (o.has_old) {
        if (!leader() || cluster_nodes(leader()->cluster) > STATE_MAX_NODES_BEFORE)
            broken("more nodes have joined than one of them can hold");
        return;
    }
    if (crowd > 2 * RACK)
        lose_nodes("rack lost", RACK);
    if (o.full > 2)
        lose_leader();
    if (crowd > 2 * RACK)
        lose_nodes("half lost", crowd / 2 - RACK);
}

static void prepare(void)
{
    world_init(o.seed, o.nodes);
    net_init();
    stream_init();
    process_init(false);
    ledger_init();
    versions_init(false);
    check_init(ledger_record);
    world.on_death = machine_died;
    machine_is_measured = world.is_metered = true;
    for (int id = 1; id <= o.nodes; id++)
        machine_init(id, 8);
    for (int id = 1; id <= o.full; id++)
        disk_init(&disks[id], &world.hosts[id]);
    if (o.nodes > o.full)
        crowd_init(o.full + 1, o.nodes, o.full < VOTERS ? o.full : VOTERS);
    if (o.has_liars)
        crowd_has_liars();
    if (o.nodes > o.full && o.has_old) {
        crowd_has_old_node();
        machines[1].version = 1; /* so the cluster's version does not rise, and the old node is admitted */
    }
}

static void parse(int argc, char **argv)
{
    enum { NODES = 1, FULL, SEED, BUSY, BOUNDS, OLD, SPREAD, LIARS };
    static const struct option options[] = {
        {"nodes", 1, NULL, NODES},   {"full", 1, NULL, FULL},     {"seed", 1, NULL, SEED},
        {"busy", 0, NULL, BUSY},     {"bounds", 0, NULL, BOUNDS}, {"old", 0, NULL, OLD},
        {"spread", 1, NULL, SPREAD}, {"liars", 0, NULL, LIARS},   {0}};
    for (int c; (c = getopt_long(argc, argv, "", options, NULL)) != -1;) {
        if (c == NODES)
            o.nodes = atoi(optarg);
        else if (c == FULL)
            o.full = atoi(optarg);
        else if (c == SEED)
            o.seed = strtoull(optarg, NULL, 10);
        else if (c == BUSY)
            world.is_busy = true;
        else if (c == BOUNDS)
            o.has_bounds = true;
        else if (c == OLD)
            o.has_old = true;
        else if (c == SPREAD)
            o.spread = strtoull(optarg, NULL, 10);
        else if (c == LIARS)
            o.has_liars = true;
        else
            exit(2);
    }
    o.full = o.full > o.nodes ? o.nodes : o.full;
    if (o.full < 1 || o.nodes > MAX_HOSTS - 1 || optind != argc) {
        fprintf(stderr, "--nodes is 1 to %d, --full at least 1, and there are no other arguments\n", MAX_HOSTS - 1);
        exit(2);
    }
}

int main(int argc, char **argv)
{
    parse(argc, argv);
    bool is_busy = world.is_busy;
    setenv("DTD_LOG", "error", 0);
    log_init("sim-scale");
    printf(
        "| nodes | phase | s | messages/node | kB/node | leader: messages | MB | CPU s | longest pause ms | memory MB "
        "| records p99 ms | files/node | kB/node |\n|--:|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|\n");
    prepare();
    world.is_busy = is_busy;
    run();
    fflush(stdout);
    _exit(o.is_broken); /* the memory of killed processes is not freed, so there is nothing to look for */
}
