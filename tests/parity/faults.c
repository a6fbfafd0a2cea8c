/* Computes the places where a worker has to be killed: `parity_faults JOB FOLDER`. JOB is a job file of llama on bytes;
 * LAYOUTS below are its layouts. Their programs are compiled, and the table for tests/parity/fault.c is derived from
 * them: every collective in every kind of action that has it, before and after it, and every other kind of op at its
 * first place. FOLDER/N.sets has the overrides of layout N, one per line, and FOLDER/N.table its rows. The program
 * fails if an action or an op of program.h is in no table. */
#include "common/base/file.h"
#include "common/plan/compile/compile.h"
#include "common/plan/models/build.h"
#include "worker/step/run.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

/* Results have equal bits only if no product is split differently: canonical numerics, or one thread. */
#define ONE_THREAD "train.numerics=fast", "run.threads=1"
#define EXPERTS "model.experts=5", "model.experts_per_token=2", "model.expert_ffn=12", "model.shared_experts=1"
#define BALANCE "model.aux_loss=0.1", "model.aux_scope=batch", "model.expert_bias=0.01"
#define MAX_SETS 24

static const char *const layouts[][MAX_SETS] = {
    {"parallel.workers=4", "parallel.pp=2", "parallel.fsdp=2", "parallel.zero=3", "run.comm_thread=on"},
    {"parallel.workers=4", "parallel.tp=2", "parallel.cp=2", ONE_THREAD, "run.comm_thread=on"},
    {"parallel.workers=4", "parallel.tp=2", "parallel.pp=2", "parallel.sp=false", "parallel.recompute=full",
     ONE_THREAD},
    {"parallel.workers=2", "parallel.pp=2", "parallel.schedule=zb-h1", "model.arch=gpt2", "model.kv_heads=0"},
    {"parallel.workers=4", "parallel.fsdp=2", "parallel.zero=2", ONE_THREAD},
    {"parallel.workers=4", "parallel.tp=2", "parallel.cp=2", "model.arch=transformer", "model.kv_heads=0",
     "train.dropout=0.1", "parallel.recompute=pointwise", ONE_THREAD},
    {"parallel.workers=3", "model.arch=gpt2", "model.kv_heads=0", "parallel.recompute=pointwise"},
    {"parallel.workers=4", "parallel.fsdp=2", "parallel.zero=3", "parallel.ep=2", EXPERTS, BALANCE,
     "model.shared_gate=true", "parallel.expert_load=balanced", ONE_THREAD, "run.comm_thread=on"},
    {"parallel.workers=4", "parallel.tp=2", "parallel.sp=false", "parallel.ep=2", EXPERTS, "model.aux_loss=0.1",
     "parallel.dispatch=all_gather", ONE_THREAD},
    {"parallel.workers=2", "parallel.fsdp=2", "parallel.ep=2", EXPERTS, "model.expert_capacity=1", ONE_THREAD},
    /* Each step's norm clips, so each step that another one follows at once is restored. */
    {"parallel.workers=2", "parallel.pp=2", "parallel.schedule=zb-v", "parallel.post_validation=true",
     "train.clip=0.001", "model.layers=4", "parallel.chunks=2", "train.eval_every=5"},
    /* Relatives of llama. */
    {"parallel.workers=2", "parallel.tp=2", "model.ffn_plain=true", "model.activation=gelu_erf", "model.norm=layer",
     ONE_THREAD},
    {"parallel.workers=2", "parallel.tp=2", "model.qk_norm=whole", "model.norm_place=after", ONE_THREAD},
    {"parallel.workers=2", "model.activation=gelu", "model.embed_scale=4", "model.logit_cap=3"},
};
#define N_LAYOUTS ((int)(sizeof(layouts) / sizeof(layouts[0])))

/* Ops that no float32 program for the CPU has: casts are for bfloat16, the backward ops of GELU and bias are fused with
 * a product, only a GPU computes what arrives with an op of its own, and two ops are for generation. */
static const bool rare[OP_KIND_COUNT] = {[OP_CAST] = true,   [OP_GELU_GRAD] = true,       [OP_BIAS_GRAD] = true,
                                         [OP_ARRIVE] = true, [OP_ATTENTION_CACHE] = true, [OP_LAST_ROWS] = true};

static const char *const modes[] = {"train", "eval"};

struct table {
    const char *job, *folder;
    size_t job_bytes;
    bool has[2][ACT_COUNT][OP_KIND_COUNT]; /* collectives that have rows already */
    bool actions[2][ACT_COUNT], ops[OP_KIND_COUNT];
    FILE *rows;
    int n;
};

