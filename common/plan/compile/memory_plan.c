/* Offsets of buffers that are live for a part of the step: two of them may share bytes when no op needs both.
 *
 *   offset
 *     ^   +-----------+      +-----+
 *     |   |  gate     |      | o   |     live ranges over the ops of a step (width) and bytes (height)
 *     |   +-----------+------+-----+
 *     |   |  residual stream       |
 *     +---+------------------------+----> ops
 *
 * Buffers that another pass has planned at the start of a space keep their offsets. The lifetimes of the others follow
 * from the actions, walked backwards: a value is live from the op that writes it to the op that reads it last, in
 * whichever actions these are. Actions share lists of ops, so a lifetime is a range of positions in a list, and a
 * buffer is live at a position if it is live there in any action that runs the list. A part of a run has its own
 * lifetime; the run is live while one of its parts is.
 *
 * Placement is first fit by decreasing size: the largest buffer first, each at the lowest offset that is free during
 * its whole lifetime. On transformers, whose large buffers nest, the result is within a few per cent of the lower
 * bound, the most bytes live at one op. The cost is quadratic in the number of buffers, some thousands.
 *
 * Buffers with an instance per microbatch in flight are placed in the same way within a stripe, by the lifetime of one
 * microbatch; a chunk has one stripe per slot, one after another. */
#include "common/plan/compile/internal.h"
#include "common/plan/mutant.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#define ALIGN 64

/* Positions in the sequence of all lists; a list has a position for its entry, for each op, and for its exit. */
struct list_span {
    int lo, hi;
};

/* What a list does with a buffer. */
struct list_use {
    int buffer;
    int first, last; /* ops in the list */
    int named;       /* its index in memory_pass.named */
    bool reads;      /* the first of them reads a value from before the list */
};

/* Sets of named buffers: bit i is memory_pass.named[i]. */
struct op_list {
    int first_op, n_ops, entry;
    struct list_use *uses;
    int n_uses;
    uint64_t *used, *read;             /* buffers that it uses; those of which it reads an earlier value */
    uint64_t *met, *leaving, *passing; /* with a recorded lifetime: in the list; to its exit; all through it */
};

/* Buffers whose instances are live together: those of a chunk's microbatches, or all buffers with one instance. */
struct instance_family {
    int chunk, slots;
    uint64_t *members, *live; /* live: a set for each slot */
};

struct buffer_life {
    int buffer, chunk; /* chunk: -1 where there is one instance */
    int64_t bytes, offset, align;
    struct list_span *spans; /* ascending */
    int n_spans;
};

struct memory_pass {
    struct compiler *c;
    struct program *p;
    struct op_list *lists;
    int n_lists;
    int *list_of;             /* by first op; -1 */
    int *use_of;              /* by buffer: its use in the list that is being read; -1 */
    struct list_use *uses;    /* of the list that is being read */
    int *next;                /* by buffer: the next part of the same run, or -1 */
    int *parts;               /* by buffer: its first part, -1 */
    int *chunk;               /* by buffer: the chunk of its microbatches, -1: no action uses it */
    struct list_span **alive; /* by list, then by buffer: live positions; hi < lo: none */
    int *named;               /* buffers that an action uses */
    int n_named, words;       /* words: 64-bit words in a set of them */
    struct instance_family *families;
    int n_families;
};

static int64_t align(int64_t bytes, int64_t to)
{
    assert(to > 0);
    return (bytes + to - 1) / to * to;
}

static bool is_packed(const struct buffer *b)
{
    return !b->planned && (b->space == SPACE_WORK || b->space == SPACE_SHARED || b->space == SPACE_GRAD);
}

static void *allocate(struct memory_pass *k, size_t n, size_t size)
{
    void *p = calloc(n + 1, size);
    if (!p)
        k->c->err = ERR_NOMEM;
    return p;
}

static void fill(int *index, int n)
{
    for (int i = 0; index && i < n; i++)
        index[i] = -1;
}

/* ---- uses of buffers ---- */

static void use_buffer(struct memory_pass *k, struct op_list *l, int b, int at, char mode)
{
    for (int part = k->parts[b]; part >= 0; part = k->next[part])
        use_buffer(k, l, part, at, mode);
    if (k->parts[b] >= 0 || !is_packed(&k->p->buffers[b]))
        return;
    if (k->use_of[b] < 0) {
        k->use_of[b] = l->n_uses;
        k->uses[l->n_uses++] = (struct list_use){.buffer = b, .first = at, .reads = mode != 'w'};
    }
    struct list_use *u = &k->uses[k->use_of[b]];
    /* An op that reads and writes the buffer reads the earlier value. */
    u->reads |= u->first == at && mode != 'w';
    u->last = MUTANT(LIFE_ONE_SHORT) && at > u->first ? at - 1 : at;
}

