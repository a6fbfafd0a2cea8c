/* Resume and the other commands that read checkpoints: the real dtctl with a real checkpoint of a small model, which
 * the test makes. */
#include "common/ckpt/ckpt.h"
#include "common/conf/job.h"
#include "common/plan/graph.h"
#include "common/plan/models/build.h"
#include "tests/client/fake_control.h"
#include "tests/client/run.h"
#include "tests/lib/test.h"

#include <limits.h>
#include <math.h>

static char spec[65536]; /* the spec that dtctl submits for job.yaml */
static char root[PATH_MAX];

static struct fake_control *start(const struct fake_script *script)
{
    char dir[PATH_MAX];
    snprintf(dir, sizeof(dir), "%s/dtd", test_tmpdir());
    return fake_start(dir, script);
}

static void stop(struct fake_control *f)
{
    fake_stop(f);
    fake_free(f);
}

static void job_write(void)
{
    char text[2048] = "";
    for (int i = 0; i < 40; i++)
        strcat(text, "a quick brown fox jumps over it\n");
    run_write("text.txt", text);
    run_write("job.yaml", "name: small\nmodel: {dim: 32, layers: 2, heads: 4, ffn: 64}\ndata: {train: [text.txt]}\n"
                          "train: {steps: 10, seq: 16, global_batch: 4, micro_batch: 2, lr: 1.0e-3}\n"
                          "parallel: {workers: 2}\ncheckpoint: {dir: ckpt}\n");
}

/* Stores the spec that a submit of job.yaml sends. */
static void spec_get(void)
{
    const struct fake_script script = {.steps = 20, .end_state = "done"};
    struct run_result r;
    job_write();
    struct fake_control *f = start(&script);
    run_expect(&r, 0, "dtctl submit job.yaml --detach");
    snprintf(spec, sizeof(spec), "%s", fake_spec(f));
    stop(f);
}

/* A checkpoint part with all parameters and the step, which are all that the client reads. */
static void part_make(const struct graph *g, const char *dir, struct ckpt_part **ret)
{
    static const float data[1 << 16];
    struct ckpt_piece *pieces = calloc((size_t)g->n_tensors, sizeof(*pieces));
    const struct ckpt_scalar step = {.fqn = (char *)"train_state.step", .kind = CKPT_INT, .i = 10};
    int n = 0;
    for (int i = 0; i < g->n_tensors; i++) {
        const struct graph_tensor *t = &g->tensors[i];
        if (t->kind != GT_PARAM)
            continue;
        struct ckpt_piece *p = &pieces[n++];
        *p = (struct ckpt_piece){
            .fqn = t->name, .dtype = DT_F32, .ndim = t->ndim, .box = {.ndim = t->ndim}, .data = data};
        for (int d = 0; d < t->ndim; d++)
            p->shape[d] = p->box.size[d] = t->dim[d].factor;
        assert_true(box_elements(&p->box) <= (int64_t)(sizeof(data) / sizeof(data[0])));
    }
    assert_ok(ckpt_part_write(dir, 0, pieces, n, &step, 1, ret, NULL));
    free(pieces);
}

/* Makes ckpt/step-<step> in the test's folder. */
static void checkpoint_make(int64_t step)
{
    struct job_spec job;
    struct graph g;
    struct ckpt_part *part;
    struct why why;
    char dir[PATH_MAX], command[PATH_MAX + 32];
    assert_ok(job_parse("spec", spec, strlen(spec), NULL, 0, &job, &why));
    assert_ok(graph_build(&job.model, job.train.seq, &g, &why));
    snprintf(root, sizeof(root), "%s/ckpt", test_tmpdir());
    assert_ok(ckpt_partial_dir(root, step, 1, dir, sizeof(dir)));
    snprintf(command, sizeof(command), "mkdir -p '%s'", dir);
    assert_int_equal(system(command), 0);
    part_make(&g, dir, &part);
    const struct ckpt_commit commit = {.root = root, .step = step, .epoch = 1, .job_yaml = spec, .loss = 2.5};
    assert_ok(ckpt_commit(&commit, &part, 1, &why));
    ckpt_part_free(part);
    graph_fini(&g);
    job_fini(&job);
}

static void prepare(void)
{
    spec_get();
    checkpoint_make(5);
    checkpoint_make(10);
}

