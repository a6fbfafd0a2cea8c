/* Every bad input that submit must refuse: exit 2, an error that names the cause, and nothing started. There is no
 * daemon here, so the exit code would be 75 if dtctl tried to start the job. */
#include "tests/client/run.h"
#include "tests/lib/test.h"

static const char job[] = "name: small\n"
                          "model: {arch: llama, dim: 32, layers: 2, heads: 4, kv_heads: 2, ffn: 64}\n"
                          "data: {train: [text.txt], tokenizer: bytes}\n"
                          "train: {steps: 10, seq: 16, global_batch: 4, micro_batch: 2, lr: 1.0e-3}\n"
                          "parallel: {workers: 2}\n"
                          "checkpoint: {dir: ckpt, every: 5}\n";

static void files_write(void)
{
    char text[2048] = "";
    for (int i = 0; i < 40; i++)
        strcat(text, "a quick brown fox jumps over it\n");
    run_write("text.txt", text);
    run_write("job.yaml", job);
}

static void refused(const char *sets, const char *message)
{
    struct run_result r;
    char line[1024];
    snprintf(line, sizeof(line), "dtctl submit job.yaml --dry-run %s", sets);
    run_expect(&r, 2, line);
    expect_text(r.err, "dtctl: ");
    expect_text(r.err, message);
    assert_string_equal(r.out, "");
}

TEST(a_good_job_is_planned)
{
    struct run_result r;
    files_write();
    run_expect(&r, 0, "dtctl submit job.yaml --dry-run");
    expect_text(r.out, "job small can run");
    expect_text(r.out, "nothing was started");
    run_expect(&r, 0, "dtctl submit job.yaml --dry-run -o json --set parallel.workers=1");
    expect_text(r.out, "\"workers\": 1");
    expect_text(r.out, "\"vocab\": 256");
    run_expect(&r, 0, "dtctl plan job.yaml --set train.global_batch=10 --set parallel.workers=3");
    expect_text(r.out, "5 microbatches: ");
    run_expect(&r, 75, "dtctl submit job.yaml");
    expect_text(r.err, "dtctl up");
    run_expect(&r, 0, "test ! -e ckpt && test ! -e dtd");
}

TEST(a_token_never_comes_from_the_command_line)
{
    struct run_result r;
    run_expect(&r, 2, "dtctl cluster join dtd1.AAAA");
    expect_text(r.err, "can be read by every user of this machine");
    run_expect(&r, 2, "dtctl cluster join </dev/null");
    expect_text(r.err, "standard input: no token in the first line");
    run_expect(&r, 2, "printf ' \\t\\n dtd1.AAAA' | dtctl cluster join");
    expect_text(r.err, "standard input: no token in the first line");
    run_expect(&r, 2, "yes | tr -d '\\n' | dtctl cluster join");
    expect_text(r.err, "standard input: the first line is too long for a token");
    run_expect(&r, 1, "dtctl cluster join --token-file absent");
    expect_text(r.err, "absent: No such file or directory");
    run_expect(&r, 75, "printf ' dtd1.AAAA \\r\\n' >token; dtctl cluster join --token-file token");
    run_expect(&r, 75, "dtctl cluster join <token");
}

TEST(a_plan_is_drawn)
{
    struct run_result r;
    files_write();
    run_expect(&r, 0, "dtctl plan job.yaml --set parallel.workers=4 --set parallel.pp=2 --timeline step.svg");
    expect_text(r.out, "a step over pp");
    expect_text(r.out, "bubble");
    expect_text(r.out, "    rank 3 ");
    run_expect(&r, 0, "cat step.svg");
    expect_text(r.out, "<svg xmlns=");
    expect_text(r.out, "small: forecast of a step");
    run_expect(&r, 0, "grep -c '>rank [0-3]</text>' step.svg");
    assert_string_equal(r.out, "4\n");
    run_expect(&r, 0, "grep -c 'forward micro' step.svg");
    run_expect(&r, 0, "tail -1 step.svg");
    assert_string_equal(r.out, "</svg>\n");
    run_expect(&r, 0, "dtctl plan job.yaml -o json --set parallel.workers=2 --set parallel.tp=2");
    expect_text(r.out, "\"bubble\": ");
    expect_text(r.out, "\"tp\": ");
    expect_text(r.out, "\"first\": 0");
    run_expect(&r, 2, "dtctl plan job.yaml --timeline absent/step.svg");
    expect_text(r.err, "absent/step.svg");
}

TEST(a_step_is_explained)
{
    struct run_result r;
    files_write();
    run_expect(&r, 0, "dtctl explain");
    expect_text(r.out, "\nzero-bubble  ");
    run_expect(&r, 0, "dtctl explain -o jsonl");
    expect_text(r.out, "{\"name\": \"ddp\", \"about\": \"Every rank has the whole model");
    run_expect(&r, 0, "dtctl explain ring");
    assert_string_equal(r.out, "explain-ring.html: open it in a browser\n");
    run_expect(&r, 0, "grep -c 'Ring attention: each rank' explain-ring.html");
    run_expect(&r, 0, "dtctl explain job.yaml --set parallel.fsdp=2 --html step.html --svg step.svg");
    run_expect(&r, 0, "grep -c '\"name\":\"small\"' step.html && tail -1 step.svg");
    assert_string_equal(r.out, "1\n</svg>\n");
    run_expect(&r, 0, "dtctl explain zero3 -o json | grep -c '\"moves\": \\['");
    run_expect(&r, 2, "dtctl explain zero4");
    expect_text(r.err, "there is no layout and no job file 'zero4'; 'dtctl explain' lists the layouts");
    run_expect(&r, 2, "dtctl explain zero3 --set parallel.workers=2");
    expect_text(r.err, "zero3 is a ready-made layout, which --set does not change");
    run_expect(&r, 2, "dtctl explain job.yaml --set parallel.workers=65");
    expect_text(r.err, "parallel.workers: 65 workers do not fit on a page, which has room for 64");
    run_expect(&r, 2, "dtctl explain ddp --html absent/step.html");
    expect_text(r.err, "absent/step.html");
    run_expect(&r, 2, "dtctl explain ddp --measured .");
}