static void read_op(struct memory_pass *k, struct op_list *l, int at)
{
    const struct op *op = &k->p->ops[l->first_op + at];
    for (int i = 0; op_mode(op, i); i++)
        if (op->arg[i].buffer >= 0)
            use_buffer(k, l, op->arg[i].buffer, at, op_mode(op, i));
}

static void read_list(struct memory_pass *k, struct op_list *l)
{
    for (int i = 0; i < l->n_ops; i++)
        read_op(k, l, i);
    l->uses = allocate(k, (size_t)l->n_uses, sizeof(*l->uses));
    for (int i = 0; i < l->n_uses; i++)
        k->use_of[k->uses[i].buffer] = -1;
    if (l->uses)
        memcpy(l->uses, k->uses, (size_t)l->n_uses * sizeof(*l->uses));
}

static void read_lists(struct memory_pass *k)
{
    const struct program *p = k->p;
    int entry = 0;
    k->lists = allocate(k, (size_t)p->n_actions, sizeof(*k->lists));
    for (int a = 0; a < p->n_actions && !k->c->err; a++) {
        const struct action *action = &p->actions[a];
        if (!action->n_ops || k->list_of[action->first_op] >= 0)
            continue;
        k->list_of[action->first_op] = k->n_lists;
        k->lists[k->n_lists] = (struct op_list){.first_op = action->first_op, .n_ops = action->n_ops, .entry = entry};
        entry += action->n_ops + 2;
        read_list(k, &k->lists[k->n_lists++]);
    }
}

/* ---- lifetimes ---- */

static void widen(struct list_span *s, int lo, int hi)
{
    bool empty = s->hi < s->lo;
    s->lo = empty || lo < s->lo ? lo : s->lo;
    s->hi = empty || hi > s->hi ? hi : s->hi;
}

static void set_add(uint64_t *set, int i)
{
    set[i / 64] |= (uint64_t)1 << i % 64;
}

/* The instance of a family's buffers that an action uses; -1: none. */
static int instance(const struct instance_family *f, const struct action *a)
{
    if (f->slots == 1)
        return 0;
    return a->chunk == f->chunk && a->slot < f->slots ? a->slot : -1;
}

/* Records lifetimes in the list for buffers of word w: `names` are used in it, `leaves` are also live after it,
 * `passes` are live throughout without being used. */
static void meet_word(struct memory_pass *k, struct op_list *l, int w, uint64_t names, uint64_t leaves, uint64_t passes)
{
    struct list_span *alive = k->alive[l - k->lists];
    for (uint64_t left = passes; left; left &= left - 1)
        widen(&alive[k->named[64 * w + __builtin_ctzll(left)]], l->entry, l->entry + l->n_ops + 1);
    for (int i = 0; i < l->n_uses && (names | leaves); i++) {
        const struct list_use *u = &l->uses[i];
        int lo = u->reads ? l->entry : l->entry + 1 + u->first, bit = u->named - 64 * w;
        if (bit < 0 || bit >= 64 || !((names | leaves) >> bit & 1))
            continue;
        widen(&alive[u->buffer], lo, leaves >> bit & 1 ? l->entry + l->n_ops + 1 : l->entry + 1 + u->last);
    }
    l->met[w] |= names;
    l->leaving[w] |= leaves;
    l->passing[w] |= passes;
}

/* From the buffers live after an action to those live before it. Most actions repeat earlier ones, so nearly all
 * lifetimes are recorded already. */
static void step_back(struct memory_pass *k, const struct action *a)
{
    struct op_list *l = &k->lists[k->list_of[a->first_op]];
    for (int n = 0; n < k->n_families; n++) {
        const struct instance_family *f = &k->families[n];
        const int slot = instance(f, a);
        for (int w = 0; w < k->words && slot >= 0; w++) {
            uint64_t *live = &f->live[slot * k->words + w], used = l->used[w] & f->members[w];
            uint64_t names = used & ~l->met[w], leaves = used & *live & ~l->leaving[w];
            uint64_t passes = *live & ~used & ~l->passing[w];
            if (names | leaves | passes)
                meet_word(k, l, w, names, leaves, passes);
            *live = (*live & ~used) | (used & l->read[w]);
        }
    }
}

