/* Correct job files: values, defaults, overrides, printing, paths, the learning rate. */
#include "common/base/dtype.h"
#include "common/base/file.h"
#include "common/conf/schema.h"
#include "tests/common/conf/job_text.h"

#include <limits.h>
#include <math.h>

TEST(every_value_of_the_example)
{
    struct job_spec j;
    job_make(&j, 0, NULL);
    assert_string_equal(j.name, "first-job");
    assert_int_equal(j.model.arch, ARCH_LLAMA);
    assert_int_equal(j.model.dim, 256);
    assert_int_equal(j.model.layers, 4);
    assert_int_equal(j.model.heads, 8);
    assert_int_equal(j.model.kv_heads, 4);
    assert_int_equal(j.model.ffn, 688);
    assert_int_equal(j.data.n_train, 1);
    assert_string_equal(j.data.train[0], "/usr/share/common-licenses/*");
    assert_int_equal(j.data.n_valid, 0);
    assert_int_equal(j.data.tokenizer, TOKENIZER_BYTES);
    assert_int_equal(j.train.steps, 300);
    assert_int_equal(j.train.seq, 256);
    assert_int_equal(j.train.global_batch, 16);
    assert_int_equal(j.train.micro_batch, 4);
    assert_true(j.train.lr == 3e-3);
    assert_int_equal(j.train.schedule, LR_COSINE);
    assert_int_equal(j.train.warmup, 20);
    assert_true(j.train.weight_decay == 0.1);
    assert_true(j.train.clip == 1);
    assert_int_equal(j.train.dtype, DT_F32);
    assert_int_equal(j.train.numerics, NUMERICS_FAST);
    assert_int_equal(j.train.eval_every, 50);
    assert_int_equal(j.train.seed, 1);
    assert_int_equal(j.parallel.workers, 2);
    assert_true(j.parallel.sp);
    assert_int_equal(j.parallel.schedule, PIPE_1F1B);
    assert_int_equal(j.parallel.recompute, RECOMPUTE_NONE);
    assert_string_equal(j.checkpoint.dir, "checkpoints/first-job");
    assert_int_equal(j.checkpoint.every, 100);
    assert_int_equal(j.checkpoint.keep_last, 3);
    assert_int_equal(j.run.orphan_seconds, 60);
    assert_int_equal(j.run.grace_seconds, 120);
    assert_int_equal(j.run.n_env, 0);
    assert_string_equal(j.run.workdir, ".");
    job_fini(&j);
}

TEST(defaults)
{
    static const char text[] = "name: x\nmodel: {dim: 8, layers: 1, heads: 2}\ndata: {train: [a]}\ntrain: {steps: 3}\n";
    struct job_spec j;
    struct why why = {0};
    assert_ok(job_parse("job.yaml", text, strlen(text), NULL, 0, &j, &why));
    assert_int_equal(j.model.arch, ARCH_LLAMA);
    assert_int_equal(j.model.kv_heads, 0);
    assert_true(j.model.norm_eps == 1e-5);
    assert_true(j.model.rope_theta == 10000);
    assert_false(j.model.tied);
    assert_true(j.train.beta1 == 0.9);
    assert_true(j.train.beta2 == 0.95);
    assert_true(j.train.eps == 1e-8);
    assert_true(j.train.min_lr_ratio == 0.1);
    assert_string_equal(j.checkpoint.dir, "checkpoints/x");
    assert_string_equal(j.checkpoint.resume_from, "");
    assert_string_equal(j.data.train_hash, "");
    assert_int_equal(j.run.device, DEVICE_CPU);
    assert_int_equal(j.parallel.workers, 1);
    job_fini(&j);
}

TEST(defaults_that_follow_other_keys)
{
    struct job_spec j;
    static const char proof[] = "name: x\nmodel: {arch: gpt2, dim: 8, layers: 1, heads: 2}\ndata: {train: [a]}\n"
                                "train: {steps: 3, numerics: proof}\n";
    struct why why = {0};
    assert_ok(job_parse("job.yaml", proof, strlen(proof), NULL, 0, &j, &why));
    assert_int_equal(j.train.dtype, DT_F64);
    assert_true(j.model.tied);
    job_fini(&j);
}