TEST(ls_inspect_verify)
{
    struct run_result r;
    prepare();
    run_expect(&r, 0, "dtctl ckpt ls ckpt");
    expect_text(r.out, "STEP  EPOCH    LOSS");
    expect_text(r.out, "  10      1  2.5000");
    run_expect(&r, 0, "dtctl ckpt inspect ckpt");
    expect_text(r.out, "ckpt/step-10  step 10  epoch 1  loss 2.5");
    expect_text(r.out, "layers.1.attention.wq.weight");
    expect_text(r.out, "float32  [256, 32]");
    expect_text(r.out, "train_state.step = 10");
    run_expect(&r, 0, "dtctl ckpt inspect ckpt/step-5 -o json");
    expect_text(r.out, "\"step\": 5");
    expect_text(r.out, "\"sha256\": \"");
    run_expect(&r, 0, "dtctl ckpt inspect ckpt/step-5 --no-hash -o json");
    assert_null(strstr(r.out, "sha256"));
    run_expect(&r, 0, "dtctl ckpt verify ckpt/step-10");
    expect_text(r.out, "step-10 is complete");
}

TEST(a_flipped_bit_is_named)
{
    struct run_result r;
    prepare();
    run_expect(&r, 0,
               "f=ckpt/step-10/__0_0.distcp; b=$(od -An -tu1 -j 5000 -N 1 $f | tr -d ' '); "
               "printf \"\\\\$(printf %03o $((b ^ 4)))\" | dd of=$f bs=1 seek=5000 conv=notrunc status=none");
    run_expect(&r, 1, "dtctl ckpt verify ckpt");
    expect_text(r.err, "__0_0.distcp");
    expect_text(r.err, "extent");
    run_expect(&r, 1, "dtctl ckpt verify ckpt -o json");
    expect_text(r.out, "\"whole\": false");
    run_expect(&r, 0, "dtctl ckpt verify ckpt/step-5");
}

TEST(a_fresh_job_does_not_mix_with_checkpoints)
{
    struct run_result r;
    prepare();
    run_expect(&r, 2, "dtctl submit job.yaml --dry-run");
    expect_text(r.err, "holds checkpoints already, the newest is step-10");
    expect_text(r.err, "dtctl resume ");
    run_expect(&r, 2, "dtctl submit job.yaml --dry-run --set model.layers=3");
    expect_text(r.err, "holds checkpoints of another model");
    expect_text(r.err, "layers.2.");
    expect_text(r.err, "/ckpt");
    run_expect(&r, 0, "dtctl submit job.yaml --dry-run --set checkpoint.dir=elsewhere");
}

TEST(a_checkpoint_of_another_model_is_refused)
{
    static const struct {
        const char *sets, *message;
    } table[] = {
        {"--set model.dim=64", "model.dim: the checkpoint's job has 32, this one 64"},
        {"--set model.layers=3", "model.layers: the checkpoint's job has 2"},
        {"--set model.arch=gpt2", "model.arch: the checkpoint's job has llama"},
        /* no tensor's shape depends on these */
        {"--set model.heads=2", "model.heads: the checkpoint's job has 4"},
        {"--set model.rope_theta=500000", "model.rope_theta: the checkpoint's job has 10000"},
        {"--set model.norm_eps=0.1", "model.norm_eps: "},
        {"--set train.seed=77", "train.seed: "},
        {"--set train.steps=9", "train.steps: 9, but "},
        {"--set train.steps=10", "is at step 10 already: there is nothing to do"},
    };
    struct run_result r;
    char line[512];
    prepare();
    for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
        snprintf(line, sizeof(line),
                 "dtctl submit job.yaml --dry-run --set train.steps=20 --set checkpoint.dir=new --set "
                 "checkpoint.resume_from=ckpt %s",
                 table[i].sets);
        run_expect(&r, 2, line);
        expect_text(r.err, table[i].message);
    }
    run_expect(&r, 0,
               "dtctl submit job.yaml --dry-run --set train.steps=20 --set checkpoint.dir=new --set "
               "checkpoint.resume_from=ckpt");
    expect_text(r.err, "there is no optimizer state; its moments and its count of updates start at zero");
    expect_text(r.err, "note: the learning rate goes from 0.0001 to ");
    run_expect(
        &r, 2,
        "dtctl submit job.yaml --dry-run --optimizer=require --set train.steps=20 --set checkpoint.dir=new --set "
        "checkpoint.resume_from=ckpt");
    expect_text(r.err, "the optimizer state is incomplete: optimizer.state.tok_embeddings.weight.exp_avg is missing");
    run_expect(
        &r, 0,
        "dtctl submit job.yaml --dry-run --set train.steps=20 --set checkpoint.resume_from=ckpt"); /* same folder */
    /* Other names, as a wrapper gives them. */
    run_expect(&r, 2,
               "dtctl submit job.yaml --dry-run --set train.steps=20 --set checkpoint.dir=new --set "
               "checkpoint.resume_from=ckpt --map tok_=model.tok_");
    expect_text(r.err, "its tensors have the prefix \"model.\" (model.tok_embeddings.weight)");
    expect_text(r.err, "--map 'model.='");
    run_expect(&r, 0,
               "dtctl submit job.yaml --dry-run --set train.steps=20 --set checkpoint.dir=new --set "
               "checkpoint.resume_from=ckpt --map norm=norm --map output=output");
}

