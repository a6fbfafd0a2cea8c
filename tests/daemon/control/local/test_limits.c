/* The limits of a job on a node, with values by hand. */
#include "daemon/control/local/limits.h"
#include "tests/lib/test.h"

#include <string.h>

#define GIB (INT64_C(1) << 30)

/* 100 GiB, 10 slots, 4 GPUs, 80 % for jobs: 8 GiB for each slot, 20 GiB for each GPU. */
static const struct limits_node node = {
    .memory_bytes = 100 * GIB, .slots = 10, .gpus = 4, .memory_percent = 80, .processes = 100, .system = true};

static struct channel_limits limits_of(struct limits_node n, struct limits_job j)
{
    struct channel_limits x;
    limits_compute(&n, &j, &x);
    return x;
}

static int64_t gib(struct limits_job j)
{
    int64_t bytes = limits_of(node, j).memory_bytes;
    return (bytes + GIB / 2) / GIB; /* the share is computed in whole percents */
}

TEST(share_is_by_slots_or_by_gpus)
{
    assert_int_equal(8, gib((struct limits_job){.workers = 1}));
    assert_int_equal(24, gib((struct limits_job){.workers = 3}));
    assert_int_equal(20, gib((struct limits_job){.workers = 1, .gpus = 1}));
    assert_int_equal(80, gib((struct limits_job){.workers = 4, .gpus = 4}));
    assert_int_equal(40, gib((struct limits_job){.workers = 5, .gpus = 1}));
    assert_int_equal(80, gib((struct limits_job){.workers = 15})); /* `slots` was lowered meanwhile */
}

TEST(a_job_can_lower_its_share_and_not_raise_it)
{
    struct channel_limits low = limits_of(node, (struct limits_job){.workers = 2, .memory_bytes = GIB});
    assert_int_equal(2 * GIB, low.memory_bytes);
    assert_true(low.memory_required && !low.memory_is_share);
    assert_int_equal(16, gib((struct limits_job){.workers = 2, .memory_bytes = 50 * GIB}));
    struct channel_limits high = limits_of(node, (struct limits_job){.workers = 2, .memory_bytes = 50 * GIB});
    assert_true(high.memory_required && high.memory_is_share);
    struct channel_limits none = limits_of(node, (struct limits_job){.workers = 2});
    assert_true(!none.memory_required && none.memory_is_share);
}

TEST(a_private_dtd_limits_only_what_the_job_asks_for)
{
    struct limits_node own = node;
    own.system = false;
    struct channel_limits x = limits_of(own, (struct limits_job){.workers = 3});
    assert_int_equal(0, x.memory_bytes);
    assert_int_equal(0, x.processes);
    assert_int_equal(0, x.cores);
    assert_int_equal(3, x.workers);
    x = limits_of(own, (struct limits_job){.workers = 3, .memory_bytes = 50 * GIB, .cores = 2});
    assert_int_equal(150 * GIB, x.memory_bytes);
    assert_true(x.memory_required && !x.memory_is_share);
    assert_int_equal(6, x.cores);
}

TEST(a_site_turns_its_limits_off)
{
    struct limits_node open = node;
    open.memory_percent = open.processes = 0;
    struct channel_limits x = limits_of(open, (struct limits_job){.workers = 2, .memory_bytes = 90 * GIB});
    assert_int_equal(180 * GIB, x.memory_bytes);
    assert_int_equal(0, x.processes);
    assert_int_equal(0, limits_of(open, (struct limits_job){.workers = 2}).memory_bytes);
    assert_int_equal(2 * 100 + 256, limits_of(node, (struct limits_job){.workers = 2}).processes);
}

TEST(unknown_memory_is_no_limit)
{
    struct limits_node n = node;
    n.memory_bytes = 0;
    assert_int_equal(0, limits_of(n, (struct limits_job){.workers = 2}).memory_bytes);
    assert_int_equal(GIB, limits_of(n, (struct limits_job){.workers = 1, .memory_bytes = GIB}).memory_bytes);
}

static void expect(enum channel_oom oom, struct channel_limits x, bool by_child, const char *want)
{
    char text[256];
    limits_why_killed(oom, &x, by_child, text, sizeof(text));
    if (!strstr(text, want))
        fail_msg("%s", text);
    assert_true(strlen(text) < sizeof(text) - 1);
}

TEST(cause_names_the_limit_and_the_remedy)
{
    expect(
        CHANNEL_OOM_LIMIT, (struct channel_limits){.memory_bytes = 8 * GIB}, false,
        "killed it because the job's memory limit on this node, 8.00 GiB, was reached (memory.max); raise run.memory");
    expect(CHANNEL_OOM_LIMIT, (struct channel_limits){.memory_bytes = 3 << 19}, true,
           "killed a process that it had started because the job's memory limit on this node, 1.50 MiB");
    expect(CHANNEL_OOM_LIMIT, (struct channel_limits){.memory_bytes = 1024 * GIB, .memory_is_share = true}, true,
           "its share of the node's memory, 1024.00 GiB (memory.max); use more workers or nodes, or let the "
           "administrator raise jobs.memory_percent");
    expect(CHANNEL_OOM_MACHINE, (struct channel_limits){.memory_bytes = GIB}, false,
           "the kernel killed it for lack of memory");
}
