/* Measured steps: a file that is written can be read, a damaged one is refused, and sums equal sums computed by hand.
 */
#include "common/plan/estimate/measured.h"
#include "tests/lib/test.h"

#include <math.h>
#include <stdlib.h>

static struct forecast_box boxes[] = {
    {0, ACT_BEGIN, STREAM_COMPUTE, 0, -1, 0, 1e-6},
    {1, ACT_FORWARD, STREAM_COMM, 0, 0, 1e-6, 3e-6},
    {1, ACT_FORWARD, STREAM_COMPUTE, 0, 0, 2e-6, 5e-6},
    {2, ACT_EXCHANGE, STREAM_COMM, 0, -1, 4e-6, 9.000000001},
};
static const struct measured step = {
    .step = 7, .epoch = 2, .rank = 1, .world = 3, .did = {.boxes = boxes, .n = sizeof(boxes) / sizeof(boxes[0])}};

static char *print(const struct measured *m, size_t *ret_len)
{
    char *text = NULL;
    FILE *out = open_memstream(&text, ret_len);
    assert_non_null(out);
    measured_print(m, out);
    assert_int_equal(fclose(out), 0);
    return text;
}

TEST(a_written_step_can_be_read)
{
    size_t len;
    char *text = print(&step, &len);
    struct measured m;
    struct why why;
    assert_ok(measured_read(text, len, "x", &m, &why));
    assert_true(m.step == 7 && m.epoch == 2 && m.rank == 1 && m.world == 3 && m.did.n == step.did.n);
    for (int i = 0; i < m.did.n; i++) {
        const struct forecast_box *a = &m.did.boxes[i], *b = &boxes[i];
        assert_true(a->action == b->action && a->kind == b->kind && a->stream == b->stream);
        assert_true(a->micro == b->micro && a->chunk == b->chunk);
        assert_true(fabs(a->start - b->start) < 1e-9 && fabs(a->end - b->end) < 1e-9);
    }
    measured_fini(&m);
    free(text);
}

static void refused(const char *text, const char *message)
{
    struct measured m;
    struct why why = {""};
    assert_err(ERR_INVALID, measured_read(text, strlen(text), "x", &m, &why));
    if (!strstr(why.text, message))
        fail_msg("\"%s\" does not contain \"%s\"", why.text, message);
}

TEST(damage_is_refused)
{
    static const char head[] = "dtd timeline 1 step 7 epoch 2 rank 1 world 3\n";
    static const char *const lines[] = {
        "0 begin -1 0 compute 5 4\n",  /* ends before it begins */
        "0 begin -1 0 compute 0 5 \n", /* a character too many */
        "0 jump -1 0 compute 0 5\n",   /* an unknown action */
        "0 begin -1 0 disk 0 5\n",     /* an unknown stream */
        "-1 begin -1 0 compute 0 5\n", /* an illegal index */
        "0 begin -2 0 compute 0 5\n",  /* an illegal microbatch */
        "0 begin -1 0 compute 0\n",    /* a field too few */
        "0 begin -1 0 compute 0 99999999999999999999\n",
    };
    char text[256];
    for (size_t i = 0; i < sizeof(lines) / sizeof(lines[0]); i++) {
        snprintf(text, sizeof(text), "%s0 begin -1 0 compute 0 4\n%s", head, lines[i]);
        refused(text, "x:3: ");
    }
    snprintf(text, sizeof(text), "%s0 begin -1 0 comm 0 4\n1 norm -1 0 comm 3 5\n",
             head); /* overlaps the box before it on its stream */
    refused(text, "x:3: ");
    snprintf(text, sizeof(text), "%s0 begin -1 0 comm 0 4", head);
    refused(text, "not a complete timeline");
    refused("dtd timeline 1 step 7 epoch 2 rank 3 world 3\n", "not a complete timeline");
    refused("dtd timeline 1 step 7 epoch -2 rank 1 world 3\n", "not a complete timeline");
    refused("dtd timeline 2 step 7 epoch 2 rank 1 world 3\n", "not a complete timeline");
    refused("", "not a complete timeline");
}

/* 1 us before the compute stream starts, then the whole exchange except the 1 us in which the compute stream is still
 * busy. */
TEST(communication_without_computation_is_exposed)
{
    struct forecast_rank rank = step.did;
    struct forecast f = {.ranks = &rank, .n = 1};
    forecast_sum(&f);
    assert_true(fabs(rank.busy - 4e-6) < 1e-12);
    assert_true(fabs(rank.exposed - (1e-6 + 9.000000001 - 5e-6)) < 1e-12);
    assert_true(f.seconds == 9.000000001);
    assert_true(fabs(f.bubble - (1 - 4e-6 / f.seconds)) < 1e-12);
    assert_true(fabs(f.exposed - rank.exposed / f.seconds) < 1e-12);
}
