/* Choices of routers that are saved, or given by an earlier job (train.save_routing, train.replay_routing).
 *
 * A rank has memory for the choices of all samples of its microbatches, one id of 16 bits each, and NONE for tokens
 * that it does not route. Before a step the choices of an earlier job are read from all files of the step, whichever
 * ranks wrote them; after it, those of this job are written. Routing is host memory, so the device must be a processor.
 */
#include "worker/step/routing.h"

#include "common/base/file.h"
#include "common/base/hash.h"
#include "common/base/log.h"
#include "worker/step/routing_file.h"

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NONE UINT16_MAX
#define PATH_BYTES 4400 /* a path of a job file and a name */

struct routing {
    struct routing_head head;
    const char *save, *replay; /* folders; "": none */
    int64_t first, samples;    /* samples of this rank's microbatches */
    uint16_t *made, *given;    /* [routers, samples, seq, k]; NULL: not wanted */
    int32_t *ids;              /* of one op: [tokens, k] */
    bool cleaned;              /* older files of steps that follow were removed */
};

static const char *text_of(const char *x)
{
    return x ? x : "";
}

static int64_t tokens_of(const struct routing *x)
{
    return x->head.routers * x->samples * x->head.seq;
}

/* ---- life ---- */

static void add_texts(struct hash *h, char *const *texts, int n)
{
    for (int i = 0; i < n; i++)
        hash_add(h, texts[i], strlen(texts[i]) + 1);
}

/* All that makes the order of the data. A job without a mixture has the number that it always had. */
static int64_t data_of(const struct job_spec *job)
{
    const struct job_data *d = &job->data;
    const int ways[] = {(int)d->shuffle, (int)d->documents, (int)d->packing};
    const char *data = text_of(job->data.train_hash);
    struct hash h;
    hash_init(&h);
    hash_add(&h, &job->train.seed, sizeof(job->train.seed));
    hash_add(&h, data, strlen(data));
    add_texts(&h, d->more_hashes, d->n_more_hashes);
    add_texts(&h, d->weights, d->n_weights);
    add_texts(&h, d->passes, d->n_passes);
    if (ways[0] || ways[1] || ways[2])
        hash_add(&h, ways, sizeof(ways));
    if (d->stride)
        hash_add(&h, &d->stride, sizeof(d->stride));
    return (int64_t)(hash_end(&h) & INT64_MAX);
}

static err_t ids_new(const struct routing *x, uint16_t **ret)
{
    *ret = calloc((size_t)(tokens_of(x) * x->head.k) + 1, sizeof(**ret));
    return *ret ? OK : ERR_NOMEM;
}

err_t routing_init(struct engine *e, struct why *why)
{
    const struct job_spec *job = e->config.job;
    const struct program *p = &e->train;
    const char *save = text_of(job->train.save_routing), *replay = text_of(job->train.replay_routing);
    if (!e->has_train || !job->model.experts || (!save[0] && !replay[0]))
        return OK;
    struct routing *x = e->routing = calloc(1, sizeof(*x));
    if (!x)
        return why_set(why, ERR_NOMEM, "out of memory");
    *x = (struct routing){.save = save, .replay = replay};
    x->head = (struct routing_head){.version = ROUTING_VERSION,
                                    .experts = job->model.experts,
                                    .k = job->model.experts_per_token,
                                    .routers = e->config.graph->n_routers,
                                    .seq = p->seq,
                                    .batch = job->train.global_batch,
                                    .data = data_of(job)};
    for (int i = p->first_micro; i < p->end_micro; i++)
        x->samples += p->micros[i].samples;
    x->first = p->first_micro < p->end_micro ? p->micros[p->first_micro].first : 0;
    err_t err = save[0] ? ids_new(x, &x->made) : OK;
    err = err || !replay[0] ? err : ids_new(x, &x->given);
    x->ids = malloc((size_t)(p->max_samples * p->seq * x->head.k + 1) * sizeof(*x->ids));
    return err || !x->ids ? why_set(why, ERR_NOMEM, "out of memory for the choices of routers") : OK;
}

void routing_fini(struct engine *e)
{
    if (!e->routing)
        return;
    free(e->routing->made);
    free(e->routing->given);
    free(e->routing->ids);
    free(e->routing);
    e->routing = NULL;
}

/* ---- reading a step ---- */