TEST(resume_of_a_folder)
{
    const struct fake_script script = {.steps = 20, .end_state = "done"};
    struct run_result r;
    char want[PATH_MAX + 64];
    prepare();
    struct fake_control *f = start(&script);
    run_expect(&r, 0, "dtctl resume ckpt --workers 3 --more 40 --detach -o json");
    expect_text(fake_spec(f), "steps: 50");
    expect_text(fake_spec(f), "workers: 3");
    snprintf(want, sizeof(want), "resume_from: \"%s/step-10\"", root);
    expect_text(fake_spec(f), want);
    assert_string_equal(fake_parent(f), "");
    run_expect(&r, 0, "dtctl resume ckpt/step-5 --detach --set train.lr=0.5 --set checkpoint.dir=branch");
    expect_text(r.out, "step 5 to 10 on 2 workers");
    expect_text(fake_spec(f), "lr: 0.5");
    expect_text(fake_spec(f), "/branch\"\n");
    run_expect(&r, 0, "dtctl resume ckpt --step 5 --detach --steps 7");
    expect_text(r.out, "step 5 to 7");
    stop(f);
}

/* A mixture: its sources are prepared one by one, the plan names the passes over each, and a resume keeps the order of
 * the data unless data.order is new. */
TEST(a_mixture_is_planned_and_resumed)
{
    const struct fake_script script = {.steps = 20, .end_state = "done", .checkpoint_dir = root};
    struct run_result r;
    char line[512], text[4096] = "";
    prepare();
    for (int i = 0; i < 60; i++)
        strcat(text, "other text, which is not the same\n");
    run_write("other.txt", text);
    run_expect(&r, 0, "dtctl plan job.yaml --set 'data.train=[text.txt, other.txt]' --set 'data.weights=[3, 1]'");
    expect_text(r.out, "Source 1   0.38 passes over "); /* 30 of 79 samples of 16 tokens */
    expect_text(r.out, "Source 2   0.08 passes over "); /* 10 of 127 */
    expect_text(r.out, "25.00 % of the training");
    run_expect(&r, 0,
               "dtctl plan job.yaml --set 'data.train=[text.txt, other.txt]' --set 'data.weights=[3, 1]' -o json");
    expect_text(r.out, "\"taken\": 30");
    run_expect(&r, 2,
               "dtctl plan job.yaml --set 'data.train=[text.txt, other.txt]' --set 'data.weights=[3, 1]' --set "
               "'data.passes=[1, 1]' --set train.steps=100");
    expect_text(r.err, "data.passes: the sources give 206 samples, but 100 steps of 4 samples need 400");

    struct fake_control *f = start(&script);
    snprintf(line, sizeof(line),
             "dtctl resume ckpt --more 5 --detach --set 'data.train=[text.txt, other.txt]' --set "
             "'data.weights=[3, 1]'");
    run_expect(&r, 2, line);
    expect_text(r.err, "--set data.order=new");
    strcat(line, " --set data.order=new");
    run_expect(&r, 0, line);
    expect_text(fake_spec(f), "weights: [\"3\", \"1\"]");
    stop(f);
}

