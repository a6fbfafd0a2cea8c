/* GPUs of a node: the probe's words, and which job has which. */
#include "daemon/control/gpus.h"
#include "tests/lib/test.h"

static struct gpus g;

static err_t read_words(const char *text, struct why *why)
{
    g = (struct gpus){.n = -1};
    return gpus_read(&g, text, strlen(text), why);
}

TEST(the_probes_words_are_read)
{
    struct why why;
    assert_ok(read_words(
        "{\"gpus\": [{\"index\": 0, \"model\": \"NVIDIA H200\"}, {\"index\": 1, \"model\": \"other\"}]}", &why));
    assert_true(g.known);
    assert_int_equal(2, g.n);
    assert_string_equal("NVIDIA H200", g.model);
    assert_string_equal("", g.missing);
    assert_int_equal(2, gpus_free(&g));
    assert_ok(read_words("{\"gpus\": [], \"gpu_missing\": \"no driver\\n\"}", &why));
    assert_int_equal(0, g.n);
    assert_string_equal("no driver?", g.missing);
}

TEST(a_broken_gpu_is_nobodys)
{
    int device[2] = {-1, -1};
    struct why why;
    assert_ok(read_words("{\"gpus\": [{\"index\": 0, \"error\": \"it is lost\"}, {\"index\": 1, \"model\": \"H200\"}]}",
                         &why));
    assert_int_equal(1, gpus_count(&g));
    assert_int_equal(1, gpus_free(&g));
    assert_string_equal("H200", g.model);
    assert_false(gpus_take(&g, 7, 2, 1, device));
    assert_true(gpus_take(&g, 7, 2, 2, device));
    assert_int_equal(1, device[0]);
    gpus_give(&g, 7);
    assert_int_equal(1, gpus_free(&g));
    assert_ok(read_words("{\"gpus\": [{\"index\": 0, \"error\": \"it is lost\"}]}", &why));
    assert_int_equal(0, gpus_count(&g));
    assert_string_equal("it is lost", g.missing);
}

TEST(a_sick_gpu_is_nobodys)
{
    int device[2] = {-1, -1};
    struct why why;
    assert_ok(
        read_words("{\"gpus\": [{\"index\": 0, \"model\": \"H200\", \"health\": {\"ecc_uncorrected_volatile\": 0, "
                   "\"retired_pages\": null, \"throttle\": [\"thermal (hardware)\"], \"remapped_rows\": "
                   "{\"correctable\": 3, \"pending\": 0, \"failed\": null}}}, "
                   "{\"index\": 1, \"model\": \"H200\", \"health\": {\"ecc_uncorrected_volatile\": 2, "
                   "\"remapped_rows\": {\"pending\": 1}}}]}",
                   &why));
    assert_int_equal(2, g.n);
    assert_int_equal(1, gpus_count(&g));
    assert_string_equal("GPU 1 is not used (uncorrectable memory errors: 2); GPU 1 is not used (rows of memory that "
                        "wait for a reset: 1)",
                        g.sick);
    assert_true(gpus_take(&g, 7, 1, 1, device));
    assert_int_equal(0, device[0]);
    assert_false(gpus_take(&g, 8, 1, 1, device + 1));
    assert_ok(
        read_words("{\"gpus\": [{\"index\": 0, \"model\": \"H200\", \"health\": {\"retired_pages\": 64}}]}", &why));
    assert_int_equal(0, gpus_count(&g));
    assert_string_equal("GPU 0 is not used (retired pages of memory: 64)", g.missing);
}

TEST(what_is_no_word_of_a_probe_is_refused)
{
    static char many[40 * (GPUS_MAX + 1) + 64], big[GPUS_PROBE_MAX + 2];
    struct why why;
    const char *const bad[] = {"",
                               "{",
                               "[]",
                               "3",
                               "{\"gpus\": 2}",
                               "{\"gpus\": [{\"index\": 1}]}",
                               "{\"gpus\": [{\"index\": 0}, {\"index\": 0}]}",
                               "{\"gpus\": [{\"index\": 0}, 7]}",
                               "{\"gpus\": [], \"gpus\": []}",
                               "{\"gpus\": []} more"};
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        assert_err(ERR_CORRUPT, read_words(bad[i], &why));
        assert_false(g.known);
    }
    char *at = many + sprintf(many, "{\"gpus\": [");
    for (int i = 0; i <= GPUS_MAX; i++)
        at += sprintf(at, "%s{\"index\": %d}", i ? "," : "", i);
    strcpy(at, "]}");
    assert_err(ERR_CORRUPT, read_words(many, &why));
    memset(big, ' ', sizeof(big) - 1);
    assert_err(ERR_CORRUPT, read_words(big, &why));
}

TEST(a_job_has_its_gpus_for_itself)
{
    int a[4] = {-1, -1, -1, -1}, b[3] = {-1, -1, -1}, c[1] = {-1};
    g = (struct gpus){0};
    gpus_set(&g, 4);
    assert_true(gpus_take(&g, 7, 4, 2, a));
    assert_int_equal(0, a[0]);
    assert_int_equal(0, a[1]);
    assert_int_equal(1, a[2]);
    assert_int_equal(1, a[3]);
    assert_int_equal(2, gpus_free(&g));
    assert_false(gpus_take(&g, 8, 3, 1, b)); /* nothing is given in part */
    assert_int_equal(-1, b[0]);
    assert_int_equal(2, gpus_free(&g));
    assert_true(gpus_take(&g, 9, 1, 2, c)); /* it shares with no other job */
    assert_int_equal(2, c[0]);
    gpus_give(&g, 7);
    assert_int_equal(3, gpus_free(&g));
    assert_true(gpus_take(&g, 8, 3, 1, b));
    assert_int_equal(0, b[0]);
    assert_int_equal(1, b[1]);
    assert_int_equal(3, b[2]);
    assert_int_equal(0, gpus_free(&g));
}

/* After a new control: two workers live on GPUs 1 and 3, two have to be started again. */
TEST(workers_that_live_keep_their_gpus)
{
    int device[4] = {-1, 3, -1, 1};
    g = (struct gpus){0};
    gpus_adopt(&g, 7, 3);
    gpus_adopt(&g, 7, 1);
    gpus_adopt(&g, 7, -1);
    gpus_adopt(&g, 7, GPUS_MAX);
    gpus_set(&g, 4);
    assert_int_equal(2, gpus_free(&g));
    assert_true(gpus_take(&g, 7, 4, 2, device));
    assert_int_equal(1, device[0]);
    assert_int_equal(3, device[1]);
    assert_int_equal(3, device[2]);
    assert_int_equal(1, device[3]);
    assert_int_equal(2, gpus_free(&g));
}

TEST(needs_are_rounded_up)
{
    assert_int_equal(1, gpus_needed(1, 1));
    assert_int_equal(4, gpus_needed(4, 1));
    assert_int_equal(2, gpus_needed(4, 2));
    assert_int_equal(3, gpus_needed(5, 2));
    assert_int_equal(1, gpus_needed(3, 64));
}

TEST(a_failed_probe_says_why)
{
    g = (struct gpus){0};
    gpus_fail(&g, "it hangs");
    assert_true(g.known);
    assert_int_equal(0, g.n);
    assert_string_equal("it hangs", g.missing);
}
