/* GPUs of a node: the output of the probe, and the assignment to jobs. */
#include "daemon/control/local/gpus.h"
#include "tests/lib/test.h"

static struct gpus g;

static err_t read_words(const char *text, struct why *why)
{
    g = (struct gpus){.n = -1};
    return gpus_read(&g, text, strlen(text), why);
}

TEST(probe_output_is_read)
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

TEST(the_numa_node_of_a_gpu)
{
    static const struct {
        const char *word;
        int node;
    } cases[] = {{"0", 0},
                 {"5", 5},
                 {"255", 255},
                 {"null", -1},
                 {"-1", -1},
                 {"-7", -1},
                 {"1.5", -1},
                 {"\"1\"", -1},
                 {"true", -1},
                 {"4294967296", -1},
                 {"2147483647", 2147483647}};
    struct why why;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        char text[128];
        snprintf(text, sizeof(text), "{\"gpus\": [{\"index\": 0}, {\"index\": 1, \"numa_node\": %s}]}", cases[i].word);
        assert_ok(read_words(text, &why));
        if (gpus_numa_node(&g, 0) != -1 || gpus_numa_node(&g, 1) != cases[i].node)
            fail_msg("%s gives %d and %d", cases[i].word, gpus_numa_node(&g, 0), gpus_numa_node(&g, 1));
    }
    assert_true(gpus_numa_node(&g, -1) == -1 && gpus_numa_node(&g, 2) == -1);
    gpus_set(&g, 2); /* the number is from the configuration, so the NUMA nodes are not known */
    assert_int_equal(-1, gpus_numa_node(&g, 1));
}

TEST(minor_numbers_are_known_for_all_gpus_or_for_none)
{
    struct why why;
    uint64_t minors = 9;
    assert_ok(read_words("{\"gpus\": [{\"index\": 0, \"minor\": 2}, {\"index\": 1, \"minor\": 0}, "
                         "{\"index\": 2, \"minor\": 63}]}",
                         &why));
    assert_true(gpus_minors(&g, 0, &minors) && minors == 0);
    assert_true(gpus_minors(&g, 1, &minors) && minors == UINT64_C(1) << 2);
    assert_true(gpus_minors(&g, 6, &minors) && minors == (UINT64_C(1) | UINT64_C(1) << 63));
    assert_true(gpus_minors(&g, 8, &minors) && minors == 0); /* the node has no GPU 3 */
    static const char *const words[] = {"null", "-1", "64", "1.5", "\"1\""};
    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++) {
        char text[128];
        snprintf(text, sizeof(text), "{\"gpus\": [{\"index\": 0, \"minor\": 0}, {\"index\": 1, \"minor\": %s}]}",
                 words[i]);
        assert_ok(read_words(text, &why));
        assert_false(gpus_minors(&g, 1, &minors));
    }
    gpus_set(&g, 2);
    assert_false(gpus_minors(&g, 1, &minors));
    gpus_set(&g, 0);
    assert_false(gpus_minors(&g, 0, &minors));
}

TEST(broken_gpu_is_not_assigned)
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

TEST(sick_gpu_is_not_assigned_again)
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
    assert_string_equal(
        "GPU 1 is not used: it has uncorrectable memory errors (2) and has rows of memory that wait for "
        "a reset (1)",
        g.sick);
    assert_string_equal("", gpus_sick(&g, 0));
    assert_string_equal("", gpus_sick(&g, -1));
    assert_string_equal("", gpus_sick(&g, GPUS_MAX));
    assert_true(gpus_take(&g, 7, 1, 1, device));
    assert_int_equal(0, device[0]);
    assert_false(gpus_take(&g, 8, 1, 1, device + 1));
    assert_ok(
        read_words("{\"gpus\": [{\"index\": 0, \"model\": \"H200\", \"health\": {\"retired_pages\": 64}}]}", &why));
    assert_int_equal(0, gpus_count(&g));
    assert_string_equal("GPU 0 is not used: it has retired pages of memory (64)", g.missing);
}

/* Three GPUs, which the driver's library lists in another order, and one that CUDA does not show. */
static void watch(void)
{
    struct why why;
    assert_ok(read_words("{\"gpus\": [{\"index\": 0, \"uuid\": \"GPU-a\", \"health\": {\"lost\": false}}, "
                         "{\"index\": 1, \"uuid\": \"GPU-b\", \"health\": {}}, {\"index\": 2, \"uuid\": \"GPU-c\"}]}",
                         &why));
    assert_true(g.watched);
}

