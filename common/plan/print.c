/* The listing of a program: one line per buffer, op and action. A range of ops that several actions share is printed
 * once. Golden tests fix the format; docs/internals/program.md explains it. */
#include "common/plan/program.h"

#include <inttypes.h>
#include <stdlib.h>

static const char *const space_names[SPACE_COUNT] = {"param", "opt", "grad", "work", "sent", "shared", "host", "cache"};
static const char *const mode_names[] = {"train", "eval", "generate", "decode"};

static void print_dim(FILE *out, struct graph_dim d)
{
    /* T tokens and B samples of the microbatch; O own tokens, O0 index of the first; O.2 and O0.2: those of member 2;
     * R rows that arrived for experts; U runs of tokens. */
    static const char *const symbols[] = {[SYM_ONE] = "",    [SYM_TOKENS] = "T",  [SYM_SAMPLES] = "B", [SYM_OWN] = "O",
                                          [SYM_OWN0] = "O0", [SYM_ARRIVED] = "R", [SYM_RUNS] = "U"};
    if (d.sym == SYM_ONE || d.factor != 1)
        fprintf(out, "%" PRId64, d.factor);
    if (d.sym < SYM_MEMBER)
        fputs(symbols[d.sym], out);
    else
        fprintf(out, "%s.%d", (d.sym - SYM_MEMBER) % 2 ? "O0" : "O", (int)(d.sym - SYM_MEMBER) / 2);
}

static void print_buffer(const struct buffer *b, FILE *out)
{
    fprintf(out, "  %-5s %10" PRId64 " +%-9" PRId64 " %s[", space_names[b->space], b->offset, b->bytes, b->name);
    for (int d = 0; d < b->ndim; d++) {
        fputs(d ? "," : "", out);
        print_dim(out, b->dim[d]);
    }
    fprintf(out, "] %s", dtype_name(b->dtype));
    if (b->pitch)
        fprintf(out, " rows every %" PRId64, b->pitch);
    if (b->slots > 1)
        fprintf(out, " x%d every %" PRId64, b->slots, b->slot_bytes);
    fputc('\n', out);
}

static void print_operand(const struct program *p, const struct op_operand *a, char mode, FILE *out)
{
    if (a->buffer < 0) {
        fputs(" -", out);
        return;
    }
    fprintf(out, " %s%s", mode == 'a' ? "+" : mode == 'w' ? "=" : "", p->buffers[a->buffer].name);
    if (a->col)
        fprintf(out, "[,%" PRId64 ":]", a->col);
    if (a->offset.factor) {
        fputc('[', out);
        print_dim(out, a->offset);
        fputs(":]", out);
    }
}

static void print_shape(const struct op *op, FILE *out)
{
    const struct graph_dim dims[] = {op->m, op->n, op->k};
    int n = 3;
    while (n > 1 && dims[n - 1].sym == SYM_ONE && dims[n - 1].factor == 1)
        n--;
    fputs(" (", out);
    for (int i = 0; i < n; i++) {
        fputs(i ? "," : "", out);
        print_dim(out, dims[i]);
    }
    fputc(')', out);
}

static void print_flags(const struct op *op, FILE *out)
{
    static const char *const names[] = {"ta",    "tb",   "acc",       "inverse", "grad",   "causal",
                                        "decay", "gelu", "gelu_grad", "acc_q",   "acc_kv", "plus_one"};
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        if (op->flags >> i & 1)
            fprintf(out, " %s", names[i]);
}

/* Fields that only some kinds use: positions, a part of the keys, vocabulary or columns; the number of a dropout. */
static void print_parts(const struct op *op, FILE *out)
{
    const struct {
        const char *name;
        int64_t value;
    } rows[] = {{"seq", op->seq},        {"seq_kv", op->seq_kv}, {"pos", op->pos0},
                {"pos_kv", op->pos0_kv}, {"window", op->window}, {"col", op->col0}};
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
        if (rows[i].value)
            fprintf(out, " %s %" PRId64, rows[i].name, rows[i].value);
    if (op->vocab_hi)
        fprintf(out, " vocab %" PRId64 "..%" PRId64, op->vocab_lo, op->vocab_hi - 1);
    if (op->round)
        fprintf(out, " round %d", op->round);
    if (op->softcap != 0)
        fprintf(out, " softcap %g", op->softcap);
    if (op->scale != 0)
        fprintf(out, " scale %g", op->scale);
    if (op->kind == OP_DROPOUT)
        fprintf(out, " rate %g site %d", op->rate, op->site);
}

