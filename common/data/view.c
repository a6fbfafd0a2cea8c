/* A packed sample is a list of pieces of documents. The list is a pure function of the set and the length, computed
 * when the view is opened, so a position is all that a checkpoint needs here too. A document of n tokens has n - 1
 * predictions, and its last token needs no place of its own. Documents that are longer than a sample fill samples
 * alone, and their rest is packed as a document. Pieces are placed from the longest to the shortest, each into the
 * sample with the least room in which it fits (best-fit decreasing). */
#include "common/data/view.h"

#include "common/data/pack.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

struct data_view {
    const struct data_set *set;
    int64_t seq, stride; /* a cut sample begins every `stride` tokens */
    bool separate;
    int64_t labels;      /* above 0: a sample is a document, which begins it, and its label */
    struct packing pack; /* best_fit; rows NULL: wrapped */
};

int64_t view_stride(const struct job_data *d, int64_t seq)
{
    return d->stride ? d->stride : seq;
}

/* ---- opening ---- */

static err_t add_pieces(struct packing *p, const struct data_document *d, int64_t seq)
{
    err_t err = OK;
    for (int64_t at = d->begin; !err && at < d->end - 1; at += seq)
        err = packing_add(p, at, d->end - 1 - at < seq ? d->end - 1 - at : seq);
    return err;
}

static err_t pack_documents(struct data_view *v, struct why *why)
{
    struct data_document d = {0};
    err_t err = OK;
    for (int64_t at = 0; !err && at < data_tokens(v->set); at = d.end) {
        err = data_document(v->set, at, &d);
        err = err ? err : add_pieces(&v->pack, &d, v->seq);
    }
    err = err ? err : packing_finish(&v->pack, v->seq);
    return err ? why_set(why, err, "data.packing: %s", err_text(err)) : OK;
}

static err_t check_samples(const struct data_view *v, struct why *why)
{
    const int64_t tokens = data_tokens(v->set);
    if (view_samples(v) > 0)
        return OK;
    return why_set(why, ERR_INVALID,
                   "%" PRId64 " tokens, but one sample of train.seq %" PRId64 " needs %" PRId64
                   ". Provide more text, or set train.seq to at most %" PRId64,
                   tokens, v->seq, v->seq + 1, tokens > 1 ? tokens - 1 : 1);
}

static err_t check_labels(const struct data_set *set, int64_t labels, struct why *why)
{
    const int64_t found = data_labels(set);
    if (found && !labels)
        return why_set(why, ERR_INVALID,
                       "the set was prepared with labels (data.label), but the model has none: set model.labels to at "
                       "least %" PRId64,
                       found);
    if (labels && !found)
        return why_set(why, ERR_INVALID,
                       "the set was prepared without labels, but model.labels is %" PRId64
                       ": leave its hash out, so that dtctl prepares it again",
                       labels);
    return found <= labels ? OK
                           : why_set(why, ERR_INVALID,
                                     "a document has the label %" PRId64 ", but model.labels is %" PRId64
                                     ": write at least %" PRId64,
                                     found - 1, labels, found);
}

err_t view_open(const struct data_set *set, const struct job_data *d, int64_t seq, int64_t labels,
                struct data_view **ret, struct why *why)
{
    const bool separate = d->documents == DOCUMENTS_SEPARATE;
    if (check_labels(set, labels, why))
        return ERR_INVALID;
    if (separate && !data_documents(set))
        return why_set(why, ERR_INVALID,
                       "the files have no boundaries between documents, because files of text are joined: set "
                       "data.documents to joined, or use a format with documents (jsonl, ..)");
    struct data_view *v = calloc(1, sizeof(*v));
    if (!v)
        return why_set(why, ERR_NOMEM, "%s", err_text(ERR_NOMEM));
    *v = (struct data_view){
        .set = set, .seq = seq, .stride = view_stride(d, seq), .separate = separate, .labels = labels};
    err_t err = d->packing == PACKING_BEST_FIT ? pack_documents(v, why) : OK;
    err = err ? err : check_samples(v, why);
    if (err) {
        view_close(v);
        return err;
    }
    *ret = v;
    return OK;
}

void view_close(struct data_view *v)
{
    if (v)
        packing_fini(&v->pack);
    free(v);
}

int64_t view_samples(const struct data_view *v)
{
    const int64_t starts = data_tokens(v->set) - v->seq; /* the last token is a target only */
    if (v->labels)
        return data_documents(v->set);
    return v->pack.rows ? v->pack.n_rows : starts > 0 ? (starts - 1) / v->stride + 1 : 0;
}

bool view_masks(const struct data_view *v)
{
    return v->separate || v->labels || data_weighted(v->set);
}

double view_filled(const struct data_view *v)
{
    int64_t inputs = 0;
    for (int64_t i = 0; i < v->pack.n_pieces; i++)
        inputs += v->pack.pieces[i].n;
    return v->pack.rows ? (double)inputs / ((double)v->pack.n_rows * (double)v->seq) : 1;
}

/* ---- documents with labels ---- */