static err_t read_health(const char *text, uint64_t *ret, struct why *why)
{
    *ret = UINT64_MAX;
    return gpus_health_read(&g, text, strlen(text), ret, why);
}

static uint64_t health(const char *text)
{
    uint64_t sick;
    struct why why = {""};
    if (read_health(text, &sick, &why))
        fail_msg("%s", why.text);
    return sick;
}

#define WELL(uuid) "{\"uuid\": \"GPU-" uuid "\", \"health\": {\"ecc_uncorrected_volatile\": 0, \"lost\": false}}"
#define BEGIN "{\"gpus\": ["
#define END "]}"
#define SICK(uuid) "{\"uuid\": \"GPU-" uuid "\", \"health\": {\"ecc_uncorrected_volatile\": 1}}"

TEST(one_becomes_sick_while_a_job_has_it)
{
    int device[2] = {-1, -1};
    watch();
    assert_true(gpus_take(&g, 7, 2, 2, device)); /* both on GPU 0 */
    gpus_give(&g, 7);
    device[0] = device[1] = -1;
    assert_true(gpus_take(&g, 7, 2, 1, device));
    assert_int_equal(0, health(BEGIN WELL("x") ", " WELL("c") ", " WELL("b") ", " WELL("a") END));
    assert_int_equal(2, health(BEGIN SICK("x") ", " WELL("c") ", " SICK("b") ", " WELL("a") END));
    assert_int_equal(0, health(BEGIN SICK("x") ", " WELL("c") ", " SICK("b") ", " WELL("a") END)); /* reported once */
    assert_string_equal("has uncorrectable memory errors (1)", gpus_sick(&g, 1));
    assert_string_equal("GPU 1 is not used: it has uncorrectable memory errors (1)", g.sick);
    assert_int_equal(7, g.gpu[1].job); /* the job keeps the GPU */
    assert_int_equal(2, gpus_count(&g));
    assert_int_equal(1, gpus_free(&g));
    assert_int_equal(0, gpus_busy(&g, 7));
    assert_int_equal(1, gpus_busy(&g, 8));
    device[1] = -1; /* its worker has exited and needs another GPU */
    assert_true(gpus_take(&g, 7, 2, 1, device));
    assert_int_equal(2, device[1]);
    assert_int_equal(0, gpus_free(&g));
    gpus_give(&g, 7);
    assert_int_equal(2, gpus_free(&g));
    assert_false(gpus_take(&g, 8, 3, 1, (int[]){-1, -1, -1}));
    assert_int_equal(
        0, health(BEGIN WELL("c") ", " WELL("b") ", " WELL("a") END)); /* b remains sick until the next probe */
    assert_int_equal(2, gpus_count(&g));
    assert_int_equal(5, health(BEGIN SICK("c") ", " SICK("b") ", " SICK("a") END));
    assert_int_equal(0, gpus_count(&g));
    assert_non_null(strstr(g.missing, "GPU 2 is not used"));
    watch();
    assert_int_equal(3, gpus_free(&g));
    assert_string_equal("", g.sick);
    device[0] = device[1] = -1;
    assert_true(gpus_take(&g, 7, 1, 2, device));
    assert_int_equal(1, health(BEGIN SICK("a") END));
    assert_true(gpus_take(&g, 7, 2, 2, device));
    assert_int_equal(1, device[1]); /* not on GPU 0 together with the first worker */
}

TEST(a_lost_gpu_is_found_by_what_is_missing)
{
    const char *lost = "{\"lost\": true, \"error\": \"GPU is lost (code 15)\"}", *riddle = "{\"error\": \"Unknown\"}";
    char text[400];
    watch();
    assert_int_equal(
        0, health(BEGIN WELL("b") ", " WELL("a") END)); /* c was never listed: it is an instance (MIG), not a GPU */
    snprintf(text, sizeof(text), BEGIN "%s," WELL("a") END, riddle);
    assert_int_equal(0, health(text)); /* the entry without a uuid may be any GPU */
    snprintf(text, sizeof(text), BEGIN "%s," WELL("a") END, lost);
    assert_int_equal(2, health(text));
    assert_string_equal("is lost: the driver does not reach it any more", gpus_sick(&g, 1));
    assert_int_equal(0, health(text));
    assert_int_equal(
        1, health(BEGIN "{\"uuid\": \"GPU-a\", \"health\": {\"lost\": true, \"ecc_uncorrected_volatile\": null}}" END));
    assert_string_equal("is lost: the driver does not reach it any more", gpus_sick(&g, 0));
    watch();
    assert_int_equal(0, health(BEGIN WELL("b") ", " WELL("a") END));
    assert_int_equal(1, health(BEGIN WELL("b") END)); /* a has disappeared from the bus */
}