static void fail_with_message(const char *what, const char *why)
{
    fprintf(stderr, "parity_faults: %s: %s\n", what, why);
    exit(1);
}

static FILE *create_file(const struct table *t, int layout, const char *suffix)
{
    char path[PATH_MAX];
    snprintf(path, sizeof(path), "%s/%d.%s", t->folder, layout, suffix);
    FILE *f = fopen(path, "w");
    if (!f)
        fail_with_message(path, "cannot be written");
    return f;
}

static void add_row(struct table *t, const struct program *p, const struct action *a, const struct op *op,
                    const char *side)
{
    fprintf(t->rows, "%s %s %s %s %d\n", modes[p->mode], action_name(a->kind), op_name(op->kind), side, p->rank);
    t->n++;
}

static void note_op(struct table *t, const struct program *p, const struct action *a, const struct op *op)
{
    bool *has = &t->has[p->mode][a->kind][op->kind];
    const bool first = !t->ops[op->kind] || !t->actions[p->mode][a->kind];
    if (run_comm_ops[op->kind] ? *has : !first)
        return;
    *has = t->ops[op->kind] = t->actions[p->mode][a->kind] = true;
    add_row(t, p, a, op, op->kind == OP_SNAPSHOT ? "within" : "before");
    if (run_comm_ops[op->kind])
        add_row(t, p, a, op, "after");
}

static void note_program(struct table *t, const struct program *p)
{
    for (int i = 0; i < p->n_actions; i++)
        for (int k = 0; k < p->actions[i].n_ops; k++)
            note_op(t, p, &p->actions[i], &p->ops[p->actions[i].first_op + k]);
}

/* Usually the last rank that has the op is the one that is killed: it computes while others wait, and it does not
 * report metrics. */
static void note_ranks(struct table *t, const struct job_spec *job, const struct graph *g)
{
    for (enum program_mode mode = MODE_TRAIN; mode <= MODE_EVAL; mode++)
        for (int rank = (int)job->parallel.workers - 1; rank >= 0; rank--) {
            struct program p;
            struct why why;
            if (plan_compile(job, g, mode, rank, &p, &why))
                fail_with_message("a program", why.text);
            note_program(t, &p);
            program_fini(&p);
        }
}

static void note_layout(struct table *t, int layout)
{
    struct job_spec job;
    struct graph g;
    struct why why;
    FILE *sets = create_file(t, layout, "sets");
    int n = 0;
    for (; n < MAX_SETS && layouts[layout][n]; n++)
        fprintf(sets, "%s\n", layouts[layout][n]);
    fclose(sets);
    if (job_parse("the job", t->job, t->job_bytes, layouts[layout], n, &job, &why))
        fail_with_message("a layout", why.text);
    job.model.vocab = 256;
    if (graph_build(&job.model, job.train.seq, &g, &why))
        fail_with_message("a model", why.text);
    t->rows = create_file(t, layout, "table");
    note_ranks(t, &job, &g);
    fclose(t->rows);
    graph_fini(&g);
    job_fini(&job);
}

/* Evaluation has no action of its own; it consists of forwards and their ops. */
static void check_complete(const struct table *t)
{
    for (int a = 0; a < ACT_COUNT; a++)
        if (!t->actions[MODE_TRAIN][a])
            fail_with_message(action_name((enum action_kind)a), "no layout has such an action");
    for (int k = 0; k < OP_KIND_COUNT; k++)
        if (!t->ops[k] && !rare[k])
            fail_with_message(op_name((enum op_kind)k), "no layout has such an op");
    if (!t->actions[MODE_EVAL][ACT_FORWARD])
        fail_with_message("evaluation", "no layout evaluates");
}

int main(int argc, char **argv)
{
    static struct table t;
    struct buf text = {0};
    if (argc != 3)
        fail_with_message("usage", "parity_faults JOB FOLDER");
    if (file_read(argv[1], 1 << 20, &text))
        fail_with_message(argv[1], "cannot be read");
    t.job = (const char *)text.data;
    t.job_bytes = text.len;
    t.folder = argv[2];
    for (int i = 0; i < N_LAYOUTS; i++)
        note_layout(&t, i);
    check_complete(&t);
    printf("%d deaths in %d layouts\n", t.n, N_LAYOUTS);
    buf_fini(&text);
    return 0;
}
