/* checkpoint -> spec, tokenizer, graph -> decoding program -> parameters -> tokens (continue.c, converse.c)
 *
 * A model in parts (--tp, --pp) has one thread (rank) per part; they use the same transport as a job's workers on one
 * node. Each rank opens the checkpoint, loads its boxes and processes the same tokens. A rank with logits chooses the
 * next token, all ranks agree on it, and rank 0 writes the text. If a rank fails, all ranks end, and the cause is
 * printed once. */
#include "worker/generate.h"

#include "common/base/cpus.h"
#include "common/base/file.h"
#include "common/ckpt/ckpt.h"
#include "common/conf/job_rules.h"
#include "common/data/data.h"
#include "common/plan/models/build.h"
#include "worker/chat_template.h"
#include "worker/continue.h"
#include "worker/converse.h"
#include "worker/prompts.h"
#include "worker/step/snapshot.h"

#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define ARRIVE_MS 600000         /* all ranks start together, but reading a checkpoint may be slow */
#define ARENA ((size_t)64 << 20) /* bytes that are copied from the checkpoint to the engine at a time */

/* Data that the ranks share. */
struct generate_group {
    const struct generate *ask;
    char *const *prompts;
    int n_prompts;
    int world, fd; /* fd: the shared segment; -1 for a single rank */
    struct converse_desk desk;
    _Atomic int over;
};

struct generator {
    struct generate_group *group;
    const struct generate *ask;
    int rank;
    struct comm *comm;
    struct comm_group *all;
    struct ckpt *ckpt;
    struct job_spec job;
    struct tokenizer *tokenizer;
    struct chat *chat; /* NULL: prompts are continued */
    struct graph graph;
    struct dev *dev;
    struct engine engine;
    struct buf *ids; /* by prompt */
    pthread_t thread;
    err_t err;
    struct why why;
};

/* ---- the checkpoint ---- */

static err_t read_spec(struct generator *g, struct why *why)
{
    struct buf yaml = {0};
    err_t err = ckpt_small_file(g->ckpt, CKPT_JOB_FILE, &yaml, why);
    if (err == ERR_NOTFOUND)
        err = why_set(why, err, "%s has no %s: only checkpoints written by dtd describe their model",
                      g->ask->checkpoint, CKPT_JOB_FILE);
    if (!err)
        err = job_parse(CKPT_JOB_FILE, (const char *)yaml.data, yaml.len, NULL, 0, &g->job, why);
    buf_fini(&yaml);
    return err || !g->job.model.labels
               ? err
               : why_set(why, ERR_UNSUPPORTED,
                         "%s classifies texts (model.labels %" PRId64 ") and generates none; export it with dtctl ckpt "
                         "export and use it with transformers",
                         g->ask->checkpoint, g->job.model.labels);
}

static err_t read_tokenizer(struct generator *g, struct why *why)
{
    struct buf vocab = {0};
    if (g->job.data.tokenizer == TOKENIZER_BYTES)
        return tokenizer_bytes_new(&g->tokenizer);
    err_t err = ckpt_small_file(g->ckpt, CKPT_VOCAB_FILE, &vocab, why);
    if (!err)
        err =
            tokenizer_new_from(g->job.data.tokenizer, vocab.data, vocab.len, g->job.data.lowercase, &g->tokenizer, why);
    buf_fini(&vocab);
    return err;
}

/* An empty prompt is encoded as the end of a line. */
static err_t read_prompt(struct generator *g, const char *prompt, struct buf *ids, struct why *why)
{
    err_t err = tokenizer_encode(g->tokenizer, prompt, strlen(prompt), ids);
    if (!err && ids->len == 0)
        err = tokenizer_encode(g->tokenizer, "\n", 1, ids);
    if (!err && ids->len == 0) /* split drops the words that it does not know */
        return why_set(why, ERR_INVALID, "the model has no word of the prompt; write words of its training text");
    return err ? why_set(why, err, "cannot encode the prompt: %s", err_text(err)) : OK;
}

