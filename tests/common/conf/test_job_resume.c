/* Keys that a resumed job may change: each key is compared with a list written by hand. */
#include "common/conf/schema.h"
#include "tests/common/conf/job_text.h"

/* The checkpoint's job has trained on these. */
#define TRAINED "data.train_hash=abcdef0123456789abcdef0123456789abcdef0123456789abcdef0123456789"

static const struct {
    const char *set;
    bool may;
} cases[] = {
    {"name=other", true},
    {"model.arch=gpt2", false},
    {"model.dim=512", false},
    {"model.layers=5", false},
    {"model.heads=4", false},
    {"model.kv_heads=2", false},
    {"model.ffn=1024", false},
    {"model.vocab=300", false},
    {"model.norm_eps=1e-6", false},
    {"model.rope_theta=500000", false},
    {"model.tied=true", false},
    {"data.train=[moved.txt]", true},
    {"data.valid=[v.txt]", true},
    {"data.test=[v.txt]", true},
    {"data.tokenizer=words", false},
    {"data.cache=/tmp", true},
    {"data.valid_hash=0123456789012345678901234567890123456789012345678901234567890123", true},
    {"train.steps=400", true},
    {"train.seq=128", false},
    {"train.global_batch=8", false},
    {"train.micro_batch=2", true},
    {"train.lr=1e-3", true},
    {"train.min_lr_ratio=0", true},
    {"train.schedule=linear", true},
    {"train.warmup=0", true},
    {"train.dropout=0.1", true},
    {"train.nan=skip", true},
    {"train.nan_limit=3", true},
    {"train.verify_every=1", true},
    {"train.weight_decay=0", true},
    {"train.clip=0", true},
    {"train.beta1=0.8", true},
    {"train.beta2=0.999", true},
    {"train.eps=1e-6", true},
    {"train.dtype=float64", false},
    {"train.numerics=canonical", true},
    {"train.eval_every=0", true},
    {"train.eval_batches=2", true},
    {"train.seed=2", false},
    {"parallel.workers=3", true},
    {"parallel.sp=false", true},
    {"parallel={workers: 2, tp: 2, async_tp: true}", true},
    {"parallel.schedule=gpipe", true},
    {"checkpoint.dir=elsewhere", true},
    {"checkpoint.every=10", true},
    {"checkpoint.keep_last=1", true},
    {"checkpoint.keep_best=0", true},
    {"checkpoint.resume_from=/x/step-3", true},
    {"checkpoint.optimizer=fresh", true},
    {"checkpoint.map=[\"model.=\"]", true},
    {"data.raw=true", true},
    {"run.device=cuda", true},
    {"run.workers_per_gpu=4", true},
    {"run.comm=shm", true},
    {"run.threads=1", true},
    {"run.comm_thread=off", true},
    {"run.restarts=0", true},
    {"run.orphan_seconds=5", true},
    {"run.max_seconds=100", true},
    {"run.grace_seconds=600", true},
    {"run.priority=1", true},
    {"run.env={A: b}", true},
    {"run.workdir=/tmp", true},
};

TEST(each_key)
{
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct job_spec before, after;
        struct why why = {0};
        /* gpt2 has no key-value heads of its own. */
        JOB(&before, "model.kv_heads=0", TRAINED);
        JOB(&after, "model.kv_heads=0", TRAINED, cases[i].set,
            strstr(cases[i].set, "gpt2")       ? "model.tied=true"
            : strstr(cases[i].set, "async_tp") ? "run.comm_thread=on"
                                               : "name=x");
        err_t err = job_resume_check(&before, &after, &why);
        if (err != (cases[i].may ? OK : ERR_INVALID))
            fail_msg("%s: %s: %s", cases[i].set, err_name(err), why.text);
        size_t len = strcspn(cases[i].set, "=");
        if (err && (strncmp(why.text, cases[i].set, len) != 0 || why.text[len] != ':'))
            fail_msg("%s: the message names another key: %s", cases[i].set, why.text);
        job_fini(&before);
        job_fini(&after);
    }
}

