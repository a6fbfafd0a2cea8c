/* Operators' names, and the counts that estimates read. */
#include "common/plan/graph.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

const char *graph_op_name(enum graph_op op)
{
#define X(kind, name, activation) name,
    static const char *const names[] = {GRAPH_OP_LIST(X)};
#undef X
    return (unsigned)op < GO_COUNT ? names[op] : "?";
}

bool graph_op_is_activation(enum graph_op op)
{
#define X(kind, name, activation) activation,
    static const bool is[] = {GRAPH_OP_LIST(X)};
#undef X
    return is[op];
}

int graph_shape(const struct graph_tensor *t, int64_t ret[GRAPH_SHAPE_MAX])
{
    int n = 0;
    if (t->experts)
        ret[n++] = t->experts;
    ret[n++] = t->experts ? t->dim[0].factor / t->experts : t->dim[0].factor;
    if (t->ndim > 1)
        ret[n++] = t->dim[1].factor;
    return n;
}

static struct box box_of_experts(const struct box *box, int64_t expert, int64_t experts, int64_t row, int64_t rows)
{
    return (struct box){.ndim = 3, .offset = {expert, row, box->offset[1]}, .size = {experts, rows, box->size[1]}};
}

int graph_boxes(const struct graph_tensor *t, const struct box *box, struct box ret[GRAPH_BOXES_MAX])
{
    if (!t->experts) {
        ret[0] = *box;
        return 1;
    }
    const int64_t rows = t->dim[0].factor / t->experts;
    int n = 0;
    for (int64_t at = box->offset[0], end = at + box->size[0], next; at < end; at = next) {
        int64_t expert = at / rows, row = at % rows, whole = row ? 0 : (end - at) / rows;
        next = whole ? at + whole * rows : (expert + 1) * rows < end ? (expert + 1) * rows : end;
        ret[n++] = whole ? box_of_experts(box, expert, whole, 0, rows) : box_of_experts(box, expert, 1, row, next - at);
    }
    return n;
}

int64_t graph_capacity(const struct graph_router *r, int64_t seq)
{
    const double most = (double)(seq * r->k) / (double)r->experts * r->capacity;
    return most < (double)seq ? (int64_t)ceil(most * (1 - 1e-9)) : seq; /* a token chooses an expert at most once */
}

void graph_fini(struct graph *g)
{
    free(g->tensors);
    free(g->nodes);
    for (int i = 0; i < GRAPH_ROPES; i++)
        free(g->ropes[i].frequency);
    memset(g, 0, sizeof(*g));
}

double graph_flops_per_token(const struct graph *g, const struct job_model *model, int64_t seq, bool causal_half)
{
    double keys = 0, window = (double)(model->window < seq ? model->window : seq);
    for (int64_t l = 0; l < model->layers; l++)
        keys += job_layer_has_window(model, l) ? 2 * window - window * window / (double)seq : (double)seq;
    double scores = keys * (double)(model->heads * job_head_dim(model));
    return 6.0 * (double)g->n_params_matmul + (causal_half ? 6.0 : 12.0) * scores;
}