static err_t open_chat(struct generator *g, struct why *why)
{
    enum chat_template template;
    err_t err = chat_template_choose(g->ckpt, &g->job, g->ask->template, &template, why);
    err = err ? err : chat_new(template, g->tokenizer, &g->chat, why);
    return err ? err : converse_check_system(g->chat, g->ask->system, why);
}

static err_t read_prompts(struct generator *g, struct why *why)
{
    g->ids = calloc((size_t)g->group->n_prompts, sizeof(*g->ids));
    err_t err = OK;
    if (!g->ids)
        return why_set(why, ERR_NOMEM, "out of memory");
    for (int i = 0; !err && i < g->group->n_prompts; i++)
        err = read_prompt(g, g->group->prompts[i], &g->ids[i], why);
    return err;
}

/* Tokens of the longest text. A conversation may fill the window. */
static int64_t longest_text(const struct generator *g)
{
    size_t most = 0;
    if (g->chat)
        return g->job.train.seq;
    for (int i = 0; i < g->group->n_prompts; i++)
        most = g->ids[i].len > most ? g->ids[i].len : most;
    return (int64_t)(most / sizeof(int32_t)) + g->ask->tokens;
}

/* Changes the spec to the layout of these ranks, which is independent of the job's layout. A table of positions has as
 * many as the job's samples; without one the window is only as long as the texts. */
static void adapt_spec(struct generator *g)
{
    struct job_train *t = &g->job.train;
    const int64_t need = longest_text(g), batch = g->ask->batch;
    struct job_parallel *p = &g->job.parallel;
    p->workers = g->group->world;
    p->tp = g->ask->tp;
    p->pp = g->ask->pp;
    p->fsdp = p->cp = p->ep = p->chunks = 1;
    p->zero = p->min_workers = 0;
    p->async_tp = false;
    p->schedule = PIPE_1F1B;
    p->recompute = RECOMPUTE_NONE;
    t->numerics = NUMERICS_FAST;
    t->dtype = g->ask->dtype;
    t->micro_batch = batch;
    t->global_batch = need * batch < CONTINUE_ROWS ? need * batch : CONTINUE_ROWS;
    t->global_batch = t->global_batch < batch ? batch : t->global_batch;
    if (g->job.model.vocab == 0)
        g->job.model.vocab = tokenizer_vocab(g->tokenizer);
    if (job_arch_rules(g->job.model.arch)->rotary && need < t->seq)
        t->seq = need;
}

/* Loads pieces first .. end-1 through the arena: a box of the checkpoint is dense, but its rows may not be adjacent in
 * the engine (q, k and v in one matrix). */
static err_t load_round(struct snapshot *plan, int first, int end, struct engine *e, struct ckpt *ckpt, uint8_t *arena,
                        struct why *why)
{
    struct ckpt_read_stats stats;
    struct ckpt_want *wants = calloc((size_t)(end - first) + 1, sizeof(*wants));
    if (!wants)
        return why_set(why, ERR_NOMEM, "out of memory");
    for (int i = first; i < end; i++) {
        const struct snapshot_piece *x = &plan->pieces[i];
        wants[i - first] = (struct ckpt_want){x->fqn, x->box, x->dtype, arena + x->arena_offset};
    }
    err_t err = ckpt_read(ckpt, wants, end - first, &stats, why);
    free(wants);
    return err ? err : snapshot_restore(plan, e, arena, first, end, why);
}

err_t generate_load(struct engine *e, struct ckpt *ckpt, struct why *why)
{
    struct snapshot plan;
    err_t err = snapshot_plan_load(e, false, &plan);
    uint8_t *arena = err ? NULL : malloc(ARENA);
    if (!err && !arena)
        err = ERR_NOMEM;
    err = err ? err : snapshot_fit(&plan, ARENA);
    if (err)
        why_set(why, err, "cannot load the parameters: %s", err_text(err));
    for (int first = 0, end; !err && first < plan.n; first = end) {
        end = snapshot_place(&plan, first, ARENA);
        err = load_round(&plan, first, end, e, ckpt, arena, why);
    }
    free(arena);
    snapshot_fini(&plan);
    return err;
}

