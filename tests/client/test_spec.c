#include "client/spec.h"
#include "tests/lib/test.h"

#include <limits.h>
#include <sys/stat.h>

static struct job_spec job_in(const char *dir)
{
    static char text[PATH_MAX];
    snprintf(text, sizeof(text), "%s", dir);
    return (struct job_spec){.checkpoint = {.dir = text}};
}

TEST(a_checkpoint_folder_that_is_not_there_is_made_later)
{
    char path[PATH_MAX];
    struct why why;
    snprintf(path, sizeof(path), "%s/a/b/c", test_tmpdir());
    struct job_spec job = job_in(path);
    assert_ok(spec_check_dir(&job, NULL, &why));
    assert_int_not_equal(access(path, F_OK), 0); /* the check creates nothing */
    assert_int_equal(mkdir(strcat(strcpy(path, test_tmpdir()), "/a"), 0700), 0);
    assert_ok(spec_check_dir(&job, NULL, &why));
}

TEST(find_step_in_what_is_no_checkpoint)
{
    char path[PATH_MAX], step[PATH_MAX], root[PATH_MAX];
    struct why why;
    assert_err(ERR_NOTFOUND, spec_find_step(test_tmpdir(), -1, step, sizeof(step), root, &why));
    assert_non_null(strstr(why.text, "no complete checkpoint"));
    snprintf(path, sizeof(path), "%s/absent", test_tmpdir());
    assert_err(ERR_NOTFOUND, spec_find_step(path, -1, step, sizeof(step), root, &why));
    assert_non_null(strstr(why.text, "absent"));
    /* An incomplete step folder is not a checkpoint. */
    snprintf(path, sizeof(path), "%s/step-5", test_tmpdir());
    assert_int_equal(mkdir(path, 0700), 0);
    assert_err(ERR_NOTFOUND, spec_find_step(test_tmpdir(), -1, step, sizeof(step), root, &why));
}

/* What `dtctl plan` prints for each way to keep the rows of experts is what the job needs with that key. */
TEST(a_plan_names_the_memory_of_each_way_to_keep_rows_of_experts)
{
    static const char text[] =
        "name: mixture\n"
        "model: {dim: 32, layers: 4, heads: 4, experts: 8, experts_per_token: 2, expert_ffn: 48}\n"
        "data: {train: [text], tokenizer: bytes}\n"
        "train: {steps: 2, seq: 16, global_batch: 16, micro_batch: 2}\n"
        "parallel: {workers: 4, fsdp: 2, pp: 2, zero: 2, ep: 2}\n";
    static const char *const sets[][2] = {{"parallel.recompute=none"},
                                          {"parallel.recompute=experts"},
                                          {"parallel.recompute=full"},
                                          {"parallel.recompute=experts", "parallel.expert_rows=1.25"},
                                          {"parallel.recompute=full", "parallel.expert_rows=1.25"},
                                          {"parallel.recompute=none", "parallel.expert_load=balanced"},
                                          {"parallel.recompute=experts", "parallel.expert_load=balanced"},
                                          {"parallel.recompute=full", "parallel.expert_load=balanced"},
                                          {"model.experts=0", "parallel.ep=1"},
                                          {"parallel.dispatch=all_gather"},
                                          {"parallel.schedule=zb-h1"}};
    enum { CHOICES = 8, DENSE = 8, GATHERED, SPLIT, ALL };
    char path[PATH_MAX];
    int64_t named[SPEC_ROWS * SPEC_RECOMPUTES], needed[ALL];
    snprintf(path, sizeof(path), "%s/text", test_tmpdir());
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    for (int i = 0; i < 200; i++)
        fprintf(f, "line %d of a text that is long enough for some samples\n", i);
    fclose(f);
    assert_int_equal(chdir(test_tmpdir()), 0);
    for (int i = 0; i < ALL; i++) {
        struct job_spec job;
        struct spec_facts facts = {0};
        struct why why;
        if (job_parse("job.yaml", text, sizeof(text) - 1, sets[i], sets[i][1] ? 2 : 1, &job, &why) ||
            spec_plan(&job, NULL, NULL, &facts, &why))
            fail_msg("%s: %s", sets[i][0], why.text);
        needed[i] = facts.memory.total_bytes;
        if (i == 0)
            memcpy(named, facts.expert_bytes, sizeof(named));
        assert_int_equal(facts.expert_bytes[SPEC_ROUTED][0] > 0, i != DENSE);
        assert_int_equal(facts.expert_bytes[SPEC_ROUNDS][0], 0); /* rows of earlier rounds are not kept */
        assert_int_equal(facts.expert_bytes[SPEC_ROUNDS][1] > 0, i < CHOICES);
        assert_int_equal(facts.expert_bytes[SPEC_BALANCED][0] > 0, i < CHOICES || i == SPLIT);
        spec_facts_fini(&facts);
        job_fini(&job);
    }
    for (int i = 0, k = 0; i < SPEC_ROWS * SPEC_RECOMPUTES; i++)
        if (i != SPEC_ROUNDS * SPEC_RECOMPUTES)
            assert_int_equal(named[i], needed[k++]);
    for (int i = 1; i < SPEC_RECOMPUTES; i++)
        assert_true(needed[i] < needed[i - 1] && needed[2 + i] < needed[i] && needed[5 + i] < needed[2 + i]);
}
