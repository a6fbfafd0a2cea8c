/* The list of jobs: one tick for all events of a turn of the loop, and jobs that are added, found and forgotten. The
 * state is real; jobs, nodes and the log are stand-ins. */
#include "daemon/control/job/internal.h"
#include "tests/lib/test.h"

static struct {
    struct jobs jobs;
    struct state *state;
    struct replica replica;
    uint64_t index; /* of the log */
    bool is_superseded;
    int wanted, ticked, job_ticks; /* calls */
} t;

/* ---- what jobs.c calls in other files ---- */

uint64_t log_index(const struct log *log)
{
    (void)log;
    return t.index;
}

bool log_is_superseded(const struct log *log)
{
    (void)log;
    return t.is_superseded;
}

err_t job_new(struct jobs *jobs, const struct state_job *s, struct job **ret)
{
    struct job *j = calloc(1, sizeof(*j));
    assert_non_null(j);
    j->jobs = jobs;
    j->id = s->id;
    *ret = j;
    return OK;
}

void job_free(struct job *j)
{
    free(j);
}

void job_tick(struct job *j)
{
    (void)j;
    t.job_ticks++;
}

bool job_over(const struct job *j)
{
    return j->end_logged;
}

void jobs_queue_sort(struct jobs *jobs)
{
    (void)jobs;
}

void jobs_queue_drop(struct jobs *jobs)
{
    (void)jobs;
}

static int unused(void)
{
    fail_msg("called without need");
    return 0;
}

void job_adopt(struct job *j, bool late)
{
    (void)j, (void)late;
    unused();
}

void job_leave(struct job *j)
{
    (void)j;
    unused();
}

void job_incident_record(struct job *j, double detect_ms, const char *seen, const char *decided)
{
    (void)j, (void)detect_ms, (void)seen, (void)decided;
    unused();
}

bool job_process_running(const struct job_process *p)
{
    (void)p;
    return unused();
}

struct node_view *node_find_or_add(struct jobs *jobs, const char *name)
{
    (void)jobs, (void)name;
    unused();
    return NULL;
}

err_t node_view_release(struct node_view *a, struct jobs *jobs, uint64_t job, bool removes)
{
    (void)a, (void)jobs, (void)job, (void)removes;
    return unused();
}

void node_view_self_init(struct jobs *jobs, const char *name, int slots)
{
    (void)jobs, (void)name, (void)slots;
    unused();
}

void outbox_init(struct outbox *o, const struct replica *replica, void *owner)
{
    (void)o, (void)replica, (void)owner;
    unused();
}

err_t outbox_add(struct outbox *o, const struct record *record, outbox_cb cb)
{
    (void)o, (void)record, (void)cb;
    return unused();
}

/* ---- the tests ---- */

static void on_wanted(void *owner)
{
    (void)owner;
    t.wanted++;
}

static void on_ticked(void *owner)
{
    (void)owner;
    t.ticked++;
}

static void begin(void)
{
    memset(&t, 0, sizeof(t));
    assert_ok(state_new(&t.state));
    t.replica.state = t.state;
    t.jobs = (struct jobs){.ticked = on_ticked, .tick_soon = on_wanted, .replica = &t.replica, .leads = true};
}

static void each(struct job *j)
{
    (void)j;
}

static void end(void)
{
    jobs_clear(&t.jobs, each);
    assert_null(t.jobs.head);
    assert_null(jobs_find(&t.jobs, 1));
    state_free(t.state);
}

static struct state_result apply(struct record r)
{
    struct state_result result;
    t.index++;
    r.wall_ms = (int64_t)t.index;
    assert_ok(state_apply(t.state, &r, &result));
    return result;
}

static uint64_t submit(void)
{
    return apply((struct record){.kind = RECORD_SUBMITTED, .submitted = {.spec = "name: x\n"}}).job;
}

/* As many ticks as events would be N x N looks at a job. */
TEST(events_of_one_turn_share_a_tick)
{
    begin();
    for (int i = 0; i < 100; i++) {
        uint64_t id = submit();
        assert_null(jobs_find(&t.jobs, id));
        jobs_tick_soon(&t.jobs, NULL);
        assert_non_null(jobs_find(&t.jobs, id)); /* the next call finds it */
    }
    assert_int_equal(1, t.wanted);
    assert_int_equal(0, t.job_ticks);
    jobs_tick(&t.jobs);
    assert_int_equal(100, t.job_ticks);
    assert_int_equal(1, t.ticked);
    jobs_tick_soon(&t.jobs, jobs_find(&t.jobs, 50)); /* the caller answers with what this job is now */
    assert_int_equal(101, t.job_ticks);
    assert_int_equal(2, t.wanted);
    end();
}

/* The state may have records of the next leader. */
TEST(a_superseded_leader_does_nothing)
{
    begin();
    submit();
    jobs_tick_soon(&t.jobs, NULL);
    uint64_t id = submit();
    t.is_superseded = true;
    jobs_tick(&t.jobs);
    jobs_tick_soon(&t.jobs, jobs_find(&t.jobs, 1));
    assert_int_equal(0, t.job_ticks);
    assert_int_equal(1, t.wanted);
    assert_null(jobs_find(&t.jobs, id));
    t.is_superseded = false;
    jobs_tick(&t.jobs);
    assert_non_null(jobs_find(&t.jobs, id));
    end();
}

static void expect_jobs(const uint64_t *ids, int n)
{
    int at = 0;
    const struct job *last = NULL;
    for (const struct job *j = t.jobs.head; j; last = j, j = j->next) {
        assert_true(at < n);
        assert_int_equal(ids[at++], j->id);
    }
    assert_int_equal(n, at);
    assert_ptr_equal(last, t.jobs.last);
    for (uint64_t id = 1; id <= 8; id++) {
        bool is_there = false;
        for (int i = 0; i < n; i++)
            is_there = is_there || ids[i] == id;
        const struct job *j = jobs_find(&t.jobs, id);
        assert_true(is_there ? j && j->id == id : !j);
    }
}

static void forget(uint64_t id)
{
    jobs_find(&t.jobs, id)->end_logged = true;
    apply((struct record){.kind = RECORD_ENDED, .job = id, .ended = {.end = END_DONE}});
    apply((struct record){.kind = RECORD_JOB_REMOVED, .job = id});
    jobs_forget(&t.jobs);
}

TEST(jobs_are_found_after_others_were_forgotten)
{
    begin();
    expect_jobs(NULL, 0);
    for (int i = 0; i < 5; i++)
        submit();
    jobs_tick(&t.jobs);
    expect_jobs((const uint64_t[]){1, 2, 3, 4, 5}, 5);
    forget(5);
    expect_jobs((const uint64_t[]){1, 2, 3, 4}, 4);
    forget(1);
    forget(3);
    expect_jobs((const uint64_t[]){2, 4}, 2);
    submit();
    jobs_tick(&t.jobs);
    expect_jobs((const uint64_t[]){2, 4, 6}, 3);
    forget(2);
    forget(4);
    forget(6);
    expect_jobs(NULL, 0);
    submit();
    submit();
    assert_true(jobs_make(&t.jobs, INT64_MAX)); /* a new leader makes them */
    jobs_take_made(&t.jobs);
    expect_jobs((const uint64_t[]){7, 8}, 2);
    end();
}