TEST(invalid_health_output_changes_nothing)
{
    const char *const bad[] = {"",
                               "{",
                               "[]",
                               "7",
                               "{\"gpus\": 2}",
                               "{\"gpus\": [7]}",
                               "{\"gpus\": [], \"gpus\": []}",
                               BEGIN SICK("a") ", 3" END};
    uint64_t sick;
    struct why why;
    watch();
    assert_int_equal(0, health(BEGIN WELL("b") ", " WELL("a") END));
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        assert_err(ERR_CORRUPT, read_health(bad[i], &sick, &why));
    assert_err(ERR_NOTFOUND, read_health("{\"gpus\": [], \"gpu_missing\": \"no driver\"}", &sick, &why));
    assert_string_equal("no driver", why.text);
    assert_err(ERR_NOTFOUND, read_health("{\"gpus\": []}", &sick, &why));
    assert_int_equal(3, gpus_count(&g));
    assert_int_equal(
        0, health("{\"gpus\": [{\"uuid\": 3}, {\"uuid\": \"GPU-a\"}, {\"uuid\": \"GPU-b\", \"health\": []}]}"));
    assert_int_equal(3, gpus_count(&g));
}

TEST(health_is_watched_if_the_probe_reports_it)
{
    struct why why;
    assert_ok(
        read_words("{\"gpus\": [{\"index\": 0, \"uuid\": \"GPU-a\"}], \"health_missing\": \"no library\"}", &why));
    assert_false(g.watched);
    watch();
    assert_int_equal(1, health(BEGIN SICK("a") END));
    gpus_set(&g, 2);
    assert_false(g.watched);
    assert_string_equal("", gpus_sick(&g, 0));
    assert_int_equal(2, gpus_free(&g));
}

/* Marks that the leader sets from the reports of another node. */
TEST(marks_of_another_node)
{
    int device[2] = {-1, -1};
    g = (struct gpus){0};
    gpus_set(&g, 3);
    assert_true(gpus_take(&g, 7, 1, 1, device));
    gpus_mark_broken(&g, 0); /* a job uses it in exclusive mode, so the probe could not open it */
    gpus_mark_broken(&g, 1);
    gpus_mark_broken(&g, 3);
    gpus_mark_broken(&g, -1);
    gpus_mark_sick(&g, -1, "is lost");
    gpus_mark_sick(&g, GPUS_MAX, "is lost");
    gpus_mark_sick(&g, 2, "");
    assert_int_equal(2, gpus_count(&g));
    assert_int_equal(1, gpus_free(&g));
    gpus_mark_sick(&g, 0, "is lost");
    assert_int_equal(1, gpus_count(&g));
    assert_int_equal(7, g.gpu[0].job);
    gpus_forget(&g);
    assert_int_equal(1, gpus_free(&g));
    gpus_adopt(&g, 8, 1); /* a running worker has opened it */
    gpus_give(&g, 8);
    assert_int_equal(2, gpus_free(&g));
}

TEST(invalid_probe_output_is_refused)
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
    assert_false(gpus_take(&g, 8, 3, 1, b)); /* either all workers get a GPU or none */
    assert_int_equal(-1, b[0]);
    assert_int_equal(2, gpus_free(&g));
    assert_true(gpus_take(&g, 9, 1, 2, c)); /* does not share a GPU with another job */
    assert_int_equal(2, c[0]);
    gpus_give(&g, 7);
    assert_int_equal(3, gpus_free(&g));
    assert_true(gpus_take(&g, 8, 3, 1, b));
    assert_int_equal(0, b[0]);
    assert_int_equal(1, b[1]);
    assert_int_equal(3, b[2]);
    assert_int_equal(0, gpus_free(&g));
}

/* A new control finds workers running on GPUs 1 and 3, and has to restart two others. */
TEST(running_workers_keep_their_gpus)
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

TEST(failed_probe_gives_the_reason)
{
    g = (struct gpus){0};
    gpus_fail(&g, "it hangs");
    assert_true(g.known);
    assert_int_equal(0, g.n);
    assert_string_equal("it hangs", g.missing);
}
