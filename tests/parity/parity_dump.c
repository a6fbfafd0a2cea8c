/* Writes float64 steps of the small models for torch_steps.py: `parity_dump ARCH FOLDER STEPS TEXT [KEY=VALUE..]`. TEXT
 * is a file whose words, in lower case, are the data; `-`: the generated data; `masked`: the same, of whose targets
 * some are -1 and do not count. The other arguments override keys of the model's job.
 *
 * FOLDER/index has "key value.." lines (model numbers, learning rates, losses, norms) and one "param NAME DECAY DIMS.."
 * line for each parameter in order. init, grad, param: raw float64 of all parameters. tokens: raw int32, ids and then
 * targets of each sample. logits: float64 [sample, token, vocabulary] of the first batch with the initial parameters.
 * generated: the logits after the first sample of this batch, as a generator with one worker computes them. */
#include "tests/parity/harness.h"

#include "common/base/file.h"
#include "common/data/data.h"

#include <math.h>
#include <sys/mman.h>

struct dump {
    const char *dir;
    int64_t steps;
    struct parity_model model;
    struct data_set *set; /* NULL: generated data */
    struct parity_feed made_up;
    double *logits; /* in memory that the ranks share */
    int64_t shift;  /* sample i of a rotated batch is i + shift */
};

/* ---- data ---- */

static err_t sample_of(void *arg, int64_t index, int32_t *ret_ids, int32_t *ret_targets)
{
    struct dump *d = arg;
    const int64_t seq = d->model.job.train.seq;
    if (!d->set)
        return parity_sample(&d->made_up, index, ret_ids, ret_targets);
    return data_sample(d->set, seq, data_sampler(1, data_samples(d->set, seq), index), ret_ids, ret_targets);
}

static err_t count_of(void *arg, int64_t index, int64_t *ret)
{
    struct dump *d = arg;
    *ret = d->model.job.train.seq;
    return d->set ? OK : parity_count(&d->made_up, index, ret);
}

static err_t rotated(void *arg, int64_t index, int32_t *ret_ids, int32_t *ret_targets)
{
    struct dump *d = arg;
    return sample_of(d, (index + d->shift) % d->model.job.train.global_batch, ret_ids, ret_targets);
}

static err_t text_open(struct dump *d, const char *text, struct why *why)
{
    char cache[512], hash[65];
    char *files[] = {(char *)text};
    snprintf(cache, sizeof(cache), "%s/cache", d->dir);
    const struct data_prepare p = {
        .files = files, .n_files = 1, .tokenizer = TOKENIZER_WORDS, .lowercase = true, .cache = cache};
    err_t err = data_prepare(&p, hash, why);
    return err ? err : data_open(cache, hash, &d->set, why);
}

/* ---- logits ---- */

/* Wraps a rank's kernels to record the operands of those that turn logits into a loss: the last call counts. */
static struct {
    struct kern_ops ops;
    const struct kern_ops *real;
    double *x;
    int64_t rows, cols, first_col;
} recorded;

static void record_logits(int64_t rows, int64_t cols, int64_t ld, int64_t first_col, const void *logits)
{
    const double *x = logits;
    free(recorded.x);
    recorded.x = malloc((size_t)(rows * cols) * sizeof(*recorded.x) + 1);
    assert_non_null(recorded.x);
    for (int64_t i = 0; i < rows; i++)
        memcpy(recorded.x + i * cols, x + i * ld, (size_t)cols * sizeof(*x));
    recorded.rows = rows;
    recorded.cols = cols;
    recorded.first_col = first_col;
}

static void record_cross_entropy(struct kern_stream *s, int64_t t, int64_t v, int64_t ld, const int32_t *targets,
                                 bool grad, double scale, void *logits, double *loss_sum)
{
    record_logits(t, v, ld, 0, logits);
    recorded.real->cross_entropy(s, t, v, ld, targets, grad, scale, logits, loss_sum);
}

static void record_loss_part(struct kern_stream *s, int64_t t, int64_t v, int64_t ld, int64_t lo,
                             const int32_t *targets, const void *logits, double *stats)
{
    record_logits(t, v, ld, lo, logits);
    recorded.real->loss_part(s, t, v, ld, lo, targets, logits, stats);
}

/* The evaluation's last microbatch of this rank. */
static const struct micro *last_micro(const struct program *p)
{
    int last = -1;
    for (int i = 0; i < p->n_actions; i++)
        if (p->actions[i].kind == ACT_FORWARD && p->actions[i].micro >= 0)
            last = p->actions[i].micro;
    return last < 0 ? NULL : &p->micros[last];
}

