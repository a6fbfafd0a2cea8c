/* dt-worker --generate on a checkpoint that the test writes. */
#include "tests/worker/tiny_checkpoint.h"

#include "worker/generate.h"

#include <ctype.h>
#include <sys/wait.h>

/* ---- the program ---- */

#define MODEL                                                                                   \
    "name: tiny\nmodel: {arch: llama, dim: 32, layers: 3, heads: 4, kv_heads: 2, vocab: 256}\n" \
    "data: {train: [/nothing], tokenizer: bytes}\n"                                             \
    "train: {steps: 1, seq: 64, global_batch: 1, micro_batch: 1}\ncheckpoint: {dir: /nowhere}\n"
static const char yaml[] = MODEL;
/* The spec of the training job, which has nothing to do with generation. */
static const char laid_out[] = MODEL "parallel: {workers: 8, fsdp: 2, zero: 3, tp: 2, pp: 2, async_tp: true, "
                                     "schedule: zb-h1, recompute: full, min_workers: 8}\n"
                                     "run: {comm_thread: on}\n";

static void make_checkpoint(char *ret, size_t size)
{
    tiny_checkpoint(yaml, &(struct tiny_files){.job = laid_out}, ret, size);
}

/* q, k and v of gpt2 are one matrix, which is loaded as three boxes; the loaded values must equal the checkpoint's. */
static void start_gpt2(struct engine *e, struct job_spec *job, struct graph *graph, struct dev **dev)
{
    static const char text[] = "name: tiny\nmodel: {arch: gpt2, dim: 32, layers: 2, heads: 2, vocab: 256}\n"
                               "data: {train: [/nothing]}\ntrain: {steps: 1, seq: 16}\n";
    struct why why = {""};
    assert_ok(job_parse("tiny", text, strlen(text), NULL, 0, job, &why));
    assert_ok(graph_build(&job->model, job->train.seq, graph, &why));
    assert_ok(dev_open("cpu", 0, dev, &why));
    const struct engine_config config = {.dev = *dev, .job = job, .graph = graph, .world = 1, .generate = true};
    assert_ok(engine_init(e, &config, &why));
    assert_ok(engine_start(e, NULL, &why));
}

static struct ckpt_piece whole(const struct engine *e, int t)
{
    const struct graph_tensor *g = &e->config.graph->tensors[t];
    struct ckpt_piece p = {.fqn = g->name, .dtype = DT_F32, .ndim = g->ndim, .box = {.ndim = g->ndim}};
    for (int d = 0; d < g->ndim; d++)
        p.shape[d] = p.box.size[d] = g->dim[d].factor;
    p.data = engine_buffer(e, &e->eval, e->eval.param_buffer[t]);
    return p;
}

TEST(every_tensor_is_loaded_as_it_stands)
{
    struct job_spec job[2];
    struct graph graph[2];
    struct engine e[2];
    struct dev *dev[2];
    struct ckpt_piece pieces[64];
    struct ckpt_part *part;
    struct ckpt *ckpt;
    struct why why = {""};
    char dir[512];
    int n = 0;
    for (int i = 0; i < 2; i++)
        start_gpt2(&e[i], &job[i], &graph[i], &dev[i]);
    assert_ok(engine_fill_state(&e[0], &why));
    for (int t = 0; t < graph[0].n_tensors; t++)
        if (graph[0].tensors[t].kind == GT_PARAM)
            pieces[n++] = whole(&e[0], t);
    assert_ok(ckpt_partial_dir(test_tmpdir(), 900, 1, dir, sizeof(dir)));
    assert_ok(ckpt_part_write(dir, 0, pieces, n, NULL, 0, &part, &why));
    const struct ckpt_commit commit = {.root = test_tmpdir(), .step = 900, .epoch = 1, .loss = NAN};
    assert_ok(ckpt_commit(&commit, &part, 1, &why));
    assert_ok(ckpt_step_dir(test_tmpdir(), 900, dir, sizeof(dir)));
    assert_ok(ckpt_open(dir, &ckpt, &why));
    assert_ok(generate_load(&e[1], ckpt, &why));
    for (int t = 0; t < graph[0].n_tensors; t++)
        if (graph[0].tensors[t].kind == GT_PARAM) {
            struct ckpt_piece a = whole(&e[0], t), b = whole(&e[1], t);
            if (memcmp(a.data, b.data, (size_t)box_elements(&a.box) * sizeof(float)) != 0)
                fail_msg("%s is loaded as another", a.fqn);
        }
    ckpt_close(ckpt);
    ckpt_part_free(part);
    for (int i = 0; i < 2; i++) {
        engine_fini(&e[i]);
        dev_close(dev[i]);
        graph_fini(&graph[i]);
        job_fini(&job[i]);
    }
}