TEST(batch_resumes_from_the_newest_step)
{
    static const struct {
        const char *set, *message;
    } refused[] = {
        {"model.dim=64", "model.dim"},
        {"train.seq=8", "train.seq"},
        {"data.train=[other.txt]", "data.train: the checkpoint was trained on other files"},
    };
    const struct fake_script script = {.steps = 20, .end_state = "done", .checkpoint_dir = root};
    struct run_result r;
    char line[512], want[PATH_MAX + 64];
    prepare();
    run_write("other.txt", "other text, other text, other text, other text, other text, other text, other text\n");
    struct fake_control *f = start(&script);
    for (size_t i = 0; i < sizeof(refused) / sizeof(refused[0]); i++) {
        snprintf(line, sizeof(line), "dtctl submit --batch job.yaml --set train.steps=20 --set '%s'", refused[i].set);
        run_expect(&r, 2, line);
        expect_text(r.err, refused[i].message);
    }
    run_expect(&r, 0, "dtctl submit --batch job.yaml");
    expect_text(r.out, "small is done already: step 10 is in ");
    run_expect(&r, 0, "dtctl submit --batch job.yaml -o json");
    expect_text(r.out, "\"state\": \"done\"");
    assert_int_equal(fake_seen(f).submits, 0);

    run_expect(&r, 0, "dtctl submit --batch job.yaml --set train.steps=20");
    snprintf(want, sizeof(want), "resume_from: \"%s/step-10\"", root);
    expect_text(fake_spec(f), want);
    assert_string_equal(fake_parent(f), "7");
    /* The job's own steps are newer than the checkpoint that it first started from. */
    run_expect(&r, 0, "dtctl submit --batch job.yaml --set train.steps=20 --set checkpoint.resume_from=elsewhere");
    expect_text(fake_spec(f), want);
    run_expect(&r, 0, "rm -rf ckpt && dtctl submit --batch job.yaml");
    expect_text(fake_spec(f), "resume_from: \"\"");
    run_expect(&r, 2, "dtctl submit --batch job.yaml --detach");
    stop(f);
}

TEST(resume_of_a_job)
{
    struct run_result r;
    prepare();
    const struct fake_script script = {.steps = 20, .end_state = "canceled", .checkpoint_dir = root, .spec_yaml = spec};
    struct fake_control *f = start(&script);
    run_expect(&r, 0, "dtctl resume 7 --steps 30 --detach");
    expect_text(fake_spec(f), "steps: 30");
    assert_string_equal(fake_parent(f), "7");
    run_expect(&r, 3, "dtctl resume 9");
    run_expect(&r, 0, "dtctl ckpt ls 7");
    expect_text(r.out, "  10      1");
    run_expect(&r, 0, "dtctl resume ckpt --more 1 --detach"); /* the folder's newest job is the parent */
    assert_string_equal(fake_parent(f), "7");
    stop(f);
}

/* A job once used this folder, but the present checkpoints are of another job, so the first one is not the parent. */
TEST(a_folder_that_was_used_before)
{
    struct run_result r;
    prepare();
    char *seed = strstr(spec, "\n  seed: 1\n");
    assert_non_null(seed);
    seed[9] = '5';
    const struct fake_script script = {.steps = 20, .end_state = "done", .checkpoint_dir = root, .spec_yaml = spec};
    struct fake_control *f = start(&script);
    run_expect(&r, 0, "dtctl resume ckpt --more 1 --detach");
    assert_string_equal(fake_parent(f), "");
    run_expect(&r, 0, "dtctl submit --batch job.yaml --set train.steps=20");
    assert_string_equal(fake_parent(f), "");
    stop(f);
}

TEST(resume_of_a_running_job_is_refused)
{
    struct run_result r;
    prepare();
    const struct fake_script script = {.steps = 20, .end_state = "running", .checkpoint_dir = root, .spec_yaml = spec};
    struct fake_control *f = start(&script);
    run_expect(&r, 2, "dtctl resume 7 --more 5");
    expect_text(r.err, "dtctl cancel 7 first");
    run_expect(&r, 2, "dtctl resume ckpt --more 5");
    expect_text(r.err, "writes its checkpoints to");
    stop(f);
}