static int count_cores(void)
{
    int n = cpus_usable(NULL, 0);
    return n ? n : 1;
}

static err_t make_engine(struct generator *g, struct why *why)
{
    const int world = g->group->world, cores = count_cores();
    const struct engine_config config = {.dev = g->dev,
                                         .job = &g->job,
                                         .graph = &g->graph,
                                         .rank = g->rank,
                                         .world = world,
                                         .generate = true,
                                         .decode = true,
                                         .threads = cores > world ? cores / world : 1,
                                         .cancel = &g->group->over};
    return engine_init(&g->engine, &config, why);
}

static err_t open_comm(struct generator *g, struct why *why)
{
    const int world = g->group->world;
    const struct comm_config config = {.backend = "shm",
                                       .fd = g->group->fd,
                                       .rank = g->rank,
                                       .world = world,
                                       .epoch = 1,
                                       .shared_bytes = engine_shared_bytes(&g->engine),
                                       .timeout_ms = ARRIVE_MS,
                                       .cancel = &g->group->over};
    if (world == 1)
        return OK;
    int *ranks = calloc((size_t)world, sizeof(*ranks));
    for (int r = 0; ranks && r < world; r++)
        ranks[r] = r;
    err_t err = ranks ? comm_open(&config, &g->comm, why) : why_set(why, ERR_NOMEM, "out of memory");
    if (!err && comm_group_new(g->comm, ranks, world, &g->all))
        err = why_set(why, ERR_NOMEM, "cannot create the group of all ranks: %s", comm_why(g->comm));
    free(ranks);
    return err;
}

static err_t open_model(struct generator *g, struct why *why)
{
    err_t err = ckpt_open(g->ask->checkpoint, &g->ckpt, why);
    err = err ? err : read_spec(g, why);
    err = err ? err : read_tokenizer(g, why);
    if (!err)
        err = g->ask->chat ? open_chat(g, why) : read_prompts(g, why);
    if (err)
        return err;
    adapt_spec(g);
    err = graph_build(&g->job.model, g->job.train.seq, &g->graph, why);
    g->job.train.seq = longest_text(g) < g->job.train.seq ? longest_text(g) : g->job.train.seq; /* of the cache */
    err = err ? err : dev_open("cpu", 0, &g->dev, why);
    err = err ? err : make_engine(g, why);
    err = err ? err : open_comm(g, why);
    err = err ? err : engine_start(&g->engine, g->comm, why);
    return err ? err : generate_load(&g->engine, g->ckpt, why);
}

/* ---- generation ---- */

static err_t generate_text(struct generator *g, struct why *why)
{
    /* Rows of the embedding beyond the vocabulary are padding and represent no token. */
    const int64_t tokens = tokenizer_vocab(g->tokenizer), rows = g->job.model.vocab;
    const struct continuation c = {.ask = g->ask,
                                   .rank = g->rank,
                                   .engine = &g->engine,
                                   .comm = g->comm,
                                   .all = g->all,
                                   .tokenizer = g->tokenizer,
                                   .words = tokenizer_counts_words(g->job.data.tokenizer),
                                   .vocab = tokens < rows ? tokens : rows,
                                   .prompts = g->group->prompts,
                                   .ids = g->ids,
                                   .n = g->group->n_prompts};
    const struct conversation v = {&c, g->chat, &g->group->desk};
    return g->chat ? converse(&v, why) : continue_prompts(&c, why);
}

/* ---- the ranks ---- */