TEST(sets)
{
    struct job_spec j;
    JOB(&j, "train.lr=1e-4", "data.train=[a.txt, b.txt]", "run.env={A: 1, B: 'x=y'}", "run.env.B=z", "run.env.C=c d",
        "train.lr=2e-4", "model={dim: 64, heads: 4}", "train.seed=18446744073709551615", "name='2024'",
        "checkpoint.dir=''");
    assert_true(j.train.lr == 2e-4);
    assert_int_equal(j.data.n_train, 2);
    assert_string_equal(j.data.train[1], "b.txt");
    assert_int_equal(j.run.n_env, 3);
    assert_string_equal(j.run.env[0], "A=1");
    assert_string_equal(j.run.env[1], "B=z");
    assert_string_equal(j.run.env[2], "C=c d");
    assert_int_equal(j.model.dim, 64);
    assert_int_equal(j.model.layers, 4);
    assert_true(j.train.seed == UINT64_MAX);
    assert_string_equal(j.name, "2024");
    assert_string_equal(j.checkpoint.dir, "checkpoints/2024");
    job_fini(&j);
}

TEST(an_entry_is_found_by_its_whole_name)
{
    struct job_spec j;
    JOB(&j, "run.env={AB: 1}", "run.env.A=2", "run.env.ABC=3", "run.env.AB=4");
    assert_int_equal(j.run.n_env, 3);
    assert_string_equal(j.run.env[0], "AB=4");
    assert_string_equal(j.run.env[1], "A=2");
    assert_string_equal(j.run.env[2], "ABC=3");
    job_fini(&j);
}

static void print(const struct job_spec *j, struct buf *ret)
{
    ret->len = 0;
    assert_ok(job_print(j, ret));
}

/* Two specs are equal field by field if they print the same text. */
static void assert_round_trip(const struct job_spec *j)
{
    struct buf first = {0}, second = {0};
    struct job_spec back;
    struct why why = {0};
    print(j, &first);
    if (job_parse("printed", (const char *)first.data, first.len, NULL, 0, &back, &why))
        fail_msg("%s in\n%.*s", why.text, (int)first.len, (const char *)first.data);
    print(&back, &second);
    if (first.len != second.len || memcmp(first.data, second.data, first.len) != 0)
        fail_msg("printed\n%.*s\nthen\n%.*s", (int)first.len, (const char *)first.data, (int)second.len,
                 (const char *)second.data);
    assert_memory_equal(&j->train.lr, &back.train.lr, sizeof(double));
    assert_memory_equal(&j->train.eps, &back.train.eps, sizeof(double));
    assert_int_equal(j->data.n_train, back.data.n_train);
    for (int i = 0; i < j->data.n_train; i++)
        assert_string_equal(j->data.train[i], back.data.train[i]);
    assert_int_equal(j->run.n_env, back.run.n_env);
    for (int i = 0; i < j->run.n_env; i++)
        assert_string_equal(j->run.env[i], back.run.env[i]);
    assert_string_equal(j->run.workdir, back.run.workdir);
    buf_fini(&first);
    buf_fini(&second);
    job_fini(&back);
}

TEST(printing_reads_back)
{
    struct job_spec j;
    JOB(&j, "train.lr=0.1", "train.eps=1.2345678901234567e-8", "data.valid=[v]", "train.numerics=canonical",
        "train.schedule=linear", "run.env={A: '', B: 'x=y z'}");
    assert_round_trip(&j);
    job_fini(&j);
}