/* A buffer with several instances belongs to the chunk of the first action that uses it. */
static void find_chunks(struct memory_pass *k)
{
    for (int a = 0; a < k->p->n_actions; a++) {
        const struct action *action = &k->p->actions[a];
        const struct op_list *l = action->n_ops ? &k->lists[k->list_of[action->first_op]] : NULL;
        for (int i = 0; l && i < l->n_uses; i++)
            if (k->chunk[l->uses[i].buffer] < 0)
                k->chunk[l->uses[i].buffer] = action->chunk;
    }
}

static void name_buffers(struct memory_pass *k)
{
    int *index = allocate(k, (size_t)k->p->n_buffers, sizeof(*index));
    for (int b = 0; b < k->p->n_buffers && index; b++) {
        index[b] = k->n_named;
        if (k->chunk[b] >= 0)
            k->named[k->n_named++] = b;
    }
    k->words = (k->n_named + 63) / 64;
    for (int i = 0; i < k->n_lists && !k->c->err; i++) {
        struct op_list *l = &k->lists[i];
        uint64_t **const sets[] = {&l->used, &l->read, &l->met, &l->leaving, &l->passing};
        for (int n = 0; n < 5; n++)
            *sets[n] = allocate(k, (size_t)k->words, sizeof(uint64_t));
        for (int n = 0; n < l->n_uses && !k->c->err; n++) {
            struct list_use *u = &l->uses[n];
            u->named = index[u->buffer];
            set_add(l->used, u->named);
            if (u->reads)
                set_add(l->read, u->named);
        }
    }
    free(index);
}

static struct instance_family *family_of(struct memory_pass *k, int chunk, int slots)
{
    for (int i = 0; i < k->n_families; i++)
        if (k->families[i].slots == slots && (slots == 1 || k->families[i].chunk == chunk))
            return &k->families[i];
    struct instance_family *f = &k->families[k->n_families++];
    *f = (struct instance_family){.chunk = chunk, .slots = slots};
    f->members = allocate(k, (size_t)k->words, sizeof(uint64_t));
    f->live = allocate(k, (size_t)slots * (size_t)k->words, sizeof(uint64_t));
    return f;
}

static void find_families(struct memory_pass *k)
{
    k->families = allocate(k, (size_t)k->n_named, sizeof(*k->families));
    for (int i = 0; i < k->n_named && !k->c->err; i++) {
        const int b = k->named[i];
        struct instance_family *f = family_of(k, k->chunk[b], k->p->buffers[b].slots);
        if (f->members)
            set_add(f->members, i);
    }
}

static void find_lives(struct memory_pass *k)
{
    const struct program *p = k->p;
    name_buffers(k);
    find_families(k);
    k->alive = allocate(k, (size_t)k->n_lists, sizeof(*k->alive));
    for (int l = 0; l < k->n_lists && !k->c->err; l++) {
        k->alive[l] = allocate(k, (size_t)p->n_buffers, sizeof(**k->alive));
        for (int b = 0; k->alive[l] && b < p->n_buffers; b++)
            k->alive[l][b] = (struct list_span){0, -1};
    }
    for (int a = p->n_actions - 1; a >= 0 && !k->c->err; a--)
        if (p->actions[a].n_ops)
            step_back(k, &p->actions[a]);
}

/* ---- offsets ---- */

static int by_size(const void *x, const void *y)
{
    const struct buffer_life *a = x, *b = y;
    if (a->bytes != b->bytes)
        return a->bytes > b->bytes ? -1 : 1;
    if (a->spans[0].lo != b->spans[0].lo)
        return a->spans[0].lo < b->spans[0].lo ? -1 : 1;
    return a->buffer < b->buffer ? -1 : 1;
}

static bool lives_overlap(const struct buffer_life *a, const struct buffer_life *b)
{
    if (a->spans[0].lo > b->spans[b->n_spans - 1].hi || b->spans[0].lo > a->spans[a->n_spans - 1].hi)
        return false;
    for (int i = 0, j = 0; i < a->n_spans && j < b->n_spans;) {
        if (a->spans[i].hi < b->spans[j].lo)
            i++;
        else if (b->spans[j].hi < a->spans[i].lo)
            j++;
        else
            return true;
    }
    return false;
}

/* The lowest offset at which `l` overlaps none of the `n` buffers placed before it; `order` sorts these by offset. */
static int64_t lowest_free(const struct buffer_life *l, const struct buffer_life *placed, const int *order, int n)
{
    int64_t at = 0;
    for (int i = 0; i < n; i++) {
        const struct buffer_life *o = &placed[order[i]];
        if (o->offset + o->bytes <= at)
            continue;
        if (o->offset >= at + l->bytes)
            break;
        if (lives_overlap(l, o))
            at = align(o->offset + o->bytes, l->align);
    }
    return at;
}