TEST(the_order_of_a_pipeline_is_printed)
{
    struct run_result r;
    files_write();
    run_expect(&r, 0,
               "dtctl plan job.yaml --set parallel.workers=2 --set parallel.pp=2 --set train.global_batch=2 "
               "--set train.micro_batch=1 --schedule-csv pytorch");
    assert_string_equal(r.out, "0F0,0F1,,0B0,,0B1\n,1F0,1B0,1F1,1B1,\n");
    run_expect(&r, 0,
               "dtctl plan job.yaml --set parallel.workers=2 --set parallel.pp=2 --set train.global_batch=2 "
               "--set train.micro_batch=1 --schedule-csv dtd");
    assert_string_equal(r.out, "F0.0,F0.1,-,B0.0,-,B0.1\n-,F0.0,B0.0,F0.1,B0.1,-\n");
    run_expect(&r, 2, "dtctl plan job.yaml --set parallel.workers=1 --schedule-csv dtd");
    expect_text(r.err, "--schedule-csv: parallel.pp is 1, so there is no pipeline; write parallel.pp of at least 2");
    run_expect(&r, 2, "dtctl plan job.yaml --schedule-csv csv");
    expect_text(r.err, "--schedule-csv: there is no form 'csv'; write pytorch or dtd");
}

TEST(a_plan_of_thousands_is_quick)
{
    struct run_result r;
    files_write();
    run_expect(&r, 0,
               "dtctl plan job.yaml --set parallel.workers=2048 --set parallel.fsdp=16 --set parallel.zero=3 "
               "--set train.global_batch=8192");
    expect_text(r.out, "too large to compile for 2048 ranks");
    expect_text(r.out, "ranks 1-");
    run_expect(&r, 2, "dtctl plan job.yaml --set parallel.workers=2048 --set train.global_batch=8192 --timeline a.svg");
    expect_text(r.err, "too large for a forecast");
}

TEST(unknown_key)
{
    struct run_result r;
    files_write();
    run_write("bad.yaml", "name: small\nmodel: {dim: 32, layers: 2, heads: 4}\ndata: {train: [text.txt]}\n"
                          "train:\n  steps: 10\n  leaning_rate: 3\n");
    run_expect(&r, 2, "dtctl submit bad.yaml --dry-run");
    expect_text(r.err, "bad.yaml:6");
    expect_text(r.err, "leaning_rate");
    refused("--set train.step=5", "train.steps");
}

TEST(wrong_type)
{
    files_write();
    refused("--set train.steps=many", "train.steps");
    refused("--set 'train.steps=[1]'", "train.steps");
    refused("--set model.arch=lama", "llama");
}

TEST(out_of_range)
{
    files_write();
    refused("--set train.steps=0", "train.steps");
    refused("--set train.lr=-1", "train.lr");
    refused("--set model.heads=5", "heads");
    refused("--set parallel.tp=3", "parallel");
}

TEST(missing_data_file)
{
    files_write();
    refused("--set 'data.train=[absent.txt]'", "absent.txt");
    refused("--set 'data.valid=[absent-*.txt]'", "absent-*.txt");
}

TEST(too_little_data)
{
    struct run_result r;
    files_write();
    refused("--set train.seq=100000", "train.seq");
    run_write("empty.txt", "");
    run_expect(&r, 2, "dtctl submit job.yaml --dry-run --set 'data.train=[empty.txt]'");
}

TEST(vocabulary_too_small)
{
    files_write();
    refused("--set data.tokenizer=words --set model.vocab=5", "model.vocab: 5 is too small, the data has ");
    refused("--set model.vocab=100", "model.vocab");
}

TEST(a_plan_that_does_not_fit)
{
    files_write();
    refused("--set model.dim=65536 --set model.heads=64 --set model.kv_heads=64 --set model.layers=64 --set "
            "model.ffn=262144",
            "iB");
}

TEST(missing_or_broken_job_file)
{
    struct run_result r;
    files_write();
    run_expect(&r, 2, "dtctl submit absent.yaml");
    expect_text(r.err, "absent.yaml: No such file or directory");
    run_expect(&r, 2, "dtctl submit .");
    run_write("broken.yaml", "name: [unclosed\n");
    run_expect(&r, 2, "dtctl submit broken.yaml");
    expect_text(r.err, "broken.yaml:");
}

TEST(a_checkpoint_folder_that_cannot_be)
{
    files_write();
    refused("--set checkpoint.dir=text.txt/ckpt", "text.txt");
    if (geteuid() != 0)
        refused("--set checkpoint.dir=/proc/self/ckpt", "checkpoint.dir");
}

TEST(keys_are_listed)
{
    struct run_result r;
    run_expect(&r, 0, "dtctl submit --help-keys");
    expect_text(r.out, "train.lr");
    expect_text(r.out, "checkpoint.dir");
}
