/* Names of operators, the extents of dimensions, and the end of a program. */
#include "common/plan/program.h"

#include <stdlib.h>
#include <string.h>

const char *op_name(enum op_kind kind)
{
#define X(op, name, operands) name,
    static const char *const names[] = {OP_LIST(X)};
#undef X
    return (unsigned)kind < OP_KIND_COUNT ? names[kind] : "?";
}

const char *op_operands(enum op_kind kind)
{
#define X(op, name, operands) operands,
    static const char *const all[] = {OP_LIST(X)};
#undef X
    return (unsigned)kind < OP_KIND_COUNT ? all[kind] : "";
}

char op_mode(const struct op *op, int i)
{
    char mode = op_operands(op->kind)[i];
    bool add_q = op->kind == OP_ATTENTION_GRAD && i == 6 && op->flags & OPF_ACC_Q;
    bool add_kv = op->kind == OP_ATTENTION_GRAD && i > 6 && mode == 'w' && op->flags & OPF_ACC_KV;
    bool add_grouped = op->kind == OP_GROUPED_GEMM && i == 2 && op->flags & OPF_ACC;
    if (op->kind == OP_EXCHANGE && i == 2 && op->round && op->flags & OPF_INVERSE)
        return 'a'; /* other rounds write the other rows */
    if (op->kind == OP_GROUPED_GEMM && i == 4)
        return op->flags & OPF_TRANS_A ? 'w' : 'r';
    if (add_q || add_kv || add_grouped || (op->kind == OP_UNIT_SCATTER && i == 1 && op->flags & OPF_ACC))
        return 'a';
    if (op->kind != OP_GEMM)
        return mode;
    if (i == 3 && op->flags & OPF_ACC)
        return 'a';
    if (i == 4)
        return op->flags & OPF_GELU ? 'w' : 'r';
    return mode;
}

const char *action_name(enum action_kind kind)
{
#define X(action, name) name,
    static const char *const names[] = {ACTION_LIST(X)};
#undef X
    return (unsigned)kind < ACT_COUNT ? names[kind] : "?";
}

int program_dim_member(const struct program *p, enum graph_sym sym, bool *ret_first)
{
    *ret_first = sym == SYM_OWN0 || (sym >= SYM_MEMBER && (sym - SYM_MEMBER) % 2);
    if (sym == SYM_OWN || sym == SYM_OWN0)
        return p->rank % p->mesh.size[AXIS_TP]; /* tp is the innermost axis */
    return sym >= SYM_MEMBER ? (int)(sym - SYM_MEMBER) / 2 : -1;
}

/* Own tokens are a member's part of all tokens, split over the tp group. Without sequence parallelism only experts use
 * these symbols. */
static int64_t own_tokens(const struct program *p, enum graph_sym sym, int64_t tokens)
{
    bool first;
    int64_t lo, hi;
    layout_split(tokens, p->mesh.size[AXIS_TP], program_dim_member(p, sym, &first), &lo, &hi);
    return first ? lo : hi - lo;
}

int program_find(const struct program *p, enum action_kind kind, int from)
{
    for (int i = from; i < p->n_actions; i++)
        if (p->actions[i].kind == kind)
            return i;
    return -1;
}

int64_t program_dim(const struct program *p, struct graph_dim d, int64_t samples)
{
    int64_t tokens = samples * (p->own_seq ? p->own_seq : p->seq);
    switch (d.sym) {
    case SYM_ONE:
        return d.factor;
    case SYM_SAMPLES:
        return d.factor * samples;
    case SYM_TOKENS:
        return d.factor * tokens;
    case SYM_ARRIVED:
        return d.factor * p->max_arrived;
    case SYM_RUNS:
        return d.factor * p->sequences;
    default:
        return d.factor * own_tokens(p, d.sym, tokens);
    }
}

/* Tokens of a sample that the rank with this index on cp has: its first and its last part (ring attention). */
static int64_t seq_of(const struct program *p, int index)
{
    const int cp = p->mesh.size[AXIS_CP], parts[] = {index, 2 * cp - 1 - index};
    int64_t n = 0, lo, hi;
    for (int i = 0; i < 2; i++) {
        layout_split(p->seq, 2 * cp, parts[i], &lo, &hi);
        n += hi - lo;
    }
    return n;
}

int64_t program_group_tokens(const struct program *p, int64_t samples)
{
    const struct sharding *s = &p->sharding;
    const int *share = s->ep.share, tp = s->mesh.size[AXIS_TP];
    const int cp_0 = s->coord[AXIS_CP] / share[AXIS_CP] * share[AXIS_CP];
    const int tp_0 = s->coord[AXIS_TP] / share[AXIS_TP] * share[AXIS_TP];
    int64_t n = 0;
    for (int i = cp_0; i < cp_0 + share[AXIS_CP]; i++)
        for (int j = tp_0; j < tp_0 + share[AXIS_TP]; j++) {
            int64_t lo, hi;
            layout_split(samples * seq_of(p, i), tp, j, &lo, &hi);
            n += hi - lo;
        }
    return n * share[AXIS_FSDP];
}

void program_fini(struct program *p)
{
    for (int i = 0; i < p->n_groups; i++)
        free(p->groups[i].ranks);
    free(p->groups);
    for (int u = 0; u < p->n_units; u++) {
        for (int i = 0; i < p->units[u].n; i++)
            free(p->units[u].parts[i].counts);
        free(p->units[u].parts);
    }
    free(p->units);
    sharding_fini(&p->sharding);
    free(p->buffers);
    free(p->ops);
    free(p->actions);
    free(p->micros);
    free(p->param_buffer);
    free(p->grad_buffer);
    free(p->m_buffer);
    free(p->v_buffer);
    memset(p, 0, sizeof(*p));
}
