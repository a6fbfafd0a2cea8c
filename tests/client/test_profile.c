/* dtctl profile without a job: times of clocks that differ, rows, sums and arrows of recordings whose numbers are
 * chosen by hand. tests/cluster/profile.sh has real ones. */
#include "client/profile/profile.h"
#include "common/base/file.h"
#include "tests/lib/test.h"

#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <zlib.h>

#define MAX 16

/* A rank with room for a few of everything. */
struct fake {
    struct recorded r;
    struct recorded_group group;
    int ranks[2];
    struct recorded_action actions[4];
    struct recorded_call calls[6];
    struct recorded_step steps[2];
    struct recorded_host hosts[4];
    struct recorded_event events[MAX];
};

/* Two ranks that are stages of a pipeline: rank 0 sends to rank 1. */
static void fake_init(struct fake *f, int rank)
{
    const bool first = rank == 0;
    *f = (struct fake){
        .group = {.axes = 1u << AXIS_PP, .n = 2},
        .ranks = {0, 1},
        .actions = {{ACT_FORWARD, 0, 0}, {ACT_EXCHANGE, -1, 0}, {ACT_BACKWARD, 0, 0}, {ACT_REDUCE, -1, 0}},
        .calls = {{0, OP_GEMM, STREAM_COMPUTE, 1, -1, ROLE_NONE, -1, 0, 0, 0, DT_F32},
                  {1, first ? OP_SEND : OP_WAIT, STREAM_COMM, -1, 0, first ? ROLE_SEND : ROLE_WAIT_RECV, !rank, 0,
                   first ? 64 : 0, first ? 0 : 64, DT_F32},
                  {2, OP_GEMM, STREAM_COMPUTE, 1, -1, ROLE_NONE, -1, 0, 0, 0, DT_F32},
                  {3, OP_ALL_REDUCE, STREAM_COMM, -1, 0, ROLE_NONE, -1, 0, 10, 10, DT_F64}},
        .steps = {{7, 0, 1000, 1 << 20, 0}}};
    f->group.ranks = f->ranks;
    f->r = (struct recorded){.job = 4,
                             .profile = 9,
                             .epoch = 1,
                             .rank = rank,
                             .world = 2,
                             .pid = 100 + rank,
                             .steps = 1,
                             .first = 7,
                             .groups = &f->group,
                             .n_groups = 1,
                             .actions = f->actions,
                             .n_actions = 4,
                             .calls = f->calls,
                             .n_calls = 4,
                             .step = f->steps,
                             .n_step = 1,
                             .hosts = f->hosts,
                             .events = f->events};
}

static void did(struct fake *f, int call, int64_t from, int64_t to)
{
    f->events[f->r.n_events++] = (struct recorded_event){from, to, call, 0};
}

/* ---- clocks ---- */

static struct recorded_clock clock_at(int64_t at, int64_t lo, int64_t best, int64_t hi)
{
    return (struct recorded_clock){at, 0, lo, best, hi};
}

static void align_two(struct fake f[2], int64_t error[2])
{
    struct recorded ranks[2] = {f[0].r, f[1].r};
    struct profile p = {.rank = ranks, .n = 2, .error_ns = error};
    profile_align(&p);
}

TEST(times_of_a_rank_are_those_of_rank_0)
{
    struct fake f[2];
    int64_t error[2];
    for (int k = 0; k < 2; k++)
        fake_init(&f[k], k);
    f[1].r.node = 1;
    f[0].r.clock[0] = clock_at(1000000, 0, 0, 0);
    f[0].r.clock[1] = clock_at(2000000, 0, 0, 0);
    /* Rank 1's clock is ahead by 500,000 and then, a million later, by 500,100: it runs fast. */
    f[1].r.clock[0] = clock_at(1600000, 499960, 500000, 500040);
    f[1].r.clock[1] = clock_at(2600000, 500060, 500100, 500140);
    did(&f[0], 0, 300, 400);
    did(&f[1], 0, 0, 500000); /* from 1,100,000 of rank 0's clock, for 500,000 less the half of 100 */
    align_two(f, error);
    assert_true(f[0].events[0].from == 300 && f[0].events[0].to == 400);
    assert_int_equal(f[1].events[0].from, 100000);
    assert_int_equal(f[1].events[0].to, 600000 - 50);
    assert_true(error[0] == 0 && error[1] == 40);
    /* Both measurements allow 500,010 to 500,030: no rate is known. */
    f[1].r.clock[0] = clock_at(1600000, 499000, 499520, 500030);
    f[1].r.clock[1] = clock_at(2600000, 500010, 500500, 500990);
    f[1].events[0] = (struct recorded_event){0, 500000, 0, 0};
    align_two(f, error);
    assert_true(f[1].events[0].from == 100000 - 20 && f[1].events[0].to == 600000 - 20 && error[1] == 1020);
}