static void collect_logits(const struct dump *d, const struct program *p, const struct micro *m)
{
    const int64_t batch = d->model.job.train.global_batch, vocab = d->model.job.model.vocab;
    assert_int_equal(recorded.rows, m->samples * p->own_seq);
    for (int s = 0; s < p->n_segments; s++)
        for (int64_t i = 0; i < m->samples; i++)
            for (int64_t t = 0; t < p->segments[s].len; t++) {
                const struct segment *g = &p->segments[s];
                const double *row = recorded.x + (g->before * m->samples + i * g->len + t) * recorded.cols;
                int64_t to = (m->first + i + d->shift) % batch * p->seq + g->pos0 + t;
                memcpy(d->logits + to * vocab + recorded.first_col, row, (size_t)recorded.cols * sizeof(*row));
            }
}

/* Evaluates the first batch in all rotations, so that each sample is in a last microbatch once. */
static err_t take_logits(void *arg, struct engine *e, struct why *why)
{
    struct dump *d = arg;
    const int64_t batch = e->config.job->train.global_batch;
    const struct engine_feed feed = {.sample = rotated, .arg = d};
    const struct micro *last = last_micro(&e->eval);
    err_t err = OK;
    double loss;
    recorded.real = e->kernels;
    recorded.ops = *e->kernels;
    recorded.ops.cross_entropy = record_cross_entropy;
    recorded.ops.loss_part = record_loss_part;
    e->kernels = &recorded.ops;
    for (d->shift = 0; !err && d->shift < batch; d->shift++) {
        err = engine_eval(e, &feed, 0, batch, &loss, why);
        if (!err && last && recorded.x)
            collect_logits(d, &e->eval, last);
    }
    e->kernels = recorded.real;
    return err;
}

static err_t generate_logits(struct dump *d, double *ret, struct why *why)
{
    struct job_spec job = d->model.job;
    const struct engine_config config = {
        .dev = test_cpu(), .job = &job, .graph = &d->model.graph, .world = 1, .generate = true};
    struct engine e;
    int32_t *ids = calloc((size_t)(2 * job.train.seq), sizeof(*ids));
    const void *row;
    job.parallel = (struct job_parallel){.workers = 1, .fsdp = 1, .tp = 1, .pp = 1, .cp = 1, .ep = 1};
    err_t err = engine_init(&e, &config, why);
    err = err ? err : engine_start(&e, NULL, why);
    err = err ? err : engine_fill_state(&e, why);
    err = err ? err : sample_of(d, 0, ids, ids + job.train.seq);
    err = err ? err : engine_logits(&e, ids, job.train.seq, &row, why);
    if (!err)
        memcpy(ret, row, (size_t)job.model.vocab * sizeof(*ret));
    engine_fini(&e);
    free(ids);
    return err;
}

/* ---- files ---- */

static int write_file(const struct dump *d, const char *name, const void *x, size_t bytes)
{
    char path[512];
    snprintf(path, sizeof(path), "%s/%s", d->dir, name);
    return file_replace(path, x, bytes, 0600) != OK;
}

static int write_doubles(const struct dump *d, const char *name, const double *x, int64_t n)
{
    return write_file(d, name, x, (size_t)n * sizeof(*x));
}

static int write_tokens(struct dump *d)
{
    const struct job_train *t = &d->model.job.train;
    int64_t n = d->steps * t->global_batch, seq = t->seq;
    int32_t *tokens = calloc((size_t)(2 * n * seq), sizeof(*tokens));
    int rc = tokens == NULL;
    for (int64_t i = 0; !rc && i < n; i++)
        rc = sample_of(d, i, tokens + 2 * i * seq, tokens + (2 * i + 1) * seq) != OK;
    rc = rc || write_file(d, "tokens", tokens, (size_t)(2 * n * seq) * sizeof(*tokens));
    free(tokens);
    return rc;
}