static err_t check_head(const struct routing *x, const struct routing_head *h, const char *path, struct why *why)
{
    const struct {
        int64_t here, there;
        const char *what;
    } rows[] = {
        {x->head.step, h->step, "step"},
        {x->head.experts, h->experts, "model.experts"},
        {x->head.k, h->k, "model.experts_per_token"},
        {x->head.routers, h->routers, "the number of layers with experts"},
        {x->head.seq, h->seq, "train.seq"},
        {x->head.batch, h->batch, "train.global_batch"},
        {x->head.data, h->data, "the hash of the data, its order and train.seed"},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
        if (rows[i].here != rows[i].there)
            return why_set(why, ERR_INVALID,
                           "%s belongs to another job: %s is %" PRId64 " there and %" PRId64
                           " here (train.replay_routing)",
                           path, rows[i].what, rows[i].there, rows[i].here);
    return OK;
}

/* The ids of a token of this rank's samples. */
static uint16_t *ids_of(const struct routing *x, uint16_t *all, int64_t router, int64_t sample, int64_t position)
{
    return all + ((router * x->samples + sample - x->first) * x->head.seq + position) * x->head.k;
}

static err_t take_blocks(struct routing *x, struct routing_file *f, const char *path, struct why *why)
{
    struct routing_block b;
    while (routing_file_next(f, &b)) {
        if (b.sample < x->first || b.sample >= x->first + x->samples)
            continue;
        uint16_t *to = ids_of(x, x->given, b.router, b.sample, b.position);
        for (int64_t i = 0; i < b.tokens * x->head.k; i++) {
            if (to[i] != NONE)
                return why_set(why, ERR_INVALID,
                               "%s: another file of this folder has choices of sample %" PRId64 ", position %" PRId64
                               ", too. Save the routing again",
                               path, b.sample, b.position + i / x->head.k);
            to[i] = routing_id(&b, i);
        }
    }
    return OK;
}

static err_t read_file(struct routing *x, const char *path, struct why *why)
{
    struct buf b = {0};
    struct routing_file f;
    err_t err = file_read_plain(path, routing_file_most(&x->head), &b);
    if (err)
        err = why_set(why, err, "%s cannot be read: %s (train.replay_routing)", path, err_text(err));
    else
        err = routing_file_open(b.data, b.len, path, &f, why);
    err = err ? err : check_head(x, &f.head, path, why);
    err = err ? err : take_blocks(x, &f, path, why);
    buf_fini(&b);
    return err;
}

static void step_folder(char path[PATH_BYTES], const char *dir, int64_t step)
{
    snprintf(path, PATH_BYTES, "%s/step-%" PRId64, dir, step);
}

/* How many ranks wrote the folder, by the name of one file; 0: it has no file. */
static int writers_of(const char *folder)
{
    DIR *d = opendir(folder);
    int rank, ranks = 0;
    for (struct dirent *entry; d && !ranks && (entry = readdir(d));) {
        char end;
        if (sscanf(entry->d_name, "%d-of-%d%c", &rank, &ranks, &end) != 2 || ranks < 1)
            ranks = 0;
    }
    if (d)
        closedir(d);
    return ranks;
}

static err_t check_given(const struct routing *x, const char *folder, struct why *why)
{
    const int64_t k = x->head.k;
    for (int64_t i = 0; i < tokens_of(x); i++)
        if (x->given[i * k] == NONE)
            return why_set(why, ERR_INVALID, "%s has no choices of sample %" PRId64 ", position %" PRId64, folder,
                           x->first + i / x->head.seq % x->samples, i % x->head.seq);
    return OK;
}

static err_t read_step(struct routing *x, struct why *why)
{
    char folder[PATH_BYTES], path[PATH_BYTES + 32];
    step_folder(folder, x->replay, x->head.step);
    const int ranks = writers_of(folder);
    if (!ranks)
        return why_set(why, ERR_NOTFOUND,
                       "%s has no files: step %" PRId64 " was not saved there (train.replay_routing)", folder,
                       x->head.step);
    memset(x->given, 0xff, (size_t)(tokens_of(x) * x->head.k) * sizeof(*x->given));
    err_t err = OK;
    for (int i = 0; i < ranks && !err; i++) {
        snprintf(path, sizeof(path), "%s/%d-of-%d", folder, i, ranks);
        err = read_file(x, path, why);
    }
    return err ? err : check_given(x, folder, why);
}

/* ---- writing a step ---- */

/* Adds blocks for the tokens of one sample that this rank has routed. */
static err_t add_sample(const struct routing *x, struct buf *b, int64_t router, int64_t sample)
{
    const int64_t seq = x->head.seq, k = x->head.k;
    const uint16_t *ids = ids_of(x, x->made, router, sample, 0);
    err_t err = OK;
    for (int64_t at = 0, end; at < seq && !err; at = end) {
        end = at + 1;
        if (ids[at * k] == NONE)
            continue;
        while (end < seq && ids[end * k] != NONE)
            end++;
        const struct routing_block block = {router, sample, at, end - at, NULL};
        err = routing_file_add(b, &x->head, &block, ids + at * k);
    }
    return err;
}

static err_t write_step(const struct engine *e, struct why *why)
{
    const struct routing *x = e->routing;
    char folder[PATH_BYTES], path[PATH_BYTES + 32];
    struct buf b = {0};
    step_folder(folder, x->save, x->head.step);
    snprintf(path, sizeof(path), "%s/%d-of-%d", folder, e->config.rank, e->config.world);
    err_t err = routing_file_begin(&b, &x->head);
    for (int64_t r = 0; r < x->head.routers; r++)
        for (int64_t i = 0; i < x->samples && !err; i++)
            err = add_sample(x, &b, r, x->first + i);
    err = err ? err : routing_file_end(&b);
    err = err ? err : file_make_dirs(folder, 0755);
    err = err ? err : file_replace(path, b.data, b.len, 0644);
    buf_fini(&b);
    return err ? why_set(why, err, "%s cannot be written: %s (train.save_routing)", path, err_text(err)) : OK;
}

/* Removes what an earlier attempt saved of this step and later ones, perhaps on other ranks. No rank has written one
 * yet: a step ends with a sum over all ranks. */
static err_t remove_later(struct routing *x, struct why *why)
{
    char path[PATH_BYTES];
    DIR *d = opendir(x->save);
    err_t err = OK;
    for (struct dirent *entry; d && !err && (entry = readdir(d));) {
        int64_t step;
        char end;
        if (sscanf(entry->d_name, "step-%" SCNd64 "%c", &step, &end) != 1 || step < x->head.step)
            continue;
        step_folder(path, x->save, step);
        err = file_remove_tree(path);
    }
    if (d)
        closedir(d);
    return err ? why_set(why, err, "%s cannot be removed: %s (train.save_routing)", path, err_text(err)) : OK;
}

/* ---- the step ---- */

err_t routing_begin(struct engine *e, struct why *why)
{
    struct routing *x = e->routing;
    err_t err = OK;
    if (!x)
        return OK;
    x->head.step = e->step + 1;
    if (x->made)
        memset(x->made, 0xff, (size_t)(tokens_of(x) * x->head.k) * sizeof(*x->made));
    if (x->made && !x->cleaned && e->config.rank == 0)
        err = remove_later(x, why);
    x->cleaned = true;
    return err || !x->given ? err : read_step(x, why);
}

err_t routing_end(struct engine *e, struct why *why)
{
    return e->routing && e->routing->made ? write_step(e, why) : OK;
}

/* Sample and position of own token i of an op: tokens are laid out as [segment][sample][token]. */
static void place_of(const struct run *r, int64_t i, int64_t *ret_sample, int64_t *ret_position)
{
    const struct program *p = r->program;
    const struct micro *m = &p->micros[r->action->micro];
    int s = 0;
    while (s + 1 < p->n_segments && i >= p->segments[s + 1].before * m->samples)
        s++;
    i -= p->segments[s].before * m->samples;
    *ret_sample = m->first + i / p->segments[s].len;
    *ret_position = p->segments[s].pos0 + i % p->segments[s].len;
}

static uint16_t *token_ids(const struct run *r, const struct op *op, uint16_t *all, int64_t i)
{
    const struct graph_dim own0 = {SYM_OWN0, op->m.sym == SYM_OWN};
    int64_t sample, position;
    place_of(r, i + run_dim(r, own0), &sample, &position);
    return ids_of(r->engine->routing, all, r->engine->config.graph->nodes[op->node].router.index, sample, position);
}

static bool wanted(const struct run *r, const uint16_t *ids)
{
    return ids && r->program == &r->engine->train;
}

const int32_t *routing_given(const struct run *r, const struct op *op)
{
    const struct routing *x = r->engine->routing;
    const int64_t tokens = run_dim(r, op->m);
    if (!x || !wanted(r, x->given))
        return NULL;
    for (int64_t i = 0; i < tokens; i++) {
        const uint16_t *ids = token_ids(r, op, x->given, i);
        for (int64_t j = 0; j < x->head.k; j++)
            x->ids[i * x->head.k + j] = ids[j];
    }
    return x->ids;
}

/* Of the ranks of tp that have the same tokens, the first one saves them: the one that counts them. */
void routing_made(const struct run *r, const struct op *op, const int32_t *ids)
{
    const struct routing *x = r->engine->routing;
    const int64_t tokens = run_dim(r, op->m);
    if (!x || !wanted(r, x->made) || op->arg[5].buffer < 0)
        return;
    for (int64_t i = 0; i < tokens; i++) {
        uint16_t *to = token_ids(r, op, x->made, i);
        for (int64_t j = 0; j < x->head.k; j++)
            to[j] = (uint16_t)ids[i * x->head.k + j];
    }
}