/* Places lives[0 .. n-1] from offset 0 on; `order` has room for n. Returns the end of the highest. */
static int64_t place_lives(struct buffer_life *lives, int n, int *order)
{
    int64_t end = 0;
    qsort(lives, (size_t)n, sizeof(*lives), by_size);
    for (int i = 0; i < n; i++) {
        int k = i;
        lives[i].offset = lowest_free(&lives[i], lives, order, i);
        for (; k > 0 && lives[order[k - 1]].offset > lives[i].offset; k--)
            order[k] = order[k - 1];
        order[k] = i;
        if (lives[i].offset + lives[i].bytes > end)
            end = lives[i].offset + lives[i].bytes;
    }
    return end;
}

/* Extends `whole` by the lifetimes of b and its parts. */
static void add_life(const struct memory_pass *k, int b, struct list_span *whole)
{
    for (int part = k->parts[b]; part >= 0; part = k->next[part])
        add_life(k, part, whole);
    for (int l = 0; l < k->n_lists; l++)
        if (k->alive[l][b].hi >= k->alive[l][b].lo)
            widen(&whole[l], k->alive[l][b].lo, k->alive[l][b].hi);
}

static int chunk_of(const struct memory_pass *k, int b)
{
    return k->parts[b] >= 0 ? chunk_of(k, k->parts[b]) : k->chunk[b];
}

/* Returns false where no action uses b. */
static bool life_init(struct memory_pass *k, int b, struct buffer_life *ret)
{
    struct list_span *whole = allocate(k, (size_t)k->n_lists, sizeof(*whole));
    int n = 0;
    for (int l = 0; whole && l < k->n_lists; l++)
        whole[l] = (struct list_span){0, -1};
    if (whole)
        add_life(k, b, whole);
    for (int l = 0; whole && l < k->n_lists; l++)
        if (whole[l].hi >= whole[l].lo)
            whole[n++] = whole[l];
    const struct buffer *buffer = &k->p->buffers[b];
    *ret = (struct buffer_life){.buffer = b,
                                .chunk = buffer->slots > 1 ? chunk_of(k, b) : -1,
                                .bytes = align(buffer->bytes, ALIGN),
                                .align = buffer->pitch ? PLAN_ROW_BYTES : ALIGN,
                                .spans = whole,
                                .n_spans = n};
    if (n == 0)
        free(whole);
    return n > 0;
}

static void set_place(struct memory_pass *k, int b, int64_t offset, int64_t stripe)
{
    struct buffer *buffer = &k->p->buffers[b];
    for (int part = k->parts[b]; part >= 0; part = k->next[part])
        set_place(k, part, offset + k->p->buffers[part].offset - buffer->offset, stripe);
    buffer->offset = offset;
    buffer->slot_bytes = buffer->slots > 1 ? stripe : 0;
}

/* Places the buffers of `chunk` at the end of the space, in stripes; chunk -1: all buffers with one instance. */
static void place_chunk(struct memory_pass *k, enum buffer_space space, int chunk, const struct buffer_life *all,
                        int n_all, struct buffer_life *some, int *order)
{
    int n = 0, slots = 1;
    int64_t most = ALIGN;
    for (int i = 0; i < n_all; i++)
        if (all[i].chunk == chunk) {
            most = all[i].align > most ? all[i].align : most;
            some[n++] = all[i];
        }
    int64_t end = place_lives(some, n, order), stripe = align(end, most), start = align(k->p->space_bytes[space], most);
    for (int i = 0; i < n; i++) {
        slots = k->p->buffers[some[i].buffer].slots;
        set_place(k, some[i].buffer, start + some[i].offset, stripe);
    }
    k->p->space_bytes[space] = start + (slots - 1) * stripe + end;
}

static void pack_space(struct memory_pass *k, enum buffer_space space)
{
    const struct program *p = k->p;
    struct buffer_life *all = allocate(k, (size_t)p->n_buffers, sizeof(*all));
    struct buffer_life *some = allocate(k, (size_t)p->n_buffers, sizeof(*some));
    int *order = allocate(k, (size_t)p->n_buffers, sizeof(*order)), n = 0;
    for (int b = 0; b < p->n_buffers && !k->c->err; b++) {
        const struct buffer *buffer = &p->buffers[b];
        bool top = buffer->run < 0 || !is_packed(&p->buffers[buffer->run]);
        if (buffer->space == space && is_packed(buffer) && top)
            n += life_init(k, b, &all[n]);
    }
    for (int chunk = p->sharding.chunks - 1; chunk >= -1 && !k->c->err; chunk--)
        place_chunk(k, space, chunk, all, n, some, order);
    for (int i = 0; all && i < n; i++)
        free(all[i].spans);
    free(all);
    free(some);
    free(order);
}

