/* The queue of records, with a log that only notes what is proposed: order, the window, and what follows a failure. */
#include "daemon/control/state/outbox.h"
#include "tests/lib/test.h"

#define MAX_PROPOSALS 512

/* Stands for the log. The proposals that have not been answered are those from `answered` on. */
static struct {
    uint64_t job[MAX_PROPOSALS]; /* of each proposed record, in order */
    log_callback cb[MAX_PROPOSALS];
    void *arg[MAX_PROPOSALS];
    int proposed, answered;
    err_t refusal; /* of further proposals */
} fake;

err_t log_propose(struct log *log, const void *bytes, size_t len, log_callback cb, void *arg)
{
    struct record r;
    (void)log;
    if (fake.refusal)
        return fake.refusal;
    assert_ok(record_decode(bytes, len, &r));
    assert_true(fake.proposed < MAX_PROPOSALS);
    fake.job[fake.proposed] = r.job;
    fake.cb[fake.proposed] = cb;
    fake.arg[fake.proposed++] = arg;
    record_fini(&r);
    return OK;
}

static void answer(err_t err)
{
    const struct state_result result = {.err = OK};
    int at = fake.answered++;
    assert_true(at < fake.proposed);
    fake.cb[at](fake.arg[at], err, 1, &result);
}

static uint64_t done[MAX_PROPOSALS];
static int n_done;

static void on_done(void *owner, uint64_t job, const struct state_result *result)
{
    (void)owner, (void)result;
    done[n_done++] = job;
}

static char nothing[1];
static struct state_clock cluster_clock;
static struct replica replica = {.log = (struct log *)nothing,
                                 .clock = &cluster_clock}; /* the log is never looked into */

static void begin(struct outbox *o)
{
    memset(&fake, 0, sizeof(fake));
    n_done = 0;
    if (!replica.state) /* empty, and the tests do not change it */
        assert_ok(state_new(&replica.state));
    outbox_init(o, &replica, NULL);
}

static void add(struct outbox *o, uint64_t from, uint64_t to)
{
    for (uint64_t job = from; job <= to; job++) {
        struct record r = {.kind = RECORD_DESIRED, .job = job, .desired = {DESIRED_RUN}};
        assert_ok(outbox_add(o, &r, on_done));
    }
}

static void assert_jobs(const uint64_t *jobs, int n, uint64_t first)
{
    for (int i = 0; i < n; i++)
        assert_int_equal(jobs[i], first + (uint64_t)i);
}

TEST(records_are_proposed_in_order_within_the_window)
{
    struct outbox o;
    begin(&o);
    add(&o, 1, 200);
    assert_int_equal(fake.proposed, OUTBOX_WINDOW);
    for (int i = 0; i < 200; i++) {
        answer(OK);
        assert_in_range(fake.proposed - fake.answered, 0, OUTBOX_WINDOW);
    }
    assert_int_equal(fake.proposed, 200);
    assert_jobs(fake.job, 200, 1);
    assert_int_equal(n_done, 200);
    assert_jobs(done, 200, 1);
    assert_int_equal(o.n, 0);
    outbox_fini(&o);
}

/* The fourth and the later ones are canceled one after another. Until the last of them has ended, nothing is proposed:
 * it would come before them. */
TEST(after_a_failure_the_rest_is_proposed_again_in_order)
{
    struct outbox o;
    begin(&o);
    add(&o, 1, 10);
    for (int i = 0; i < 3; i++)
        answer(OK);
    for (int i = 0; i < 7; i++) {
        answer(ERR_CANCELED);
        if (i < 6)
            outbox_retry(&o);
        assert_int_equal(fake.proposed, 10);
    }
    add(&o, 11, 11);
    outbox_retry(&o);
    assert_int_equal(fake.proposed, 10 + 8);
    assert_jobs(fake.job + 10, 8, 4);
    for (int i = 0; i < 8; i++)
        answer(OK);
    assert_int_equal(n_done, 11);
    assert_jobs(done, 11, 1);
    outbox_fini(&o);
}

/* A success after a failure counts for nothing, so that the order of the last applications is the right one. */
TEST(a_success_after_a_failure_is_repeated)
{
    struct outbox o;
    begin(&o);
    add(&o, 1, 2);
    answer(ERR_CANCELED);
    answer(OK);
    assert_int_equal(n_done, 0);
    outbox_retry(&o);
    assert_int_equal(fake.proposed, 4);
    assert_jobs(fake.job + 2, 2, 1);
    outbox_fini(&o);
}

TEST(a_refusal_delays_the_records)
{
    struct outbox o;
    begin(&o);
    fake.refusal = ERR_NOSPACE;
    add(&o, 1, 3);
    assert_int_equal(fake.proposed, 0);
    assert_err(ERR_NOSPACE, o.err);
    fake.refusal = OK;
    outbox_retry(&o);
    assert_int_equal(fake.proposed, 3);
    assert_jobs(fake.job, 3, 1);
    assert_err(OK, o.err);
    outbox_fini(&o);
}
