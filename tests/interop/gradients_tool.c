/* gradients_tool STEP_FOLDER [KEY=VALUE ..] <samples >gradients: one training step of one worker from the parameters of
 * a checkpoint. Each line of input is a sample: token ids, of which every one predicts the next; all lines are of one
 * length and are one global batch. Of a model with labels, a line is a number of tokens, as many tokens with padding
 * behind them, and the class. The arguments override keys of the checkpoint's job.
 *
 * Prints "loss X" and then, for each parameter, its name, its shape in a checkpoint as AxBxC, and its gradient before
 * clipping. */
#include "common/ckpt/ckpt.h"
#include "common/plan/models/build.h"
#include "tests/parity/harness.h"
#include "worker/generate.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define MAX_SAMPLES 64
#define MAX_IDS 1024

struct batch {
    bool labels; /* of a model with labels */
    int32_t ids[MAX_SAMPLES][MAX_IDS];
    int64_t samples, seq;
};

static err_t sample_of(void *arg, int64_t index, int32_t *ret_ids, int32_t *ret_targets)
{
    const struct batch *b = arg;
    const int32_t *line = b->ids[index % b->samples];
    memcpy(ret_ids, line + b->labels, (size_t)b->seq * sizeof(*ret_ids));
    memcpy(ret_targets, line + 1, (size_t)b->seq * sizeof(*ret_targets));
    if (b->labels) {
        memset(ret_targets, 0xff, (size_t)b->seq * sizeof(*ret_targets));
        ret_targets[line[0] - 1] = line[b->seq + 1];
    }
    return OK;
}

static void batch_read(struct batch *b)
{
    char *line = NULL;
    size_t size = 0;
    while (getline(&line, &size, stdin) > 0 && b->samples < MAX_SAMPLES) {
        int64_t n = 0;
        for (char *p = strtok(line, " \n"); p && n < MAX_IDS; p = strtok(NULL, " \n"))
            b->ids[b->samples][n++] = atoi(p);
        b->seq = n - 1;
        b->samples++;
    }
    free(line);
}

static err_t one_target(void *arg, int64_t index, int64_t *ret)
{
    *ret = 1;
    return OK;
}

static err_t job_read(struct ckpt *ckpt, struct batch *b, int n_sets, char **sets, struct parity_model *ret,
                      struct why *why)
{
    struct buf yaml = {0};
    char seq[64], batch[64];
    const char *all[32] = {
        "train.clip=0", "train.warmup=0", "parallel.workers=1", "train.verify_every=0", "train.micro_batch=1", seq,
        batch};
    int n = 7;
    err_t err = ckpt_small_file(ckpt, CKPT_JOB_FILE, &yaml, why);
    struct job_spec job = {0};
    err = err ? err : job_parse(CKPT_JOB_FILE, (const char *)yaml.data, yaml.len, NULL, 0, &job, why);
    b->labels = !err && job.model.labels;
    b->seq -= b->labels;
    job_fini(&job);
    snprintf(seq, sizeof(seq), "train.seq=%lld", (long long)b->seq);
    snprintf(batch, sizeof(batch), "train.global_batch=%lld", (long long)b->samples);
    for (int i = 0; i < n_sets && n < 32; i++)
        all[n++] = sets[i];
    err = err ? err : job_parse(CKPT_JOB_FILE, (const char *)yaml.data, yaml.len, all, n, &ret->job, why);
    buf_fini(&yaml);
    return err ? err : graph_build(&ret->job.model, b->seq, &ret->graph, why);
}

static err_t step_run(const struct parity_model *m, struct ckpt *ckpt, struct batch *b, double *ret, struct why *why)
{
    struct engine e = {0};
    struct comm *comm = NULL;
    struct engine_result r;
    const struct engine_feed feed = {.sample = sample_of, .count = b->labels ? one_target : NULL, .arg = b};
    const struct engine_config config = {.dev = test_cpu(), .job = &m->job, .graph = &m->graph, .world = 1};
    err_t err = engine_init(&e, &config, why);
    const struct comm_config cc = {.backend = "shm",
                                   .dev = config.dev,
                                   .fd = memfd_create("gradients", MFD_CLOEXEC),
                                   .world = 1,
                                   .epoch = 1,
                                   .shared_bytes = err ? 0 : engine_shared_bytes(&e),
                                   .timeout_ms = 30000};
    err = err ? err : comm_open(&cc, &comm, why);
    err = err ? err : engine_start(&e, comm, why);
    err = err ? err : engine_fill_state(&e, why);
    err = err ? err : generate_load(&e, ckpt, why);
    err = err ? err : engine_step(&e, &feed, &r, why);
    if (!err) {
        printf("loss %.17g\n", r.loss);
        parity_collect(&e, PARITY_GRAD, ret, false);
    }
    engine_fini(&e);
    comm_close(comm);
    return err;
}

static void gradients_print(const struct graph *g, const double *at)
{
    for (int t = 0; t < g->n_tensors; t++) {
        int64_t shape[GRAPH_SHAPE_MAX], n = 1;
        if (g->tensors[t].kind != GT_PARAM)
            continue;
        const int ndim = graph_shape(&g->tensors[t], shape);
        printf("%s ", g->tensors[t].name);
        for (int d = 0; d < ndim; d++) {
            printf("%s%lld", d ? "x" : "", (long long)shape[d]);
            n *= shape[d];
        }
        for (int64_t i = 0; i < n; i++)
            printf(" %.17g", *at++);
        printf("\n");
    }
}

int main(int argc, char **argv)
{
    static struct batch b;
    struct parity_model m = {0};
    struct ckpt *ckpt = NULL;
    struct why why = {0};
    if (argc < 2)
        return fprintf(stderr, "usage: gradients_tool STEP_FOLDER [KEY=VALUE ..] <samples >gradients\n"), 2;
    batch_read(&b);
    err_t err = ckpt_open(argv[1], &ckpt, &why);
    err = err ? err : job_read(ckpt, &b, argc - 2, argv + 2, &m, &why);
    double *gradients = calloc(err ? 1 : (size_t)m.graph.n_params, sizeof(*gradients));
    err = err ? err : gradients ? step_run(&m, ckpt, &b, gradients, &why) : ERR_NOMEM;
    if (!err)
        gradients_print(&m.graph, gradients);
    else
        fprintf(stderr, "gradients_tool: %s: %s\n", err_name(err), why.text);
    free(gradients);
    parity_model_fini(&m);
    ckpt_close(ckpt);
    return err ? 1 : 0;
}
