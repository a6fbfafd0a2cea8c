/* What the models' graphs are built with. Private to common/plan/models and to tests
 * that build graphs.
 *
 * A builder remembers its first failure, so that a model is a straight list of calls: every function is harmless after
 * one. Adding a model is a file here and a row in common/conf/models.inc. */
#ifndef DTD_COMMON_PLAN_MODELS_MODELS_H
#define DTD_COMMON_PLAN_MODELS_MODELS_H

#include "common/conf/job.h"
#include "common/plan/graph.h"

struct graph_builder {
    struct graph *g;
    int64_t seq;
    int cap_tensors, cap_nodes, n_sites;
    err_t err;
    struct graph_node sink; /* what graph_add_node answers after a failure */
};

/* The rotation of positions of a model that has rope nodes. */
void graph_set_rope(struct graph_builder *b, const struct job_model *m);
/* A parameter of one (cols 0) or two dimensions; its name is made from fmt; returns its index. */
struct graph_param {
    int unit;
    enum graph_init init;
    double std;
    int64_t rows, cols;
};
int graph_add_param(struct graph_builder *b, struct graph_param p, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
/* A state of the router in this layer, one number per expert, 0 at first; named "layers.<layer>.moe.<name>". */
int graph_add_state(struct graph_builder *b, int layer, const char *name, int64_t experts, bool exact);
/* Tensor parallelism cuts `tensor` (struct graph_cut): dimension `dim` in `units` units, one group each; the activation
 * behind a cut product is cut alike. -1 as tensor is legal. */
void graph_cut(struct graph_builder *b, int tensor, int dim, int64_t units);
/* The same for query heads, `segments` side by side: `heads` units in `kv_heads` groups. */
void graph_cut_heads(struct graph_builder *b, int tensor, int dim, int segments, int64_t heads, int64_t kv_heads);
/* The same for key-value heads, which ranks may share. */
void graph_cut_kv_heads(struct graph_builder *b, int tensor, int dim, int64_t kv_heads);
/* `tensor` has the matrices of so many experts, one below the other. */
void graph_stack_experts(struct graph_builder *b, int tensor, int64_t experts);
/* [tokens, cols]; `layer` -1 outside the layers; named "layer.<layer>.<name>". */
int graph_add_activation(struct graph_builder *b, int layer, const char *name, int64_t cols);
/* [tokens * per_token] kept for the backward. */
int graph_add_stat(struct graph_builder *b, int layer, const char *name, int64_t per_token);
/* ids, targets or begin: [tokens]. */
int graph_add_input(struct graph_builder *b, enum graph_tensor_kind kind, const char *name);
/* A node whose inputs and outputs are all -1 yet; valid until the next call. */
struct graph_node *graph_add_node(struct graph_builder *b, enum graph_op op, int layer);
/* y = x w [+ bias]; w is [out, in], or [in, out] with trans_w; bias may be -1. */
void graph_add_linear(struct graph_builder *b, int layer, int x, int w, int bias, bool trans_w, int y);
/* [tokens * per_token, cols]: the rows that a dispatch makes. */
int graph_add_rows(struct graph_builder *b, int layer, const char *name, int64_t per_token, int64_t cols);
/* int32[tokens * per_token] with `tokens`, else int32[n]. */
int graph_add_index(struct graph_builder *b, int layer, const char *name, bool tokens, int64_t n);
/* float64[sets, n]; `samples`: a set for each sample, else one set. */
int graph_add_numbers(struct graph_builder *b, int layer, const char *name, bool samples, int64_t n);
/* y: each expert's rows of x times its matrix of w; the router has the number of experts of a token. */
void graph_add_experts(struct graph_builder *b, int layer, const struct graph_router *router, int x, int w, int offsets,
                       int y);
/* The loss over logits, and the inputs that the worker fills. */
void graph_add_loss(struct graph_builder *b, int logits);
/* The head of a model with m->labels: their logits from x, by score.weight, and the loss over them. */
void graph_add_labels(struct graph_builder *b, int unit, const struct job_model *m, int x);
/* The window, the cap and the scale of a causal attention in this layer. A window that no sample fills is none. */
void graph_set_scores(const struct graph_builder *b, struct graph_node *attention, const struct job_model *m,
                      int layer);
/* Queries see only keys of their own document: adds the input `begin`, which every attention of the graph reads. */
void graph_add_documents(struct graph_builder *b);

/* graph_build_llama, ...: one function per row of models.inc. `m` is resolved: no zero that stands for a default. */
#define X(id, name, builder, rotary, grouped, head, ffn) \
    void builder(struct graph_builder *b, const struct job_model *m);
#include "common/conf/models.inc"
#undef X

#endif