static int run(const char *arguments, char *ret, size_t size)
{
    char command[2048];
    const char *bin = getenv("DTD_BIN");
    snprintf(command, sizeof(command), "%s/dt-worker %s 2>&1", bin ? bin : "bin", arguments);
    FILE *f = popen(command, "r");
    size_t n = fread(ret, 1, size - 1, f);
    ret[n] = '\0';
    return WEXITSTATUS(pclose(f));
}

TEST(the_same_seed_makes_the_same_text)
{
    char dir[512], arguments[800], a[4096], b[4096], c[4096];
    make_checkpoint(dir, sizeof(dir));
    snprintf(arguments, sizeof(arguments), "--generate %s --prompt 'Once upon' --tokens 40 --seed 5", dir);
    assert_int_equal(run(arguments, a, sizeof(a)), 0);
    assert_int_equal(run(arguments, b, sizeof(b)), 0);
    assert_string_equal(a, b);
    assert_memory_equal(a, "Once upon", 9);
    snprintf(arguments, sizeof(arguments), "--generate %s --prompt 'Once upon' --tokens 40 --seed 6", dir);
    assert_int_equal(run(arguments, c, sizeof(c)), 0);
    assert_string_not_equal(a, c);
}

/* The first tokens do not depend on the number of requested tokens, although the length of the window does. */
TEST(a_longer_text_begins_as_the_shorter)
{
    char dir[512], arguments[800], a[4096], b[4096];
    make_checkpoint(dir, sizeof(dir));
    snprintf(arguments, sizeof(arguments), "--generate %s --prompt ab --tokens 3 --temperature 0", dir);
    assert_int_equal(run(arguments, a, sizeof(a)), 0);
    snprintf(arguments, sizeof(arguments), "--generate %s --prompt ab --tokens 60 --temperature 0", dir);
    assert_int_equal(run(arguments, b, sizeof(b)), 0);
    assert_memory_equal(a, b, 5);
}

/* A model in parts, each with its own boxes, writes the same text as the whole model; stages and heads are uneven. */
TEST(a_model_in_parts_makes_the_same_text)
{
    static const char *const cuts[] = {"--pp 2", "--pp 3", "--tp 2", "--tp 3", "--tp 2 --pp 3"};
    char dir[512], arguments[800], whole_text[4096], text[4096];
    make_checkpoint(dir, sizeof(dir));
    snprintf(arguments, sizeof(arguments), "--generate %s --prompt 'Once upon' --tokens 40 --top-k 20", dir);
    assert_int_equal(run(arguments, whole_text, sizeof(whole_text)), 0);
    for (size_t i = 0; i < sizeof(cuts) / sizeof(cuts[0]); i++) {
        snprintf(arguments, sizeof(arguments), "--generate %s --prompt 'Once upon' --tokens 40 --top-k 20 %s", dir,
                 cuts[i]);
        assert_int_equal(run(arguments, text, sizeof(text)), 0);
        assert_string_equal(whole_text, text);
    }
}