TEST(printing_reads_back_any_text)
{
    static const char *const texts[] = {
        "plain",
        " leading and trailing ",
        "a\"b\\c/d'e",
        "tab\there\nand a line\r\n",
        "\x01\x1f\x7f",
        "# no comment: {really} [no] & * ! | > % @ `",
        "~",
        "null",
        "true",
        "- a",
        "a: b",
        "a \xe2\x80\xa8 b \xe2\x80\xa9 c \xc2\x85 d",
        "\xc3\xa4\xe2\x82\xac\xf0\x9f\x98\x80",
        "\xc2\x85\xc2\xa0\xe2\x80\xa8\xe2\x80\xa9\xef\xbb\xbf\xef\xbf\xbe\xef\xbf\xbf\xf0\x9f\xbf\xbe",
    };
    struct job_spec j;
    job_make(&j, 0, NULL);
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        free(j.data.train[0]);
        free(j.run.workdir);
        j.data.train[0] = strdup(texts[i]);
        j.run.workdir = strdup(texts[i]);
        assert_round_trip(&j);
    }
    job_fini(&j);
}

TEST(printing_rejects_strings_that_are_not_utf8)
{
    static const char *const texts[] = {"\xff", "\xc0\x80", "\xed\xa0\x80", "\xf4\x90\x80\x80", "\xe2\x82"};
    struct buf out = {0};
    struct job_spec j;
    job_make(&j, 0, NULL);
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        free(j.run.workdir);
        j.run.workdir = strdup(texts[i]);
        assert_err(ERR_INVALID, job_print(&j, &out));
    }
    buf_fini(&out);
    job_fini(&j);
}

TEST(long_lists_fit)
{
    struct job_spec j;
    job_make(&j, 0, NULL);
    free(j.data.train[0]);
    free(j.data.train);
    j.data.n_train = 20000;
    j.data.train = calloc(20000, sizeof(char *));
    for (int i = 0; i < j.data.n_train; i++)
        assert_true(asprintf(&j.data.train[i], "/some/where/with/a/rather/long/name/part-%05d.txt", i) > 0);
    assert_round_trip(&j);
    job_fini(&j);
}

TEST(paths_become_absolute)
{
    struct job_spec j;
    struct why why = {0};
    JOB(&j, "checkpoint.dir=./ckpt", "data.cache=/abs/cache");
    assert_ok(job_paths_resolve(&j, "/home/me/jobs", &why));
    assert_string_equal(j.run.workdir, "/home/me/jobs");
    assert_string_equal(j.checkpoint.dir, "/home/me/jobs/./ckpt");
    assert_string_equal(j.data.cache, "/abs/cache");
    assert_string_equal(j.checkpoint.resume_from, "");
    assert_string_equal(j.run.algorithms, "");
    job_fini(&j);
    JOB(&j, "run.algorithms=../algorithms");
    assert_ok(job_paths_resolve(&j, "/home/me/jobs", &why));
    assert_string_equal(j.run.algorithms, "/home/me/jobs/../algorithms");
    job_fini(&j);
    JOB(&j, "run.algorithms=none"); /* which is no path */
    assert_ok(job_paths_resolve(&j, "/home/me/jobs", &why));
    assert_string_equal(j.run.algorithms, JOB_NO_ALGORITHMS);
    assert_err(ERR_INVALID, job_paths_resolve(&j, "relative", &why));
    job_fini(&j);
}

static void check_lr(const struct job_train *t, int64_t step, double expected)
{
    double found = job_lr(t, step);
    if (!(fabs(found - expected) <= 1e-15))
        fail_msg("step %d: %.17g, expected %.17g", (int)step, found, expected);
}

TEST(learning_rate)
{
    struct job_train t = {.steps = 110, .warmup = 10, .lr = 2e-3, .min_lr_ratio = 0.25, .schedule = LR_COSINE};
    for (int64_t s = 1; s <= 10; s++)
        check_lr(&t, s, 2e-4 * (double)s);
    for (int64_t s = 11; s <= 110; s++)
        check_lr(&t, s, 5e-4 + 1.5e-3 * pow(cos(M_PI * (double)(s - 10) / 200), 2));
    check_lr(&t, 110, 5e-4);
    check_lr(&t, 1000, 5e-4);
    t.schedule = LR_LINEAR;
    for (int64_t s = 10; s <= 110; s++)
        check_lr(&t, s, 2e-3 - 1.5e-3 * (double)(s - 10) / 100);
    check_lr(&t, 111, 5e-4);
    t.schedule = LR_CONSTANT;
    check_lr(&t, 5, 1e-3);
    check_lr(&t, 10, 2e-3);
    check_lr(&t, 110, 2e-3);
    t.schedule = LR_LINEAR;
    t.warmup = 0;
    check_lr(&t, 55, 2e-3 - 1.5e-3 / 2);
    t.warmup = t.steps;
    check_lr(&t, 110, 2e-3);
    check_lr(&t, 111, 5e-4);
}

