/* sim: runs seeds. Each is a process of its own, so that one that crashes, hangs or leaks is that seed's matter.
 *
 *   sim --seeds N [--from S] [--nodes K] [--trace] [--twice] [--expect-broken]
 *
 * --from 0 (the default) begins at a seed made of the time. --nodes 0 (the default): 3 to 7, drawn. --twice runs each
 * seed twice and compares. --expect-broken turns the answer round: good when one of the seeds is broken (planted bugs).
 * DTD_SIM_BUG=N plants a bug; --bugs lists them. */
#include "common/base/log.h"
#include "tests/sim/bugs.h"
#include "tests/sim/check.h"
#include "tests/sim/client.h"
#include "tests/sim/disk.h"
#include "tests/sim/faults.h"
#include "tests/sim/libraft.h"
#include "tests/sim/net.h"
#include "tests/sim/operator.h"
#include "tests/sim/voter.h"

#include <assert.h>
#include <getopt.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#define QUIET_US (60 * US_PER_S) /* within which everything must be well again */
#define SEED_SECONDS 60          /* of the real world */

struct options {
    uint64_t seeds, from;
    int nodes;
    bool trace, twice, expect_broken;
};

/* What a seed tells its parent. */
struct summary {
    uint64_t events, records, answered, faults, deaths, print;
    int64_t virtual_us;
};
static struct summary *summary;

/* ---- one seed ---- */

static bool is_level(void)
{
    for (int id = 1; id <= world.n_hosts; id++)
        if (!voter_is_open(&voters[id]) || voters[id].applied != check_records())
            return false;
    return true;
}

static bool is_well(void)
{
    return clients_are_done() && is_level() && operator_is_content();
}

static void say_members(const struct voter *v)
{
    struct log_member members[LOG_MAX_MEMBERS];
    static const char *const roles[] = {[LOG_SPARE] = "spare", [LOG_STANDBY] = "standby", [LOG_VOTER] = "voter"};
    int n = v->log ? log_members(v->log, members) : 0;
    for (int i = 0; i < n; i++)
        printf(" %d:%s", (int)members[i].id, roles[members[i].role]);
    if (v->log)
        printf("; last entry %llu, stored %llu, commit %llu, change at %llu\n", raft_last_index(&v->log->raft),
               v->log->raft.last_stored, v->log->raft.commit_index, v->log->raft.configuration_uncommitted_index);
}

static void say_why_not_well(void)
{
    printf("clients %s, members %s, leader %d, records up to %" PRIu64 "\n", clients_are_done() ? "are done" : "wait",
           operator_is_content() ? "are as wanted" : "are not as wanted", operator_leader(), check_records());
    for (int id = 1; id <= world.n_hosts; id++) {
        const struct voter *v = &voters[id];
        printf("host %d: %s, %s, term %" PRIu64 ", applied %" PRIu64 ", log %s (%s)\n", id,
               v->host->is_up ? "up" : "down", v->log ? log_state(v->log) : "closed", v->log ? log_term(v->log) : 0,
               v->applied, v->log ? fsm_name(&v->log->fsm) : "-",
               v->log && log_warning(v->log) ? log_warning(v->log) : "no warning");
        say_members(v);
    }
}

static void run_seed(uint64_t seed, int nodes)
{
    world_init(seed, nodes ? nodes : 3 + (int)(seed % 5));
    net_init();
    check_init();
    world.after_event = check_event;
    for (int id = 1; id <= world.n_hosts; id++) {
        disk_init(&disks[id], &world.hosts[id]);
        voter_start(&world.hosts[id]);
    }
    operator_start();
    clients_start((int)world_between(FROM_CLIENTS, 1, 6));
    faults_start();
    world_run(world_between(FROM_FAULTS, 10, 40) * US_PER_S, NULL);
    faults_end();
    world_run(world.now_us + 3 * US_PER_S, NULL);
    clients_finish();
    world_run(world.now_us + QUIET_US, is_well);
    if (!is_well()) {
        say_why_not_well();
        broken("all is not well %d s after the last fault", (int)(QUIET_US / US_PER_S));
    }
    *summary = (struct summary){
        .events = world.events,
        .records = check_records(),
        .answered = clients_answered(),
        .faults = faults_happened(),
        .deaths = libraft_deaths,
        .print = world.print,
        .virtual_us = world.now_us,
    };
}

/* ---- many ---- */