static void print_index(FILE *f, const struct dump *d, const struct parity_result *r)
{
    const struct job_spec *j = &d->model.job;
    fprintf(f,
            "seq %lld\nbatch %lld\nvocab %lld\nlayers %lld\nheads %lld\nkv_heads %lld\ncausal %d\ndim %lld\n"
            "head_dim %lld\n",
            (long long)j->train.seq, (long long)j->train.global_batch, (long long)j->model.vocab,
            (long long)j->model.layers, (long long)j->model.heads,
            (long long)(j->model.kv_heads ? j->model.kv_heads : j->model.heads), j->model.causal,
            (long long)j->model.dim, (long long)job_head_dim(&j->model));
    fprintf(f,
            "norm_eps %.17g\nrope_theta %.17g\nclip %.17g\nweight_decay %.17g\nbeta1 %.17g\nbeta2 %.17g\neps %.17g\n",
            j->model.norm_eps, j->model.rope_theta, j->train.clip, j->train.weight_decay, j->train.beta1,
            j->train.beta2, j->train.eps);
    fprintf(f, "window %lld\nwindow_from %lld\nwindow_period %lld\nsoftcap %.17g\nscale %.17g\n",
            (long long)j->model.window, (long long)j->model.window_from, (long long)j->model.window_period,
            j->model.score_softcap, j->model.score_scale);
    for (int s = 0; s < d->steps; s++)
        fprintf(f, "step %.17g %.17g %.17g\n", job_lr(&j->train, s + 1), r->loss[s], r->norm[s]);
    for (int t = 0; t < d->model.graph.n_tensors; t++) {
        const struct graph_tensor *g = &d->model.graph.tensors[t];
        if (g->kind != GT_PARAM)
            continue;
        fprintf(f, "param %s %d %lld %lld", g->name, g->decay, (long long)g->zero_lo, (long long)g->zero_hi);
        for (int k = 0; k < g->ndim; k++)
            fprintf(f, " %lld", (long long)g->dim[k].factor);
        fprintf(f, "\n");
    }
}

static int write_index(const struct dump *d, const struct parity_result *r)
{
    char path[512];
    snprintf(path, sizeof(path), "%s/index", d->dir);
    FILE *f = fopen(path, "w");
    if (!f)
        return 1;
    print_index(f, d, r);
    return fclose(f);
}

/* ---- main ---- */

static int run_and_write(struct dump *d)
{
    const struct engine_feed feed = {.sample = sample_of, .arg = d, .count = count_of};
    const struct parity_options plain = {.feed = &feed}, asked = {.feed = &feed, .before = take_logits, .arg = d};
    const int64_t vocab = d->model.job.model.vocab,
                  n = d->model.job.train.global_batch * d->model.job.train.seq * vocab;
    double *generated = calloc((size_t)vocab, sizeof(*generated));
    struct why why = {""};
    d->made_up.seq = d->model.job.train.seq;
    d->made_up.vocab = vocab;
    d->logits = mmap(NULL, (size_t)n * sizeof(double), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (d->logits == MAP_FAILED || !generated)
        return 1;
    for (int64_t i = 0; i < n; i++)
        d->logits[i] = NAN; /* stays NaN if no rank writes it */
    struct parity_result *before = parity_run(&d->model, 0, &plain), *after = parity_run(&d->model, d->steps, &asked);
    d->shift = 0;
    int rc = generate_logits(d, generated, &why) != OK || write_index(d, after) ||
             write_doubles(d, "init", before->param, before->n) || write_doubles(d, "grad", after->grad, after->n) ||
             write_doubles(d, "param", after->param, after->n) || write_doubles(d, "logits", d->logits, n) ||
             write_doubles(d, "generated", generated, vocab) || write_tokens(d);
    if (why.text[0])
        fprintf(stderr, "%s\n", why.text);
    parity_result_free(before);
    parity_result_free(after);
    free(generated);
    return rc;
}

static const char *model_text(const char *arch)
{
    return strcmp(arch, "gpt2") == 0 ? parity_gpt2 : strcmp(arch, "llama") == 0 ? parity_llama : parity_transformer;
}

int main(int argc, char **argv)
{
    struct dump d = {.dir = argc > 2 ? argv[2] : ""};
    const char *sets[32] = {NULL};
    char vocab[64];
    struct why why;
    int n = 0;
    if (argc < 5 || argc > 32)
        return 2;
    d.steps = atoll(argv[3]);
    for (int i = 5; i < argc; i++)
        sets[n++] = argv[i];
    d.made_up.mask = strcmp(argv[4], "masked") == 0 ? PARITY_SOME : PARITY_ALL;
    if (strcmp(argv[4], "-") != 0 && !d.made_up.mask) {
        if (text_open(&d, argv[4], &why)) {
            fprintf(stderr, "%s\n", why.text);
            return 1;
        }
        snprintf(vocab, sizeof(vocab), "model.vocab=%lld", (long long)data_vocab(d.set));
        sets[n] = vocab;
    }
    parity_model_init(&d.model, model_text(argv[1]), sets);
    int rc = run_and_write(&d);
    parity_model_fini(&d.model);
    data_close(d.set);
    return rc;
}