/* The first `seq` tokens of a document. Its last token is its label, the target at the last of them. */
static err_t labelled_sample(const struct data_view *v, int64_t index, int32_t *ids, int32_t *targets)
{
    struct data_document d;
    err_t err = data_document_at(v->set, index, &d);
    const int64_t tokens = err ? 0 : d.end - 1 - d.begin, n = tokens < v->seq ? tokens : v->seq;
    if (!err && n < 1)
        return ERR_CORRUPT;
    memset(ids + n, 0, (size_t)(v->seq - n) * sizeof(*ids));
    memset(targets, 0xff, (size_t)v->seq * sizeof(*targets));
    err = err ? err : data_copy(v->set, d.begin, n, ids);
    err = err ? err : data_copy(v->set, d.end - 1, 1, &targets[n - 1]);
    return !err && targets[n - 1] >= v->labels ? ERR_CORRUPT : err;
}

/* ---- cut samples ---- */

/* Begins and weights of a cut sample, in memory that the caller frees. */
static err_t marks_of(const struct data_view *v, int64_t index, int32_t **ret_begins, uint8_t **ret_weights)
{
    int32_t *begins = malloc((size_t)v->seq * (sizeof(*begins) + 1));
    if (!begins)
        return ERR_NOMEM;
    uint8_t *weights = (uint8_t *)(begins + v->seq);
    err_t err = data_window_marks(v->set, v->seq, index * v->stride, v->separate, begins, weights);
    if (err) {
        free(begins);
        return err;
    }
    *ret_begins = begins;
    *ret_weights = weights;
    return OK;
}

static err_t cut_sample(const struct data_view *v, int64_t index, int32_t *ids, int32_t *targets)
{
    int32_t *begins;
    uint8_t *weights;
    err_t err = data_window(v->set, v->seq, index * v->stride, ids, targets);
    if (err || !view_masks(v))
        return err;
    err = marks_of(v, index, &begins, &weights);
    if (err)
        return err;
    for (int64_t i = 0; i < v->seq; i++)
        targets[i] = weights[i] ? targets[i] : -1;
    free(begins);
    return OK;
}

/* ---- packed samples ---- */

static err_t put_piece(const struct data_view *v, const struct packing_piece *p, int32_t *ids, int32_t *targets)
{
    const int64_t n = p->n;
    int32_t *tokens = malloc((size_t)(n + 1) * (sizeof(*tokens) + 1));
    if (!tokens)
        return ERR_NOMEM;
    uint8_t *weights = (uint8_t *)(tokens + n + 1);
    err_t err = data_read(v->set, p->at, n + 1, tokens, weights);
    for (int64_t i = 0; !err && i < n; i++) {
        ids[i] = tokens[i];
        targets[i] = weights[i + 1] ? tokens[i + 1] : -1;
    }
    free(tokens);
    return err;
}

static err_t packed_sample(const struct data_view *v, int64_t index, int32_t *ids, int32_t *targets)
{
    int64_t place = 0;
    err_t err = OK;
    for (int64_t i = v->pack.rows[index]; !err && i < v->pack.rows[index + 1]; i++) {
        err = put_piece(v, &v->pack.pieces[i], ids + place, targets + place);
        place += v->pack.pieces[i].n;
    }
    memset(ids + place, 0, (size_t)(v->seq - place) * sizeof(*ids));
    memset(targets + place, 0xff, (size_t)(v->seq - place) * sizeof(*targets));
    return err;
}

static void packed_begins(const struct data_view *v, int64_t index, int32_t *ret)
{
    int64_t place = 0, begin = 0;
    for (int64_t i = v->pack.rows[index]; i < v->pack.rows[index + 1]; i++)
        for (begin = place; place < begin + v->pack.pieces[i].n; place++)
            ret[place] = (int32_t)begin;
    for (begin = place; place < v->seq; place++)
        ret[place] = (int32_t)begin;
}

/* ---- all ---- */

static bool has_sample(const struct data_view *v, int64_t index)
{
    return index >= 0 && index < view_samples(v);
}

err_t view_sample(const struct data_view *v, int64_t index, int32_t *ret_ids, int32_t *ret_targets)
{
    if (!has_sample(v, index))
        return ERR_INVALID;
    if (v->labels)
        return labelled_sample(v, index, ret_ids, ret_targets);
    return v->pack.rows ? packed_sample(v, index, ret_ids, ret_targets) : cut_sample(v, index, ret_ids, ret_targets);
}

err_t view_begins(const struct data_view *v, int64_t index, int32_t *ret)
{
    int32_t *begins;
    uint8_t *weights;
    if (!has_sample(v, index))
        return ERR_INVALID;
    if (v->labels)
        memset(ret, 0, (size_t)v->seq * sizeof(*ret));
    if (v->pack.rows)
        packed_begins(v, index, ret);
    if (v->labels || v->pack.rows)
        return OK;
    err_t err = marks_of(v, index, &begins, &weights);
    if (err)
        return err;
    memcpy(ret, begins, (size_t)v->seq * sizeof(*ret));
    free(begins);
    return OK;
}

err_t view_count(const struct data_view *v, int64_t index, int64_t *ret)
{
    int64_t n = 0;
    int32_t *ids = malloc(2 * (size_t)v->seq * sizeof(*ids));
    err_t err = !ids ? ERR_NOMEM : view_sample(v, index, ids, ids + v->seq);
    for (int64_t i = 0; !err && i < v->seq; i++)
        n += ids[v->seq + i] >= 0;
    free(ids);
    if (!err)
        *ret = n;
    return err;
}
