/* A few float64 steps of the small models, written for torch_steps.py: `parity_dump llama|gpt2 FOLDER`.
 *
 * FOLDER/index: "key value.." lines (model numbers, learning rates, losses, norms) and one "param NAME DECAY DIMS.."
 * line for each parameter in order. init, grad, param: raw float64 of all parameters; tokens: raw int32, ids then
 * targets of each sample. */
#include "tests/parity/harness.h"

#include "common/base/file.h"

#define STEPS 3

static int write_doubles(const char *dir, const char *name, const double *x, int64_t n)
{
    char path[512];
    snprintf(path, sizeof(path), "%s/%s", dir, name);
    return file_replace(path, x, (size_t)n * sizeof(*x), 0600) != OK;
}

static int write_tokens(const char *dir, const struct job_spec *job)
{
    struct parity_feed feed = {job->train.seq, job->model.vocab};
    int64_t n = STEPS * job->train.global_batch, seq = job->train.seq;
    int32_t *tokens = calloc((size_t)(2 * n * seq), sizeof(*tokens));
    char path[512];
    for (int64_t i = 0; tokens && i < n; i++)
        if (parity_sample(&feed, i, tokens + 2 * i * seq, tokens + (2 * i + 1) * seq))
            return 1;
    snprintf(path, sizeof(path), "%s/tokens", dir);
    int rc = !tokens || file_replace(path, tokens, (size_t)(2 * n * seq) * sizeof(*tokens), 0600);
    free(tokens);
    return rc;
}

static void print_index(FILE *f, const struct parity_model *m, const struct parity_result *r)
{
    const struct job_spec *j = &m->job;
    fprintf(f, "seq %lld\nbatch %lld\nlayers %lld\nheads %lld\nkv_heads %lld\n", (long long)j->train.seq,
            (long long)j->train.global_batch, (long long)j->model.layers, (long long)j->model.heads,
            (long long)(j->model.kv_heads ? j->model.kv_heads : j->model.heads));
    fprintf(f,
            "norm_eps %.17g\nrope_theta %.17g\nclip %.17g\nweight_decay %.17g\nbeta1 %.17g\nbeta2 %.17g\neps %.17g\n",
            j->model.norm_eps, j->model.rope_theta, j->train.clip, j->train.weight_decay, j->train.beta1,
            j->train.beta2, j->train.eps);
    for (int s = 0; s < STEPS; s++)
        fprintf(f, "step %.17g %.17g %.17g\n", job_lr(&j->train, s + 1), r->loss[s], r->norm[s]);
    for (int t = 0; t < m->graph.n_tensors; t++) {
        const struct graph_tensor *g = &m->graph.tensors[t];
        if (g->kind != GT_PARAM)
            continue;
        fprintf(f, "param %s %d %lld %lld", g->name, g->decay, (long long)g->zero_lo, (long long)g->zero_hi);
        for (int d = 0; d < g->ndim; d++)
            fprintf(f, " %lld", (long long)g->dim[d].factor);
        fprintf(f, "\n");
    }
}

int main(int argc, char **argv)
{
    struct parity_model m;
    char path[512];
    if (argc != 3)
        return 2;
    parity_model_init(&m, strcmp(argv[1], "gpt2") == 0 ? parity_gpt2 : parity_llama, NULL);
    struct parity_result *before = parity_run(&m, 0, NULL), *after = parity_run(&m, STEPS, NULL);
    snprintf(path, sizeof(path), "%s/index", argv[2]);
    FILE *f = fopen(path, "w");
    if (!f)
        return 1;
    print_index(f, &m, after);
    int rc = fclose(f) || write_doubles(argv[2], "init", before->param, before->n) ||
             write_doubles(argv[2], "grad", after->grad, after->n) ||
             write_doubles(argv[2], "param", after->param, after->n) || write_tokens(argv[2], &m.job);
    parity_result_free(before);
    parity_result_free(after);
    parity_model_fini(&m);
    return rc;
}