TEST(bounds_of_all_ranks_of_a_node_hold_for_each)
{
    struct fake f[2];
    int64_t error[2];
    for (int k = 0; k < 2; k++) {
        fake_init(&f[k], k);
        f[k].r.clock[0] = clock_at(1000, 0, 0, 0);
        f[k].r.clock[1] = clock_at(2000, 0, 0, 0);
    }
    /* On the node of rank 0, whose clock is ahead of itself by nothing. */
    f[1].r.clock[0] = clock_at(1000, -300, 120, 200);
    f[1].r.clock[1] = clock_at(2000, -200, 90, 100);
    did(&f[1], 0, 10, 20);
    align_two(f, error);
    assert_true(f[1].events[0].from == 10 && f[1].events[0].to == 20 && error[1] == 0);
    /* Processes of one machine with different clocks. */
    f[1].r.clock[0] = clock_at(6000, 4900, 5000, 5050);
    f[1].r.clock[1] = clock_at(7000, 4900, 5000, 5100);
    align_two(f, error);
    assert_true(f[1].events[0].from == 6000 - 4975 - 1000 + 10 && f[1].events[0].to == 45 && error[1] == 125);
}

/* ---- rows ---- */

static const struct lane *lane_named(const struct lanes *l, const char *name)
{
    for (int i = 0; i < l->n; i++)
        if (strcmp(l->lane[i].name, name) == 0)
            return &l->lane[i];
    return NULL;
}

TEST(slices_of_a_row_nest)
{
    struct fake f;
    struct lanes l;
    fake_init(&f, 0);
    did(&f, 0, 100, 200);
    did(&f, 0, 190, 300); /* a device's times are rounded: 10 are removed */
    did(&f, 3, 150, 400); /* beside it */
    did(&f, 2, 300, 300); /* no slice is empty */
    did(&f, 0, 500, 600);
    f.hosts[0] = (struct recorded_host){20, 90, HOST_DATA, 0};
    f.hosts[1] = (struct recorded_host){700, 900, HOST_SAVE, 0};
    f.r.n_hosts = 2;
    assert_ok(lanes_of(&f.r, &l));
    assert_true(lane_named(&l, "step") && lane_named(&l, "compute") && lane_named(&l, "comm pp"));
    assert_true(lane_named(&l, "data") && lane_named(&l, "checkpoint") && l.n == 5);
    static const struct {
        enum slice_kind kind;
        int64_t from, to;
    } expect[] = {
        {SLICE_STEP, 0, 1000},    {SLICE_ACTION, 100, 300}, {SLICE_OP, 100, 200},     {SLICE_OP, 200, 300},
        {SLICE_ACTION, 300, 301}, {SLICE_OP, 300, 301},     {SLICE_ACTION, 500, 600}, {SLICE_OP, 500, 600},
        {SLICE_OP, 150, 400},     {SLICE_HOST, 20, 90},     {SLICE_HOST, 700, 900},
    };
    assert_int_equal(l.n_slices, sizeof(expect) / sizeof(expect[0]));
    for (int i = 0; i < l.n_slices; i++)
        assert_true(l.slices[i].kind == expect[i].kind && l.slices[i].from == expect[i].from &&
                    l.slices[i].to == expect[i].to);
    lanes_fini(&l);
}

/* ---- sums ---- */

TEST(sums_are_those_of_hand)
{
    struct fake f[2];
    struct rank_summary s[2];
    struct profile_difference most;
    for (int k = 0; k < 2; k++) {
        fake_init(&f[k], k);
        did(&f[k], 0, 100, 300); /* computes for 200 */
        did(&f[k], 2, 500, 600); /* and 100 */
        did(&f[k], 1, 250, 450); /* 50 of 200 behind the compute */
        did(&f[k], 3, 400, 700); /* overlaps the one before by 50, and 100 of the compute */
    }
    did(&f[1], 2, 700, 1000);
    f[0].hosts[0] = (struct recorded_host){0, 40, HOST_DATA, 0};
    f[0].hosts[1] = (struct recorded_host){700, 710, HOST_SAVE, 0};
    f[0].hosts[2] = (struct recorded_host){710, 715, HOST_POLL, 0};
    f[0].r.n_hosts = 3;
    struct forecast_box boxes[] = {{0, ACT_FORWARD, STREAM_COMPUTE, 0, 0, 0, 210e-9},
                                   {2, ACT_BACKWARD, STREAM_COMPUTE, 0, 0, 210e-9, 330e-9},
                                   {3, ACT_REDUCE, STREAM_COMM, 0, -1, 330e-9, 900e-9}};
    struct forecast_rank forecast[] = {{.boxes = boxes, .n = 3}, {.boxes = boxes, .n = 3}};
    struct recorded ranks[2] = {f[0].r, f[1].r};
    const struct profile p = {.rank = ranks, .n = 2, .forecast = {.ranks = forecast, .n = 2}};
    assert_ok(profile_sum(&p, s, &most));
    assert_true(fabs(s[0].step_s - 1000e-9) < 1e-15 && fabs(s[0].compute_s - 300e-9) < 1e-15);
    assert_true(fabs(s[0].comm_s - 450e-9) < 1e-15 && fabs(s[0].exposed_s - 300e-9) < 1e-15);
    assert_true(fabs(s[0].data_s - 40e-9) < 1e-15 && fabs(s[0].save_s - 15e-9) < 1e-15);
    assert_true(fabs(s[0].bubble - 0.7) < 1e-12 && fabs(s[1].bubble - 0.4) < 1e-12);
    assert_true(most.rank == 1 && most.kind == ACT_BACKWARD);
    assert_true(fabs(most.measured_s - 400e-9) < 1e-15 && fabs(most.forecast_s - 120e-9) < 1e-15);
}