TEST(learning_rate_that_is_stable_then_decays)
{
    struct job_train t = {.steps = 100, .warmup = 10, .decay = 20, .lr = 2e-3, .min_lr_ratio = 0.5, .schedule = LR_WSD};
    check_lr(&t, 5, 1e-3);
    for (int64_t s = 10; s <= 80; s++)
        check_lr(&t, s, 2e-3);
    for (int64_t s = 81; s <= 100; s++)
        check_lr(&t, s, 2e-3 - 1e-3 * (double)(s - 80) / 20);
    check_lr(&t, 101, 1e-3);
    t.decay = 0;
    check_lr(&t, 100, 2e-3);
    check_lr(&t, 101, 2e-3);
    t.decay = 90;
    check_lr(&t, 10, 2e-3);
    check_lr(&t, 55, 1.5e-3);
}

static void check_example(const char *name)
{
    char path[PATH_MAX];
    struct buf text = {0};
    struct job_spec j;
    struct why why = {0};
    const char *source = getenv("DTD_SOURCE");
    if (!source)
        TEST_SKIP("DTD_SOURCE is not set; ctest sets it");
    snprintf(path, sizeof(path), "%s/deploy/examples/%s", source, name);
    assert_ok(file_read(path, 1 << 20, &text));
    if (job_parse(path, (const char *)text.data, text.len, NULL, 0, &j, &why))
        fail_msg("%s", why.text);
    assert_round_trip(&j);
    job_fini(&j);
    buf_fini(&text);
}

TEST(first_job_parses)
{
    check_example("first-job.yaml");
}

TEST(gpt2_tiny_parses)
{
    check_example("gpt2-tiny.yaml");
}

/* Rows of a section are adjacent, in the order of the sections. */
TEST(rows_of_a_section_stand_together)
{
    int section = -1;
    for (int i = 0; i < job_schema.n_rows; i++) {
        const char *key = job_schema.rows[i].key, *point = strchr(key, '.');
        if (!point)
            continue;
        while (section < 0 || strncmp(job_schema.sections[section].name, key, (size_t)(point - key)) != 0) {
            section++;
            assert_true(section < job_schema.n_sections);
        }
    }
}

/* Suffixes where they are clear, and other programs' spellings of a type. */
TEST(short_forms)
{
    struct job_spec j;
    JOB(&j, "train.steps=2k", "train.warmup=1.5k", "checkpoint.every=1M", "run.max_seconds=1.5h", "run.hang_seconds=2m",
        "run.orphan_seconds=90s");
    assert_true(j.train.steps == 2000 && j.train.warmup == 1500 && j.checkpoint.every == 1000000);
    assert_true(j.run.max_seconds == 5400 && j.run.hang_seconds == 120 && j.run.orphan_seconds == 90);
    job_fini(&j);
    JOB(&j, "run.max_seconds=2d", "train.dtype=fp32");
    assert_true(j.run.max_seconds == 172800 && j.train.dtype == DT_F32);
    job_fini(&j);
    JOB(&j, "run.device=cuda", "train.dtype=bf16");
    assert_int_equal(j.train.dtype, DT_BF16);
    job_fini(&j);
}