static void find_parts(struct memory_pass *k)
{
    for (int b = k->p->n_buffers - 1; b >= 0; b--) {
        int run = k->p->buffers[b].run;
        if (run < 0 || !is_packed(&k->p->buffers[b]) || !is_packed(&k->p->buffers[run]))
            continue;
        k->next[b] = k->parts[run];
        k->parts[run] = b;
    }
}

static void pack_fini(struct memory_pass *k)
{
    for (int i = 0; i < k->n_lists; i++) {
        struct op_list *l = &k->lists[i];
        void *const all[] = {l->uses, l->used, l->read, l->met, l->leaving, l->passing, k->alive ? k->alive[i] : NULL};
        for (size_t n = 0; n < sizeof(all) / sizeof(all[0]); n++)
            free(all[n]);
    }
    for (int i = 0; i < k->n_families; i++) {
        free(k->families[i].members);
        free(k->families[i].live);
    }
    void *const all[] = {k->lists, k->uses,  k->list_of, k->use_of, k->next,
                         k->parts, k->chunk, k->alive,   k->named,  k->families};
    for (size_t n = 0; n < sizeof(all) / sizeof(all[0]); n++)
        free(all[n]);
}

/* ---- what other ranks read ---- */

/* Ops of which operand 0 is read by other ranks. Pieces and gradients of units lie in the segment anyway, and messages
 * to other stages have buffers of their own. */
static bool is_read_by_others(enum op_kind kind)
{
    static const bool table[OP_KIND_COUNT] = {
        [OP_ALL_REDUCE] = true, [OP_OWN_GATHER] = true, [OP_OWN_SCATTER] = true,
        [OP_GATHER] = true,     [OP_SHIFT] = true,      [OP_EXCHANGE] = true,
        [OP_BORROW] = true,     [OP_GIVE_BACK] = true,  [OP_GATHER_TOKENS] = true,
    };
    return table[kind];
}

static int root_of(const struct program *p, int b)
{
    while (p->buffers[b].run >= 0)
        b = p->buffers[b].run;
    return b;
}

/* Moves the operands of collectives to the segment, where other ranks read them in place; from private memory they
 * would be copied into it and out of it. Runs move as a whole. */
static void share_operands(struct compiler *c)
{
    struct program *p = c->p;
    if (c->job->run.device != DEVICE_CPU)
        return;
    for (int i = 0; i < p->n_ops; i++) {
        const int b = is_read_by_others(p->ops[i].kind) ? p->ops[i].arg[0].buffer : -1;
        struct buffer *root = b < 0 ? NULL : &p->buffers[root_of(p, b)];
        if (root && is_packed(root) && root->space == SPACE_WORK && !root->pitch)
            root->space = SPACE_SHARED;
    }
    for (int b = 0; b < p->n_buffers; b++)
        p->buffers[b].space = p->buffers[root_of(p, b)].space;
}

void memory_plan_place(struct compiler *c)
{
    struct program *p = c->p;
    struct memory_pass k = {.c = c, .p = p};
    size_t buffers = (size_t)p->n_buffers;
    if (c->err)
        return;
    share_operands(c);
    k.uses = allocate(&k, buffers, sizeof(*k.uses));
    k.list_of = allocate(&k, (size_t)p->n_ops, sizeof(int));
    k.use_of = allocate(&k, buffers, sizeof(int));
    k.next = allocate(&k, buffers, sizeof(int));
    k.parts = allocate(&k, buffers, sizeof(int));
    k.chunk = allocate(&k, buffers, sizeof(int));
    k.named = allocate(&k, buffers, sizeof(int));
    fill(k.list_of, p->n_ops);
    int *const by_buffer[] = {k.use_of, k.next, k.parts, k.chunk};
    for (int i = 0; i < 4; i++)
        fill(by_buffer[i], p->n_buffers);
    if (!c->err) {
        find_parts(&k);
        read_lists(&k);
    }
    if (!c->err) {
        find_chunks(&k);
        find_lives(&k);
    }
    if (!c->err) {
        pack_space(&k, SPACE_WORK);
        pack_space(&k, SPACE_SHARED);
        pack_space(&k, SPACE_GRAD);
    }
    pack_fini(&k);
}