static void print_peers(const struct op *op, FILE *out)
{
    if (op->kind == OP_UNIT_GATHER || op->kind == OP_UNIT_SCATTER)
        fprintf(out, " unit %d", op->unit);
    if (op->group >= 0)
        fprintf(out, " group %d", op->group);
    if (op->kind == OP_SEND || op->kind == OP_SHIFT)
        fprintf(out, " to %d", op->peer);
    if (op->kind == OP_RECV || op->kind == OP_SHIFT)
        fprintf(out, " from %d", op->kind == OP_RECV ? op->peer : op->from);
}

static void print_op(const struct program *p, const struct op *op, FILE *out)
{
    static const char *const streams[STREAM_COUNT] = {"", "comm: ", "copy: "};
    int operands = OP_MAX_OPERANDS; /* absent operands at the end are not printed */
    while (operands > 0 && op->arg[operands - 1].buffer < 0)
        operands--;
    fprintf(out, "    %s%s", streams[op->stream], op_name(op->kind));
    print_shape(op, out);
    print_flags(op, out);
    print_parts(op, out);
    for (int i = 0; i < operands; i++)
        print_operand(p, &op->arg[i], op_mode(op, i), out);
    print_peers(op, out);
    for (int i = 0; i < OP_MAX_WAITS; i++)
        if (op->wait[i] >= 0)
            fprintf(out, " wait %d", op->wait[i]);
    if (op->event >= 0)
        fprintf(out, " event %d", op->event);
    fputc('\n', out);
}

static void print_same(const struct program *p, int index, FILE *out)
{
    const struct action *a = &p->actions[index];
    if (a->micro >= 0)
        fprintf(out, ": ops as for micro %d\n", a->micro);
    else
        fprintf(out, ": ops as in action %d\n", index);
}

static void print_action(const struct program *p, int index, FILE *out)
{
    const struct action *a = &p->actions[index];
    fprintf(out, "  %s", action_name(a->kind));
    if (a->chunk)
        fprintf(out, " chunk %d", a->chunk);
    if (a->micro >= 0)
        fprintf(out, " micro %d (%" PRId64 " samples)", a->micro, p->micros[a->micro].samples);
    if (a->slot)
        fprintf(out, " slot %d", a->slot);
    if (a->unit >= 0)
        fprintf(out, " unit %d", a->unit);
    for (int i = 0; i < index; i++) {
        if (p->actions[i].first_op == a->first_op && p->actions[i].n_ops == a->n_ops && a->n_ops) {
            print_same(p, i, out);
            return;
        }
    }
    fputs(":\n", out);
    for (int i = 0; i < a->n_ops; i++)
        print_op(p, &p->ops[a->first_op + i], out);
}

void program_print(const struct program *p, const struct graph *g, FILE *out)
{
    (void)g;
    fprintf(out, "program %s rank %d of", mode_names[p->mode], p->rank);
    for (int a = 0; a < AXIS_COUNT; a++)
        fprintf(out, " %s=%d", mesh_axis_name((enum mesh_axis)a), p->mesh.size[a]);
    fprintf(out, ", %s", dtype_name(p->dtype));
    if (p->wide != p->dtype)
        fprintf(out, " with parameters in %s", dtype_name(p->wide));
    fprintf(out, ", seq %" PRId64 ", micros %d..%d of %d\n", p->seq, p->first_micro, p->end_micro, p->n_micros);
    fputs("bytes", out);
    for (int s = 0; s < SPACE_COUNT; s++)
        if (s != SPACE_CACHE || p->space_bytes[s])
            fprintf(out, " %s %" PRId64, space_names[s], p->space_bytes[s]);
    fprintf(out, " arena %" PRId64 "\nbuffers\n", p->arena_bytes);
    for (int i = 0; i < p->n_buffers; i++)
        print_buffer(&p->buffers[i], out);
    if (p->validate)
        fprintf(out, "ahead of the step before: actions 0 to %d; it then runs from action %d on\n", p->n_ahead - 1,
                p->validate);
    fputs("actions\n", out);
    for (int i = 0; i < p->n_actions; i++)
        print_action(p, i, out);
}