/* parallel.fsdp alone means what PyTorch's FSDP does; an explicit stage stays. */
TEST(fsdp_shards_everything_unless_told_otherwise)
{
    static const char text[] = "name: x\nmodel: {dim: 8, layers: 1, heads: 2}\ndata: {train: [a]}\ntrain: {steps: 1}\n"
                               "parallel: {workers: 2, fsdp: 2%s}\n";
    static const struct {
        const char *more;
        int64_t zero;
    } cases[] = {{"", 3}, {", zero: 0", 0}, {", zero: 1", 1}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        char file[400];
        struct job_spec j;
        struct why why = {0};
        int n = snprintf(file, sizeof(file), text, cases[i].more);
        if (job_parse("job.yaml", file, (size_t)n, NULL, 0, &j, &why))
            fail_msg("%s", why.text);
        assert_int_equal(j.parallel.zero, cases[i].zero);
        job_fini(&j);
    }
}

#define AUTO_HEAD                                                                                         \
    "name: x\nmodel: {dim: 8, layers: 2, heads: 2}\ndata: {train: [a]}\ntrain: {steps: 1, global_batch: " \
    "8%s}\nparallel: %s\n"

static void auto_make(const char *train, const char *parallel, int n_sets, const char *const *sets,
                      struct job_spec *ret)
{
    char file[600];
    struct why why = {0};
    const int n = snprintf(file, sizeof(file), AUTO_HEAD, train, parallel);
    if (job_parse("job.yaml", file, (size_t)n, sets, n_sets, ret, &why))
        fail_msg("%s", why.text);
}

static void expect_fixed(const struct job_spec *j, const char *names)
{
    char text[256] = "";
    for (int i = 0; i < j->parallel.n_fixed; i++)
        snprintf(text + strlen(text), sizeof(text) - strlen(text), "%s%s", i ? " " : "", j->parallel.fixed[i]);
    assert_string_equal(text, names);
}

/* The keys that a file sets keep their values, whatever they are. */
TEST(automatic_layouts_keep_the_keys_of_the_file)
{
    static const struct {
        const char *train, *parallel, *fixed;
        bool all;
    } cases[] = {{"", "auto", "", true},
                 {", micro_batch: 2", "auto", "micro_batch", true},
                 {"", "{auto: true}", "", true},
                 {"", "{auto: true, workers: 4}", "", false},
                 {"", "{auto: true, workers: 4, tp: 1, zero: 0}", "tp zero", false},
                 {"", "{auto: true, workers: 4, fsdp: 2}", "fsdp", false},
                 {"", "{auto: true, workers: 4, tp: 2, fixed: []}", "", false},
                 {"", "{auto: true, workers: 4, zero: 1}", "zero", false}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct job_spec j, again;
        struct buf text = {0};
        struct why why = {0};
        auto_make(cases[i].train, cases[i].parallel, 0, NULL, &j);
        assert_true(j.parallel.automatic);
        expect_fixed(&j, cases[i].fixed);
        assert_int_equal(j.parallel.all_workers, cases[i].all);
        /* What dtd prints has all keys, and still the same ones are fixed. */
        assert_int_equal(job_print(&j, &text), OK);
        if (job_parse("printed", (const char *)text.data, text.len, NULL, 0, &again, &why))
            fail_msg("%s", why.text);
        expect_fixed(&again, cases[i].fixed);
        assert_false(again.parallel.all_workers);
        buf_fini(&text);
        job_fini(&again);
        job_fini(&j);
    }
}

/* A --set fixes its key, and the rest of the layout that the file had is forgotten. */
TEST(a_set_fixes_a_key_of_an_automatic_layout)
{
    static const char printed[] = "{auto: true, fixed: [], workers: 4, fsdp: 4, zero: 3}";
    static const char *const sets[] = {"parallel.tp=2", "parallel.workers=6"};
    struct job_spec j;
    auto_make("", printed, 1, &sets[1], &j); /* 6 is no multiple of 4, which the planner chose for 4 workers */
    expect_fixed(&j, "");
    assert_int_equal(j.parallel.fsdp, 4);
    assert_int_equal(job_replica_workers(&j), 1);
    job_fini(&j);
    auto_make("", printed, 2, sets, &j);
    expect_fixed(&j, "tp");
    assert_int_equal(j.parallel.fsdp, 1);
    assert_int_equal(j.parallel.zero, 0);
    assert_int_equal(job_replica_workers(&j), 2);
    job_fini(&j);
}