/* ---- files ---- */

static json_t *read_trace(const char *path)
{
    char text[65536];
    gzFile f = gzopen(path, "rb");
    assert_non_null(f);
    const int n = gzread(f, text, sizeof(text));
    assert_true(n > 0 && n < (int)sizeof(text));
    gzclose(f);
    json_error_t error;
    json_t *ret = json_loadb(text, (size_t)n, 0, &error);
    if (!ret)
        fail_msg("%s at byte %d", error.text, error.position);
    return ret;
}

static int count_phase(json_t *trace, const char *phase)
{
    size_t i;
    json_t *e;
    int n = 0;
    json_array_foreach(json_object_get(trace, "traceEvents"), i, e)
    {
        n += strcmp(json_string_value(json_object_get(e, "ph")), phase) == 0;
    }
    return n;
}

TEST(a_message_has_an_arrow_only_if_both_ends_were_recorded)
{
    static const char *const nodes[] = {"a \"quoted\"\nname", NULL};
    char path[] = "/tmp/dtd-test-profile-XXXXXX";
    struct trace_facts facts;
    struct why why = {""};
    struct fake f[2];
    int64_t error[2] = {0, 1500};
    close(mkstemp(path));
    for (int k = 0; k < 2; k++) {
        fake_init(&f[k], k);
        did(&f[k], 0, 100, 200);
        did(&f[k], 1, 300 + 50 * k, 400 + 50 * k);
    }
    struct recorded ranks[2] = {f[0].r, f[1].r};
    const struct profile p = {.job = "j\\\"\t", .rank = ranks, .n = 2, .node = nodes, .error_ns = error};
    if (trace_write(&p, path, &facts, &why))
        fail_msg("%s", why.text);
    assert_true(facts.flows == 1 && facts.slices == 2 * 4 && facts.files == 1);
    json_t *trace = read_trace(path);
    assert_string_equal(json_string_value(json_object_get(trace, "traceName")), "j\\\"\t");
    assert_int_equal(json_integer_value(json_object_get(json_object_get(trace, "dtd"), "clock_error_ns")), 1500);
    assert_true(count_phase(trace, "s") == 1 && count_phase(trace, "f") == 1 && count_phase(trace, "X") == 8);
    json_decref(trace);
    ranks[1].n_events = 1; /* the receive was not recorded */
    assert_ok(trace_write(&p, path, &facts, &why));
    trace = read_trace(path);
    assert_true(facts.flows == 0 && count_phase(trace, "s") == 0 && count_phase(trace, "f") == 0);
    json_decref(trace);
    assert_err(ERR_NOTFOUND, trace_write(&p, "/no/such/folder/trace.json.gz", &facts, &why));
    assert_non_null(strstr(why.text, "name another place with --to"));
    unlink(path);
}

TEST(a_full_disk_leaves_no_file)
{
    struct trace_facts facts;
    struct why why = {""};
    struct fake f[2];
    int64_t error[2] = {0};
    for (int k = 0; k < 2; k++)
        fake_init(&f[k], k);
    struct recorded ranks[2] = {f[0].r, f[1].r};
    const struct profile p = {.rank = ranks, .n = 2, .error_ns = error};
    char dir[] = "/tmp/dtd-test-profile-XXXXXX", path[64], part[80];
    assert_non_null(mkdtemp(dir));
    snprintf(path, sizeof(path), "%s/t.json.gz", dir);
    snprintf(part, sizeof(part), "%s.part", path);
    assert_int_equal(symlink("/dev/full", part), 0);
    assert_err(ERR_NOSPACE, trace_write(&p, path, &facts, &why));
    assert_true(access(path, F_OK) && access(part, F_OK));
    snprintf(path, sizeof(path), "%s/t.tar", dir);
    snprintf(part, sizeof(part), "%s.part", path);
    assert_int_equal(symlink("/dev/full", part), 0);
    assert_err(ERR_NOSPACE, trace_write_tar(&p, path, &facts, &why));
    assert_true(access(path, F_OK) && access(part, F_OK));
    assert_ok(file_remove_tree(dir));
}