/* Both types store float32 parameters, so a checkpoint can move between GPU and CPU workers. */
TEST(bfloat16_and_float32_resume_from_each_other)
{
    static const char *const sets[][2] = {{"run.device=cpu", "train.dtype=float32"},
                                          {"run.device=cuda", "train.dtype=bfloat16"}};
    struct job_spec jobs[2], proof;
    struct why why = {0};
    for (int i = 0; i < 2; i++)
        JOB(&jobs[i], sets[i][0], sets[i][1]);
    JOB(&proof, "train={numerics: proof, dtype: float64}");
    assert_ok(job_resume_check(&jobs[0], &jobs[1], &why));
    assert_ok(job_resume_check(&jobs[1], &jobs[0], &why));
    assert_err(ERR_INVALID, job_resume_check(&jobs[1], &proof, &why));
    assert_string_equal(
        why.text, "train.dtype: the checkpoint's job has bfloat16, this one float64; a job cannot resume from float32 "
                  "parameters in the other type: leave the key out, or start a new job");
    assert_err(ERR_INVALID, job_resume_check(&proof, &jobs[0], &why));
    for (int i = 0; i < 2; i++)
        job_fini(&jobs[i]);
    job_fini(&proof);
}

TEST(the_message_has_both_values)
{
    struct job_spec before, after;
    struct why why = {0};
    JOB(&before, "train.seq=256", TRAINED);
    JOB(&after, "train.seq=128", TRAINED);
    assert_err(ERR_INVALID, job_resume_check(&before, &after, &why));
    assert_string_equal(why.text,
                        "train.seq: the checkpoint's job has 256, this one 128; a resumed job cannot change this "
                        "key: leave the key out, or start a new job");
    job_fini(&before);
    job_fini(&after);
}

TEST(other_training_data)
{
    struct job_spec before, after;
    struct why why = {0};
    JOB(&before, TRAINED);
    JOB(&after, "data.train_hash=0123456789012345678901234567890123456789012345678901234567890123");
    assert_err(ERR_INVALID, job_resume_check(&before, &after, &why));
    assert_non_null(strstr(why.text, "data.train: the checkpoint was trained on other files"));
    job_fini(&before);
    job_fini(&after);
}

#define HASH_A "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
#define HASH_B "bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb"
#define MIXED "data.train=[a, b]", TRAINED, "data.more_hashes=[" HASH_A "]", "data.weights=[7, 3]", "data.passes=[0, 2]"

/* What makes the order of the data: a resume keeps it, unless data.order is new. */
TEST(other_order_of_the_data)
{
    static const struct {
        const char *set, *key;
    } rows[] = {
        {"data.weights=[7, 2]", "data.weights: "},
        {"data.passes=[0, 3]", "data.passes: "},
        {"data.passes=[]", "data.passes: "},
        {"data.shuffle=blocks", "data.shuffle: "},
        {"data.stride=1", "data.stride: "},
        {"data.documents=separate", "data.documents: "},
        {"data.more_hashes=[" HASH_B "]", "data.train: "},
        {"data.train_hash=" HASH_B, "data.train: "},
    };
    struct why why = {0};
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct job_spec before, same, after, told;
        JOB(&before, MIXED);
        JOB(&same, MIXED);
        JOB(&after, MIXED, rows[i].set);
        JOB(&told, MIXED, rows[i].set, "data.order=new");
        assert_ok(job_resume_check(&before, &same, &why));
        assert_err(ERR_INVALID, job_resume_check(&before, &after, &why));
        assert_ptr_equal(strstr(why.text, rows[i].key), why.text);
        assert_non_null(strstr(why.text, "--set data.order=new"));
        if (job_resume_check(&before, &told, &why))
            fail_msg("%s: %s", rows[i].set, why.text);
        job_fini(&before);
        job_fini(&same);
        job_fini(&after);
        job_fini(&told);
    }
}

/* A new order may have another number of sources. */
TEST(a_new_order_with_one_source_more)
{
    struct job_spec before, after;
    struct why why = {0};
    JOB(&before, MIXED);
    JOB(&after, "data.train=[a, b, c]", TRAINED, "data.more_hashes=[" HASH_A ", " HASH_B "]", "data.weights=[7, 3, 1]",
        "data.order=new");
    if (job_resume_check(&before, &after, &why))
        fail_msg("%s", why.text);
    job_fini(&before);
    job_fini(&after);
}

/* An imported model has a job file with placeholders: what only training fixes may be chosen, what the model is may
 * not. */
TEST(a_model_that_was_never_trained)
{
    struct job_spec before, after, other;
    struct why why = {0};
    JOB(&before, "train.seq=256");
    JOB(&after, "train.seq=128", "train.global_batch=8", "train.seed=9", TRAINED);
    JOB(&other, "train.seq=128", TRAINED, "model.rope_theta=5");
    assert_ok(job_resume_check(&before, &after, &why));
    assert_err(ERR_INVALID, job_resume_check(&before, &other, &why));
    assert_non_null(strstr(why.text, "model.rope_theta: "));
    job_fini(&before);
    job_fini(&after);
    job_fini(&other);
}