static void *rank_main(void *arg)
{
    struct generator *g = arg;
    g->err = open_model(g, &g->why);
    if (!g->err)
        g->err = generate_text(g, &g->why);
    if (g->err) {
        atomic_store(&g->group->over, 1);
        converse_desk_close(&g->group->desk);
        if (g->comm)
            comm_abort(g->comm);
    }
    return NULL;
}

static void generator_fini(struct generator *g)
{
    for (int i = 0; g->ids && i < g->group->n_prompts; i++)
        buf_fini(&g->ids[i]);
    free(g->ids);
    engine_fini(&g->engine);
    if (g->all)
        comm_group_free(g->all);
    comm_close(g->comm);
    dev_close(g->dev);
    graph_fini(&g->graph);
    chat_free(g->chat);
    tokenizer_free(g->tokenizer);
    job_fini(&g->job);
    ckpt_close(g->ckpt);
}

/* The calling thread is rank 0. */
static void run_ranks(struct generate_group *group, struct generator *ranks)
{
    int n = 1;
    for (int r = 0; r == 0 || r < group->world; r++)
        ranks[r] = (struct generator){.group = group, .ask = group->ask, .rank = r};
    for (; n < group->world; n++)
        if (pthread_create(&ranks[n].thread, NULL, rank_main, &ranks[n])) {
            atomic_store(&group->over, 1);
            converse_desk_close(&group->desk);
            ranks[n].err =
                why_set(&ranks[n].why, ERR_NOMEM, "cannot start a thread for each of %d ranks", group->world);
            break;
        }
    rank_main(&ranks[0]);
    for (int r = 1; r < n; r++)
        pthread_join(ranks[r].thread, NULL);
}

/* Returns the first error, and prefers errors other than ERR_CANCELED, which only follow from another rank's error. */
static err_t first_cause(const struct generator *ranks, int n, struct why *why)
{
    const struct generator *first = NULL;
    for (int r = 0; r < n; r++)
        if (ranks[r].err && (!first || (first->err == ERR_CANCELED && ranks[r].err != ERR_CANCELED)))
            first = &ranks[r];
    if (first && why)
        *why = first->why;
    return first ? first->err : OK;
}

static err_t generate_prompts(struct generate_group *group, struct why *why)
{
    struct generator *ranks = calloc((size_t)group->world, sizeof(*ranks));
    if (!ranks)
        return why_set(why, ERR_NOMEM, "out of memory");
    if (group->world > 1)
        group->fd = memfd_create("dtd-generate", MFD_CLOEXEC);
    if (group->world > 1 && group->fd < 0) {
        free(ranks);
        return why_set(why, err_from_errno(errno), "cannot create memory that %d ranks share: %s", group->world,
                       strerror(errno));
    }
    run_ranks(group, ranks);
    err_t err = first_cause(ranks, group->world, why);
    for (int r = 0; r < group->world; r++)
        generator_fini(&ranks[r]);
    if (group->fd >= 0)
        close(group->fd);
    free(ranks);
    return err;
}

err_t generate_run(const struct generate *ask, struct why *why)
{
    struct generate g = *ask;
    struct prompts file = {0};
    err_t err = ask->prompts ? prompts_read(ask->prompts, &file, why) : OK;
    char *const one[] = {(char *)(ask->prompt ? ask->prompt : "")};
    struct generate_group group = {.ask = &g, .world = (int)(ask->tp * ask->pp), .fd = -1};
    group.prompts = ask->prompts ? file.text : one;
    group.n_prompts = ask->prompts ? file.n : 1;
    g.batch = g.batch < group.n_prompts ? g.batch : group.n_prompts;
    g.tokens = g.tokens >= 0 ? g.tokens : g.chat ? GENERATE_ANSWER : GENERATE_TOKENS;
    converse_desk_init(&group.desk);
    err = err ? err : generate_prompts(&group, why);
    converse_desk_fini(&group.desk);
    prompts_fini(&file);
    return err;
}
