/* Log folders that earlier versions have written (formats/N, N: their newest cluster version) are read by this one. The
 * expected values are those that write_format.c records. */
#include "daemon/control/state/features.h"
#include "tests/daemon/control/log/formats_log.h"
#include "tests/lib/test.h"

#include <math.h>
#include <stdlib.h>
#include <sys/stat.h>

static void copy_format(uint32_t version, char ret[600])
{
    char command[2000], from[1200];
    const char *source = getenv("DTD_SOURCE");
    if (!source)
        TEST_SKIP("DTD_SOURCE is not set");
    struct stat found;
    snprintf(from, sizeof(from), "%s/tests/daemon/control/log/formats/%u", source, version);
    if (stat(from, &found))
        fail_msg("%s is missing: formats/make BUILD writes it", from);
    snprintf(ret, 600, "%s/%u", test_tmpdir(), version);
    snprintf(command, sizeof(command), "cp -r '%s' '%s' && chmod -R u+w '%s'", from, ret, ret);
    assert_int_equal(system(command), 0);
}

static void check_cluster(const struct state *s, uint32_t version)
{
    const struct state_cluster *c = state_cluster(s);
    assert_int_equal(c->n_nodes, 2);
    assert_int_equal(c->next_node, 4);
    assert_string_equal(c->nodes[0].name, "a");
    assert_string_equal(c->nodes[0].address, "a:7811");
    assert_string_equal(c->nodes[0].domain, "");
    assert_null(c->nodes[0].drained);
    assert_string_equal(c->nodes[1].domain, "rack 1");
    assert_string_equal(c->nodes[1].drained, "new memory");
    assert_int_equal(c->nodes[1].instance[15], 'b');
    assert_int_equal(c->n_tokens, 1);
    assert_int_equal(c->tokens[0].id, 5);
    assert_int_equal(c->tokens[0].uses, 1);
    assert_int_equal(c->n_keys, 2);
    assert_int_equal(c->keys[0].secret[31], 1);
    assert_int_equal(c->keys[1].version, 10);
    assert_int_equal(c->keys[1].secret[0], 10);
    assert_int_equal(c->key_used, 10);
    assert_int_equal(state_version(s), version);
    assert_int_equal(c->lineage.id, version >= 2 ? 77 : 0);
    assert_int_equal(c->lineage.generation, version >= 2 ? 1 : 0);
}

static void check_job(const struct state *s, uint64_t id)
{
    const struct state_job *j = state_job_find(s, id);
    assert_non_null(j);
    assert_string_equal(j->spec, "name: kept\n");
    assert_int_equal(j->parent, id - 1);
    assert_int_equal(j->uid, 1000);
    assert_int_equal(j->desired, DESIRED_SAVED);
    assert_int_equal(j->end, END_CANCELED);
    assert_string_equal(j->reason, "by its owner");
    assert_int_equal(j->epoch.epoch, 2);
    assert_int_equal(j->epoch.n_members, 1);
    assert_int_equal(j->epoch.resume_step, 20);
    assert_int_equal(j->epoch.restarts, 1);
    assert_int_equal(j->n_left, 1);
    assert_string_equal(j->left[0].node, "b");
    assert_int_equal(j->left[0].rank, 1);
    assert_int_equal(j->n_checkpoints, 1);
    assert_int_equal(j->checkpoints[0].step, 20);
    assert_string_equal(j->checkpoints[0].path, "/c/step-20");
    assert_true(isnan(j->checkpoints[0].loss));
    assert_int_equal(j->n_incidents, 1);
    assert_string_equal(j->incidents[0].seen, "worker rank 1 exited");
    assert_string_equal(j->incidents[0].log, "the last line\n");
    assert_int_equal(j->incidents[0].lost_steps, 3);
}

static void check_requests(const struct state *s)
{
    struct state_result first;
    uint8_t id[REQUEST_ID_BYTES];
    for (int i = 1; i <= 3; i++) {
        memset(id, i, sizeof(id));
        assert_true(state_request_find(s, id, &first));
        assert_int_equal(first.job, i);
    }
}

/* It goes on: one record more, which is there after the next start. */
static void check_format(uint32_t version)
{
    const struct state_event *const *events;
    struct formats_log f;
    char dir[600];
    copy_format(version, dir);
    for (int start = 0; start < 2; start++) {
        formats_log_open(&f, dir);
        if (f.err)
            fail_msg("version %u: %s", version, f.why);
        check_cluster(f.replica.state, version);
        assert_null(state_job_find(f.replica.state, 1)); /* it was removed */
        check_job(f.replica.state, 2);
        check_job(f.replica.state, 3);
        check_requests(f.replica.state);
        assert_true(state_events(f.replica.state, &events) > 10);
        const struct state_job *more = state_job_find(f.replica.state, 4);
        assert_true(start ? more && strcmp(more->spec, "name: more\n") == 0 : !more);
        struct record r = {.kind = RECORD_SUBMITTED, .wall_ms = 1700001000000, .submitted = {.spec = "name: more\n"}};
        if (!start)
            formats_log_add(&f, &r);
        formats_log_close(&f);
    }
}

TEST(version_1)
{
    check_format(1);
}

TEST(version_2)
{
    check_format(2);
}

/* A version that raises it adds its folder and its case here. */
TEST(the_newest_version_has_a_folder)
{
    char dir[600];
    assert_int_equal(FEATURES_NEWEST, 2);
    copy_format(FEATURES_NEWEST, dir);
}