/* True when the seed is well. */
static bool run_child(uint64_t seed, const struct options *o)
{
    int status;
    fflush(stdout);
    *summary = (struct summary){0};
    pid_t pid = fork();
    assert(pid >= 0);
    if (!pid) {
        alarm(SEED_SECONDS);
        run_seed(seed, o->nodes);
        fflush(stdout);
        _exit(0);
    }
    pid_t ended = waitpid(pid, &status, 0);
    assert(ended == pid);
    if (WIFSIGNALED(status))
        printf("broken: the process of the seed ended by signal %d (%s)\n", WTERMSIG(status),
               strsignal(WTERMSIG(status)));
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

static bool run_one(uint64_t seed, const struct options *o)
{
    bool is_good = run_child(seed, o);
    struct summary first = *summary;
    if (is_good && o->twice) {
        is_good = run_child(seed, o) && summary->print == first.print;
        if (!is_good)
            printf("broken: the second run of the seed was another\n");
    }
    if (!is_good)
        printf("seed %" PRIu64 " is broken; again: %stests/sim/sim --seeds 1 --from %" PRIu64 " --nodes %d --trace\n",
               seed, bug_planted ? "DTD_SIM_BUG=... " : "", seed, o->nodes);
    return is_good;
}

static double cpu_seconds(void)
{
    struct rusage use;
    getrusage(RUSAGE_CHILDREN, &use);
    return (double)(use.ru_utime.tv_sec + use.ru_stime.tv_sec) +
           (double)(use.ru_utime.tv_usec + use.ru_stime.tv_usec) * 1e-6;
}

static int run_all(const struct options *o)
{
    struct summary sum = {0};
    uint64_t n = 0;
    bool is_good = true;
    for (; n < o->seeds && is_good; n++) {
        is_good = run_one(o->from + n, o);
        sum.events += summary->events;
        sum.records += summary->records;
        sum.answered += summary->answered;
        sum.faults += summary->faults;
        sum.deaths += summary->deaths;
        sum.virtual_us += summary->virtual_us;
    }
    printf("%" PRIu64 " seeds from %" PRIu64 ": %" PRIu64 " events, %" PRIu64 " records, %" PRIu64 " answers, %" PRIu64
           " faults, %" PRIu64 " crashes of libraft, %.0f s of virtual time in %.1f s of processor time\n",
           n, o->from, sum.events, sum.records, sum.answered, sum.faults, sum.deaths, (double)sum.virtual_us * 1e-6,
           cpu_seconds());
    return is_good != o->expect_broken ? 0 : 1;
}

static void list_bugs(void)
{
    for (int i = 1; i < N_BUGS; i++)
        printf("%2d %s\n", i, bug_text((enum bug_kind)i));
    exit(0);
}

static void parse(int argc, char **argv, struct options *o)
{
    enum { SEEDS = 1, FROM, NODES, TRACE, TWICE, EXPECT_BROKEN, BUGS };
    static const struct option options[] = {
        {"seeds", 1, NULL, SEEDS}, {"from", 1, NULL, FROM},
        {"nodes", 1, NULL, NODES}, {"trace", 0, NULL, TRACE},
        {"twice", 0, NULL, TWICE}, {"expect-broken", 0, NULL, EXPECT_BROKEN},
        {"bugs", 0, NULL, BUGS},   {0},
    };
    for (int c; (c = getopt_long(argc, argv, "", options, NULL)) != -1;) {
        switch (c) {
        case SEEDS:
            o->seeds = strtoull(optarg, NULL, 10);
            break;
        case FROM:
            o->from = strtoull(optarg, NULL, 10);
            break;
        case NODES:
            o->nodes = atoi(optarg);
            break;
        case TRACE:
            o->trace = true;
            break;
        case TWICE:
            o->twice = true;
            break;
        case EXPECT_BROKEN:
            o->expect_broken = true;
            break;
        case BUGS:
            list_bugs();
            break;
        default:
            exit(2);
        }
    }
    if (o->nodes < 0 || o->nodes > MAX_HOSTS - 1 || optind != argc) {
        fprintf(stderr, "sim: --nodes is 0 to %d, and there are no other arguments\n", MAX_HOSTS - 1);
        exit(2);
    }
}

int main(int argc, char **argv)
{
    struct options o = {.seeds = 100};
    struct timespec now;
    timespec_get(&now, TIME_UTC);
    o.from = (uint64_t)now.tv_sec * 1000000 + (uint64_t)now.tv_nsec / 1000;
    parse(argc, argv, &o);
    const char *planted = getenv("DTD_SIM_BUG");
    bug_planted = planted ? (enum bug_kind)atoi(planted) : BUG_NONE;
    if (bug_planted >= N_BUGS) {
        fprintf(stderr, "sim: DTD_SIM_BUG is 1 to %d\n", N_BUGS - 1);
        return 2;
    }
    world.is_tracing = o.trace;
    if (!o.trace)
        setenv("DTD_LOG", "error", 1);
    log_init("sim");
    summary = mmap(NULL, sizeof(*summary), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert(summary != MAP_FAILED);
    return run_all(&o);
}
