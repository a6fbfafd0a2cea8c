/* See runner.h. */
#include "tests/sim/runner.h"

#include "common/base/log.h"
#include "tests/sim/bugs.h"
#include "tests/sim/check.h"
#include "tests/sim/libraft.h"
#include "tests/sim/schedule.h"
#include "tests/sim/world.h"

#include <assert.h>
#include <getopt.h>
#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#define SEED_SECONDS 60 /* of real time; a seed takes less than a second */

struct options {
    uint64_t seeds, from;
    struct shape shape;
    bool trace, twice, expect_broken;
};

/* The options without a value. */
static const struct {
    const char *name;
    size_t at; /* of a bool in the options */
} flags[] = {
    {"commands", offsetof(struct options, shape.commands)},
    {"images", offsetof(struct options, shape.images)},
    {"blind", offsetof(struct options, shape.blind)},
    {"mixed", offsetof(struct options, shape.mixed)},
    {"disks", offsetof(struct options, shape.disks)},
    {"identity", offsetof(struct options, shape.identity)},
    {"slices", offsetof(struct options, shape.slices)},
    {"recover", offsetof(struct options, shape.recover)},
    {"members", offsetof(struct options, shape.members)},
    {"damage", offsetof(struct options, shape.damage)},
    {"scarce", offsetof(struct options, shape.scarce)},
    {"memory", offsetof(struct options, shape.memory)},
    {"trace", offsetof(struct options, trace)},
    {"twice", offsetof(struct options, twice)},
    {"expect-broken", offsetof(struct options, expect_broken)},
};
#define N_FLAGS ((int)(sizeof(flags) / sizeof(flags[0])))

static const struct simulation *simulation;
static struct summary *summary; /* shared with the child process, which fills it */

void runner_settle(int64_t quiet_us, bool (*is_well)(void), void (*print_why_not_well)(void), struct summary *ret)
{
    world_run(world.now_us + quiet_us, is_well);
    if (!is_well()) {
        print_why_not_well();
        broken("all is not well %d s after the last fault", (int)(quiet_us / US_PER_S));
    }
    *ret = (struct summary){
        .events = world.events,
        .records = check_records(),
        .faults = schedule_happened(),
        .deaths = libraft_deaths,
        .print = world.print,
        .virtual_us = world.now_us,
    };
}

/* Returns true if the seed passes. */
static bool run_child(uint64_t seed, const struct options *o)
{
    int status;
    fflush(stdout);
    *summary = (struct summary){0};
    pid_t pid = fork();
    assert(pid >= 0);
    if (!pid) {
        alarm(SEED_SECONDS);
        simulation->run(seed, &o->shape, summary);
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

static void print_command(uint64_t seed, const struct options *o)
{
    printf("seed %" PRIu64 " is broken; again: %s%s%stests/sim/%s --seeds 1 --from %" PRIu64 " --nodes %d", seed,
           bug_planted ? "DTD_SIM_BUG=" : "", bug_planted ? bug_name(bug_planted) : "", bug_planted ? " " : "",
           simulation->name, seed, o->shape.nodes);
    for (int i = 0; i < N_FLAGS; i++)
        if (flags[i].at < offsetof(struct options, trace) && *(const bool *)((const char *)o + flags[i].at))
            printf(" --%s", flags[i].name); /* the others do not change what happens */
    printf(" --trace\n");
}

static bool run_one(uint64_t seed, const struct options *o)
{
    bool is_good = run_child(seed, o);
    struct summary first = *summary;
    if (is_good && o->twice) {
        is_good = run_child(seed, o) && summary->print == first.print;
        if (!is_good)
            printf("broken: the second run of the seed differs from the first\n");
    }
    if (!is_good)
        print_command(seed, o);
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
        sum.takeovers += summary->takeovers;
        sum.to_newer += summary->to_newer;
        sum.to_older += summary->to_older;
    }
    printf("%" PRIu64 " seeds from %" PRIu64 ": %" PRIu64 " events, %" PRIu64 " records, %" PRIu64 " answers, %" PRIu64
           " faults, %" PRIu64 " crashes of libraft, %.0f s of virtual time in %.1f s of processor time\n",
           n, o->from, sum.events, sum.records, sum.answered, sum.faults, sum.deaths, (double)sum.virtual_us * 1e-6,
           cpu_seconds());
    if (o->shape.mixed)
        printf("takeovers %" PRIu64 ", to a newer dtd %" PRIu64 ", to an older one %" PRIu64 "\n", sum.takeovers,
               sum.to_newer, sum.to_older);
    return is_good != o->expect_broken ? 0 : 1;
}

static bool can_plant(int bug)
{
    const struct simulation *s = simulation;
    return (bug >= s->first_bug && bug <= s->last_bug) || (bug && bug >= s->more_first && bug <= s->more_last);
}

static void list_bugs(void)
{
    for (int i = 1; i < N_BUGS; i++)
        if (can_plant(i))
            printf("%2d %-24s %s\n", i, bug_name((enum bug_kind)i), bug_text((enum bug_kind)i));
    exit(0);
}

static void parse(int argc, char **argv, struct options *o)
{
    enum { SEEDS = 1, FROM, NODES, BUGS };
    int seen[N_FLAGS] = {0};
    struct option options[N_FLAGS + 5] = {
        {"seeds", 1, NULL, SEEDS}, {"from", 1, NULL, FROM}, {"nodes", 1, NULL, NODES}, {"bugs", 0, NULL, BUGS}};
    for (int i = 0; i < N_FLAGS; i++)
        options[4 + i] = (struct option){flags[i].name, 0, &seen[i], 1};
    for (int c; (c = getopt_long(argc, argv, "", options, NULL)) != -1;) {
        switch (c) {
        case SEEDS:
            o->seeds = strtoull(optarg, NULL, 10);
            break;
        case FROM:
            o->from = strtoull(optarg, NULL, 10);
            break;
        case NODES:
            o->shape.nodes = atoi(optarg);
            break;
        case 0: /* a flag */
            break;
        case BUGS:
            list_bugs();
            break;
        default:
            exit(2);
        }
    }
    if (o->shape.nodes < 0 || o->shape.nodes > MAX_HOSTS - 1 || optind != argc) {
        fprintf(stderr, "--nodes is 0 to %d, and there are no other arguments\n", MAX_HOSTS - 1);
        exit(2);
    }
    for (int k = 0; k < N_FLAGS; k++)
        *(bool *)((char *)o + flags[k].at) = seen[k] != 0;
}

int runner_main(const struct simulation *s, int argc, char **argv)
{
    simulation = s;
    struct options o = {.seeds = 100};
    struct timespec now;
    timespec_get(&now, TIME_UTC);
    o.from = (uint64_t)now.tv_sec * 1000000 + (uint64_t)now.tv_nsec / 1000;
    parse(argc, argv, &o);
    const char *planted = getenv("DTD_SIM_BUG");
    bug_planted = planted ? bug_find(planted) : BUG_NONE;
    if (bug_planted && !can_plant((int)bug_planted)) {
        fprintf(stderr, "%s: DTD_SIM_BUG is a number or a name that --bugs lists\n", s->name);
        return 2;
    }
    world.is_tracing = o.trace;
    if (!o.trace)
        setenv("DTD_LOG", "error", 1);
    log_init(s->name);
    summary = mmap(NULL, sizeof(*summary), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert(summary != MAP_FAILED);
    return run_all(&o);
}