/* In bfloat16 the text begins as in float32, also in parts; later, small differences may choose another token. */
TEST(bfloat16_makes_nearly_the_same_text)
{
    static const char *const ways[] = {"", "--tp 2", "--pp 3", "--batch 2"};
    char dir[512], arguments[800], want[4096], text[4096];
    make_checkpoint(dir, sizeof(dir));
    snprintf(arguments, sizeof(arguments), "--generate %s --prompt 'Once upon' --tokens 30 --temperature 0", dir);
    assert_int_equal(run(arguments, want, sizeof(want)), 0);
    for (size_t i = 0; i < sizeof(ways) / sizeof(ways[0]); i++) {
        snprintf(arguments, sizeof(arguments),
                 "--generate %s --prompt 'Once upon' --tokens 30 --temperature 0 --dtype bfloat16 %s", dir, ways[i]);
        if (run(arguments, text, sizeof(text)))
            fail_msg("%s: %s", ways[i], text);
        assert_memory_equal(text, want, strlen("Once upon") + 6);
    }
    snprintf(arguments, sizeof(arguments), "--generate %s --dtype float64", dir);
    assert_int_equal(run(arguments, text, sizeof(text)), 2);
    assert_non_null(strstr(text, "--dtype float64: expected float32 or bfloat16"));
}

/* When one rank cannot write, all ranks end, and the error is printed once. */
TEST(a_part_that_fails_ends_all)
{
    char dir[512], arguments[800], text[4096];
    make_checkpoint(dir, sizeof(dir));
    snprintf(arguments, sizeof(arguments), "--generate %s --tokens 40 --pp 2 --tp 2 2>&1 >/dev/full | cat", dir);
    assert_int_equal(run(arguments, text, sizeof(text)), 0); /* the exit status of cat */
    assert_string_equal("dt-worker: cannot write the text: no space left\n", text);
    snprintf(arguments, sizeof(arguments), "--generate %s --pp 4", dir);
    assert_int_equal(run(arguments, text, sizeof(text)), 2);
    assert_non_null(strstr(text, "layers"));
}

/* One line of a text of many prompts. */
static void line_of(const char *text, int line, char *ret, size_t size)
{
    for (; line > 0; line--)
        text = strchr(text, '\n') + 1;
    snprintf(ret, size, "%.*s", (int)strcspn(text, "\n"), text);
}

/* Prompts of different lengths share a batch, more than it has places; each gets the text that it gets alone. With
 * temperature 0, because the random numbers are those of the prompt's number. All of them together have more tokens
 * than one round processes. */
TEST(prompts_do_not_depend_on_each_other)
{
    static const char *const prompts[] = {"Once upon a time there was a dog who knew the law",
                                          "a",
                                          "the dog and the cat and the mouse and the elephant",
                                          "x y z and all other letters of the whole alphabet",
                                          "zz",
                                          "hello to everybody who can read these few letters",
                                          "one two three four five six seven eight nine ten 11",
                                          "a sentence with many words that nobody would write"};
    static const char *const ways[] = {"--batch 1", "--batch 3", "--batch 8", "--batch 8 --tp 2", "--batch 4 --pp 3"};
    char dir[512], path[512], arguments[1400], text[16384], line[4096], want[4096], alone[8][4096];
    make_checkpoint(dir, sizeof(dir));
    snprintf(path, sizeof(path), "%s/prompts.jsonl", test_tmpdir());
    FILE *f = fopen(path, "w");
    for (int i = 0; i < 8; i++) {
        fprintf(f, i % 2 ? "\"%s\"\n" : "{\"id\": 3, \"prompt\": \"%s\"}\n", prompts[i]);
        snprintf(arguments, sizeof(arguments), "--generate %s --prompt '%s' --tokens 12 --temperature 0 --json", dir,
                 prompts[i]);
        assert_int_equal(run(arguments, alone[i], sizeof(alone[i])), 0);
        snprintf(want, sizeof(want), "{\"prompt\":\"%s\",\"text\":\"%s", prompts[i], prompts[i]);
        assert_memory_equal(strstr(alone[i], "{\"prompt"), want, strlen(want)); /* after the window's message */
        assert_non_null(strstr(alone[i], "\"tokens\":12,\"ended\":\"length\"}\n"));
    }
    fclose(f);
    for (size_t w = 0; w < sizeof(ways) / sizeof(ways[0]); w++) {
        snprintf(arguments, sizeof(arguments), "--generate %s --prompts %s --tokens 12 --temperature 0 --json %s", dir,
                 path, ways[w]);
        assert_int_equal(run(arguments, text, sizeof(text)), 0);
        for (int i = 0; i < 8; i++) {
            line_of(strstr(alone[i], "{\"prompt"), 0, want, sizeof(want));
            line_of(strstr(text, "{\"prompt"), i, line, sizeof(line));
            assert_string_equal(line, want);
        }
    }
}

