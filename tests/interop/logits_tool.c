/* logits_tool STEP_FOLDER [float64] <ids >logits: for each line of token ids, prints a line with the logits of the next
 * token, or of a model with labels those of the text's class. It uses the parameters of a checkpoint and dtd's kernels,
 * in float32; in float64 with the reference kernels.
 */
#include "common/ckpt/ckpt.h"
#include "common/conf/job.h"
#include "common/plan/models/build.h"
#include "worker/generate.h"
#include "worker/step/engine.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct model {
    bool wide; /* float64 */
    struct ckpt *ckpt;
    struct job_spec job;
    struct graph graph;
    struct dev *dev;
    struct engine engine;
};

static err_t job_read(struct model *m, struct why *why)
{
    struct buf yaml = {0};
    err_t err = ckpt_small_file(m->ckpt, CKPT_JOB_FILE, &yaml, why);
    if (!err)
        err = job_parse(CKPT_JOB_FILE, (const char *)yaml.data, yaml.len, NULL, 0, &m->job, why);
    buf_fini(&yaml);
    m->job.train.numerics = m->wide ? NUMERICS_PROOF : NUMERICS_FAST;
    m->job.train.dtype = m->wide ? DT_F64 : DT_F32;
    return err;
}

static err_t model_open(struct model *m, const char *dir, struct why *why)
{
    err_t err = ckpt_open(dir, &m->ckpt, why);
    err = err ? err : job_read(m, why);
    err = err ? err : graph_build(&m->job.model, m->job.train.seq, &m->graph, why);
    err = err ? err : dev_open("cpu", 0, &m->dev, why);
    const struct engine_config config = {
        .dev = m->dev, .job = &m->job, .graph = &m->graph, .world = 1, .generate = true, .threads = 1};
    err = err ? err : engine_init(&m->engine, &config, why);
    err = err ? err : engine_start(&m->engine, NULL, why);
    return err ? err : generate_load(&m->engine, m->ckpt, why);
}

static err_t print_logits(struct model *m, char *line, struct why *why)
{
    static int32_t ids[1 << 16];
    int64_t n = 0;
    const void *logits;
    const int64_t columns = m->job.model.labels ? m->job.model.labels : m->job.model.vocab;
    for (char *p = strtok(line, " \n"); p && n < 1 << 16; p = strtok(NULL, " \n"))
        ids[n++] = atoi(p);
    err_t err = engine_logits(&m->engine, ids, n, &logits, why);
    for (int64_t i = 0; !err && i < columns; i++)
        printf("%.17g%c", m->wide ? ((const double *)logits)[i] : (double)((const float *)logits)[i],
               i + 1 < columns ? ' ' : '\n');
    return err;
}

int main(int argc, char **argv)
{
    struct model m = {0};
    struct why why = {0};
    char *line = NULL;
    size_t size = 0;
    m.wide = argc == 3 && strcmp(argv[2], "float64") == 0;
    if (argc != 2 && !m.wide)
        return fprintf(stderr, "usage: logits_tool STEP_FOLDER [float64] <ids >logits\n"), 2;
    err_t err = model_open(&m, argv[1], &why);
    while (!err && getline(&line, &size, stdin) > 0)
        err = print_logits(&m, line, &why);
    if (err)
        fprintf(stderr, "logits_tool: %s: %s\n", err_name(err), why.text);
    free(line);
    engine_fini(&m.engine);
    dev_close(m.dev);
    graph_fini(&m.graph);
    job_fini(&m.job);
    ckpt_close(m.ckpt);
    return err ? 1 : 0;
}