TEST(resume_refuses_what_a_checkpoint_fixes)
{
    static const struct {
        const char *line, *message;
    } table[] = {
        {"dtctl resume ckpt", "there is nothing to do"},
        {"dtctl resume ckpt --steps 10", "there is nothing to do"},
        {"dtctl resume ckpt --set train.steps=3", "at step 10 already"},
        {"dtctl resume ckpt --more 5 --set model.dim=64", "model.dim"},
        {"dtctl resume ckpt --more 5 --set train.seq=8", "train.seq"},
        {"dtctl resume ckpt --more 5 --set train.lerning_rate=8", "lerning_rate"},
        {"dtctl resume ckpt --more 5 --set parallel.tp=3", "parallel"},
    };
    const struct fake_script script = {.steps = 20, .end_state = "done"};
    struct run_result r;
    prepare();
    struct fake_control *f = start(&script);
    for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
        run_expect(&r, 2, table[i].line);
        expect_text(r.err, table[i].message);
    }
    run_expect(&r, 3, "dtctl resume ckpt --step 7");
    expect_text(r.err, "the newest is step-10");
    run_write("text.txt", "other text, other text, other text, other text, other text, other text, other text\n");
    run_expect(&r, 0, "dtctl resume ckpt --more 5 --detach"); /* the shards still exist */
    run_expect(&r, 2, "rm -rf cache && dtctl resume ckpt --more 5");
    expect_text(r.err, "not those that the checkpoint was trained on");
    run_write("moved.txt", "other text, other text, other text, other text, other text, other text, other text\n");
    run_expect(&r, 2, "dtctl resume ckpt --more 5 --set 'data.train=[moved.txt]'");
    assert_int_equal(fake_seen(f).submits, 1);
    stop(f);
}

/* dtctl finds its worker in its own folder: here a script that prints its arguments. */
TEST(generate_hands_its_line_to_the_worker)
{
    struct run_result r;
    char want[PATH_MAX + 128];
    prepare();
    run_write("dt-worker", "#!/bin/sh\ncase \"$*\" in *--json) cat json ;; *) printf '%s|' "
                           "\"$@\"; echo ;; esac\nexit $(cat code)\n");
    run_write("json", "{\"prompt\":\"hi\",\"text\":\"hi all\"}\n{\"prompt\":\"ho\",\"text\":\"ho\"}\n");
    run_write("code", "0");
    run_expect(&r, 0, "cp \"$DTD_BIN/dtctl\" . && chmod +x dt-worker");
    run_expect(&r, 0, "./dtctl generate ckpt --prompt 'This is' --tokens 7 --temperature 0.5 --top-k 3 --seed 9");
    snprintf(want, sizeof(want),
             "--generate|%s/step-10|--prompt|This is|--tokens|7|--temperature|0.5|--top-k|3|--seed|9|\n", root);
    assert_string_equal(r.out, want);
    run_expect(&r, 0, "printf 'from \\nstdin' | ./dtctl generate ckpt --prompt - --tokens 7");
    expect_text(r.out, "--prompt|from \nstdin|--tokens|7|");
    run_write("prompt.txt", "from a file");
    run_expect(&r, 0, "./dtctl generate ckpt -f prompt.txt");
    expect_text(r.out, "--prompt|from a file|");
    run_expect(&r, 3, "./dtctl generate ckpt -f nowhere.txt");
    run_expect(&r, 2, "./dtctl generate ckpt -f /dev/zero");
    run_expect(&r, 0,
               "./dtctl generate ckpt --top-p 0.9 --min-p 0.1 --repetition-penalty 1.2 --stop a --stop 'b c' "
               "--ignore-eos --prompts many.txt --batch 3");
    expect_text(r.out, "|--prompts|many.txt|--top-p|0.9|--min-p|0.1|--repetition-penalty|1.2|--batch|3|"
                       "--stop|a|--stop|b c|--ignore-eos|\n");
    run_expect(&r, 0, "./dtctl generate ckpt/step-5 -o jsonl --prompts many.txt");
    expect_text(r.out, "\"prompt\": \"hi\", \"text\": \"hi all\", \"checkpoint\": ");
    assert_non_null(strstr(strchr(r.out, '\n'), "\"prompt\": \"ho\""));
    run_expect(&r, 0, "./dtctl generate ckpt/step-5 -o json --prompts many.txt | grep -c '^\\['");
    run_expect(&r, 2, "./dtctl generate ckpt --prompts many.txt --prompt x");
    struct fake_control *f = start(&(struct fake_script){.steps = 20, .end_state = "done", .checkpoint_dir = root});
    run_expect(&r, 0, "./dtctl generate 7 --prompt hi --tokens 1"); /* the newest checkpoint of the job */
    snprintf(want, sizeof(want), "--generate|%s/step-10|--prompt|hi|--tokens|1|\n", root);
    assert_string_equal(r.out, want);
    stop(f);
    run_write("code", "3");
    run_expect(&r, 3, "./dtctl generate ckpt");
    run_expect(&r, 3, "./dtctl generate ckpt -o json");
    assert_string_equal(r.out, "");
}