/* With a letter of the continuation as a stop, the text ends before it. */
TEST(a_stop_ends_the_text)
{
    char dir[512], arguments[1400], text[4096], whole_text[4096];
    make_checkpoint(dir, sizeof(dir));
    snprintf(arguments, sizeof(arguments), "--generate %s --prompt ab --tokens 60 --top-k 100", dir);
    assert_int_equal(run(arguments, whole_text, sizeof(whole_text)), 0);
    char *at = strstr(whole_text, "ab") + 2;
    while (*at && !isalnum((unsigned char)*at))
        at++;
    assert_true(*at);
    snprintf(arguments, sizeof(arguments), "--generate %s --prompt ab --tokens 60 --top-k 100 --stop %c", dir, *at);
    assert_int_equal(run(arguments, text, sizeof(text)), 0);
    memcpy(at, "\n", 2);
    assert_string_equal(strstr(text, "ab"), strstr(whole_text, "ab"));
}

/* Beyond the window the text goes on, with one message. */
TEST(a_text_outgrows_the_window)
{
    char dir[512], arguments[800], text[8192];
    make_checkpoint(dir, sizeof(dir));
    snprintf(arguments, sizeof(arguments), "--generate %s --prompt ab --tokens 100 --temperature 0 --json", dir);
    assert_int_equal(run(arguments, text, sizeof(text)), 0);
    snprintf(arguments, sizeof(arguments), "--generate %s --tokens 0 --json", dir);
    char empty[256];
    assert_int_equal(run(arguments, empty, sizeof(empty)), 0);
    assert_string_equal(empty, "{\"prompt\":\"\",\"text\":\"\",\"tokens\":0,\"ended\":\"length\"}\n");
    const char *told = strstr(text, "window of 64 ");
    assert_non_null(told);
    assert_null(strstr(told + 1, "window of"));
    assert_non_null(strstr(text, "\"tokens\":100"));
    snprintf(arguments, sizeof(arguments), "--generate %s --prompt '%s' --tokens 2 --temperature 0 --json", dir,
             "a prompt that is much longer than the whole window of the model, which is 64 tokens");
    assert_int_equal(run(arguments, text, sizeof(text)), 0);
    assert_non_null(strstr(text, "\"tokens\":2"));
}

TEST(failed_generation_names_the_cause)
{
    char text[4096];
    assert_int_equal(run("--generate /no/such/place", text, sizeof(text)), 3);
    assert_non_null(strstr(text, "/no/such/place"));
    assert_int_equal(run("--generate x --probe", text, sizeof(text)), 2);
    assert_int_equal(run("--tokens -1 --generate x", text, sizeof(text)), 2);
    assert_int_equal(run("--tp 0 --generate x", text, sizeof(text)), 2);
    assert_int_equal(run("--pp 65 --generate x", text, sizeof(text)), 2);
    assert_int_equal(run("--top-p 1.5 --generate x", text, sizeof(text)), 2);
    assert_int_equal(run("--stop '' --generate x", text, sizeof(text)), 2);
    assert_int_equal(run("--prompt a --prompts b --generate x", text, sizeof(text)), 2);
    assert_int_equal(run("--generate x --prompts /no/such/file", text, sizeof(text)), 3);
    assert_non_null(strstr(text, "/no/such/file"));
    assert_int_equal(run("", text, sizeof(text)), 2);
}

TEST(probe_prints_json)
{
    char text[8192];
    assert_int_equal(run("--probe", text, sizeof(text)), 0);
    assert_non_null(strstr(text, "\"cores\""));
    assert_non_null(strstr(text, "\"gpus\""));
}

TEST(a_worker_without_its_ticket_fails)
{
    char text[4096];
    assert_int_equal(run("--job 1 --slot 0 3</dev/null", text, sizeof(text)), 1);
    assert_non_null(strstr(text, "ticket"));
}
