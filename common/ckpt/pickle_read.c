/* A table of opcodes with one handler each; the handlers work on a stack of node numbers.
 *
 * Invariants: a handler never pops below the newest mark. Every push consumes at least one byte of input, so the sizes
 * of stack, memo and nodes are bounded by the input's length, and items by four times that, because containers grow by
 * doubling. Strings go into one block of the input's size: an opcode and its length or newline take at least as much
 * room as the terminating NUL. */
#include "common/ckpt/pickle.h"

#include "common/ckpt/le_bytes.h"
#include "common/ckpt/pickle_op.h"

#include <stdlib.h>
#include <string.h>

#define MAX_INPUT ((size_t)1 << 30) /* bytes; keeps node numbers well inside 32 bits */
#define MAX_ITEMS (UINT32_MAX / 2)

struct pickle_machine {
    struct le_reader in;
    size_t len;
    struct pickle *p;
    struct buf stack, marks; /* uint32_t */
    uint32_t *memo;
    uint32_t cap_memo, n_memo; /* n_memo: entries that are set */
    bool done;
};

typedef err_t (*op_fn)(struct pickle_machine *m, uint8_t op);

/* ---- the stack ---- */

static uint32_t depth(const struct buf *b)
{
    return (uint32_t)(b->len / sizeof(uint32_t));
}

static uint32_t at(const struct buf *b, uint32_t k)
{
    return ((const uint32_t *)(const void *)b->data)[k];
}

static uint32_t floor_of(const struct pickle_machine *m)
{
    uint32_t n = depth(&m->marks);
    return n ? at(&m->marks, n - 1) : 0;
}

static err_t push(struct pickle_machine *m, uint32_t node)
{
    return buf_append(&m->stack, &node, sizeof(node));
}

static bool pop(struct pickle_machine *m, uint32_t *ret)
{
    uint32_t n = depth(&m->stack);
    if (n <= floor_of(m))
        return false;
    *ret = at(&m->stack, n - 1);
    m->stack.len -= sizeof(uint32_t);
    return true;
}

static bool top(const struct pickle_machine *m, uint32_t *ret)
{
    uint32_t n = depth(&m->stack);
    if (n <= floor_of(m))
        return false;
    *ret = at(&m->stack, n - 1);
    return true;
}

/* Pops everything above the newest mark. The values stay readable at stack[*ret_base] until the next push. */
static bool pop_mark(struct pickle_machine *m, uint32_t *ret_base, uint32_t *ret_n)
{
    uint32_t n = depth(&m->marks);
    if (!n)
        return false;
    *ret_base = at(&m->marks, n - 1);
    *ret_n = depth(&m->stack) - *ret_base;
    m->marks.len -= sizeof(uint32_t);
    m->stack.len = *ret_base * sizeof(uint32_t);
    return true;
}

/* ---- nodes ---- */

static err_t node_new(struct pickle *p, struct pickle_node n, uint32_t *ret)
{
    if (p->n_nodes == p->cap_nodes) {
        uint32_t cap = p->cap_nodes ? p->cap_nodes * 2 : 64;
        struct pickle_node *nodes = realloc(p->nodes, cap * sizeof(*nodes));
        if (!nodes)
            return ERR_NOMEM;
        p->nodes = nodes;
        p->cap_nodes = cap;
    }
    p->nodes[p->n_nodes] = n;
    *ret = p->n_nodes++;
    return OK;
}

static err_t push_new(struct pickle_machine *m, struct pickle_node n)
{
    uint32_t id;
    err_t err = node_new(m->p, n, &id);
    return err ? err : push(m, id);
}

/* Reserves n more numbers in the pool; ret: index of the first. */
static err_t items_take(struct pickle *p, uint32_t n, uint32_t *ret)
{
    if (n > MAX_ITEMS - p->n_items)
        return ERR_LIMIT;
    if (p->n_items + n > p->cap_items) {
        uint32_t cap = p->cap_items ? p->cap_items : 64;
        while (cap < p->n_items + n)
            cap *= 2;
        uint32_t *items = realloc(p->items, cap * sizeof(*items));
        if (!items)
            return ERR_NOMEM;
        p->items = items;
        p->cap_items = cap;
    }
    *ret = p->n_items;
    p->n_items += n;
    return OK;
}

/* Number of items in a container; a dict has two per entry. */
static uint32_t used(const struct pickle_node *n)
{
    return n->kind == PK_DICT ? 2 * n->len : n->len;
}

static err_t items_append(struct pickle_machine *m, uint32_t container, uint32_t base, uint32_t n)
{
    struct pickle *p = m->p;
    struct pickle_node *c = &p->nodes[container];
    uint32_t have = used(c), start;
    if (!n)
        return OK;
    if (have + n > c->cap) {
        uint32_t cap = have + n > 2 * c->cap ? have + n : 2 * c->cap;
        err_t err = items_take(p, cap, &start);
        if (err)
            return err;
        memcpy(p->items + start, p->items + c->items, have * sizeof(uint32_t));
        c->items = start;
        c->cap = cap;
    }
    memcpy(p->items + c->items + have, m->stack.data + base * sizeof(uint32_t), n * sizeof(uint32_t));
    c->len += c->kind == PK_DICT ? n / 2 : n;
    return OK;
}

static err_t push_items(struct pickle_machine *m, enum pickle_kind kind, uint32_t base, uint32_t n)
{
    uint32_t id;
    struct pickle_node node = {.kind = (uint8_t)kind, .items = m->p->n_items, .cap = 0};
    err_t err = node_new(m->p, node, &id);
    if (!err && n)
        err = items_append(m, id, base, n);
    return err ? err : push(m, id);
}

static const char *string_keep(struct pickle *p, const uint8_t *data, size_t len)
{
    char *s = p->strings + p->n_strings;
    memcpy(s, data, len);
    s[len] = '\0';
    p->n_strings += len + 1;
    return s;
}

static err_t push_string(struct pickle_machine *m, enum pickle_kind kind, uint64_t len)
{
    const uint8_t *data = le_bytes(&m->in, len);
    if (!data)
        return ERR_CORRUPT;
    return push_new(m, (struct pickle_node){
                           .kind = (uint8_t)kind, .len = (uint32_t)len, .s = string_keep(m->p, data, (size_t)len)});
}

/* ---- opcodes ---- */

static err_t op_proto(struct pickle_machine *m, uint8_t op)
{
    const uint8_t *v = le_bytes(&m->in, 1);
    return !v ? ERR_CORRUPT : *v > 5 ? ERR_UNSUPPORTED : OK;
}

static err_t op_frame(struct pickle_machine *m, uint8_t op)
{
    (void)le_u64(&m->in);
    return OK;
}

static err_t op_stop(struct pickle_machine *m, uint8_t op)
{
    m->done = true;
    return pop(m, &m->p->root) ? OK : ERR_CORRUPT;
}

static err_t op_mark(struct pickle_machine *m, uint8_t op)
{
    uint32_t n = depth(&m->stack);
    return buf_append(&m->marks, &n, sizeof(n));
}

static err_t op_pop(struct pickle_machine *m, uint8_t op)
{
    uint32_t ignored, n;
    if (op == OP_POP && pop(m, &ignored))
        return OK;
    return pop_mark(m, &ignored, &n) ? OK : ERR_CORRUPT;
}

static err_t op_dup(struct pickle_machine *m, uint8_t op)
{
    uint32_t id;
    return top(m, &id) ? push(m, id) : ERR_CORRUPT;
}

static err_t op_constant(struct pickle_machine *m, uint8_t op)
{
    if (op == OP_NONE)
        return push_new(m, (struct pickle_node){.kind = PK_NONE});
    return push_new(m, (struct pickle_node){.kind = PK_BOOL, .i = op == OP_NEWTRUE});
}

static err_t op_int(struct pickle_machine *m, uint8_t op)
{
    int64_t v;
    if (op == OP_BININT) {
        v = (int32_t)le_u32(&m->in);
    } else if (op == OP_BININT2) {
        v = le_u16(&m->in);
    } else {
        const uint8_t *p = le_bytes(&m->in, 1);
        v = p ? *p : 0;
    }
    return push_new(m, (struct pickle_node){.kind = PK_INT, .i = v});
}

/* Two's complement of any length; the shortest form is not required. */
static err_t op_long(struct pickle_machine *m, uint8_t op)
{
    uint64_t len = 0;
    if (op == OP_LONG4) {
        len = le_u32(&m->in);
    } else {
        const uint8_t *p = le_bytes(&m->in, 1);
        len = p ? *p : 0;
    }
    const uint8_t *raw = le_bytes(&m->in, len);
    if (!raw)
        return ERR_CORRUPT;
    uint8_t sign = len && (raw[len - 1] & 0x80) ? 0xff : 0;
    uint64_t v = sign ? UINT64_MAX : 0;
    bool big = false;
    for (uint64_t i = 0; i < len; i++) {
        if (i < 8)
            v = (v & ~((uint64_t)0xff << (8 * i))) | ((uint64_t)raw[i] << (8 * i));
        else
            big |= raw[i] != sign;
    }
    big |= len > 8 && (v >> 63) != (sign ? 1u : 0u);
    return push_new(m, (struct pickle_node){.kind = big ? PK_BIG : PK_INT, .i = (int64_t)v});
}

static err_t op_float(struct pickle_machine *m, uint8_t op)
{
    uint64_t v = __builtin_bswap64(le_u64(&m->in)); /* the only big-endian field of the format */
    struct pickle_node n = {.kind = PK_FLOAT};
    memcpy(&n.f, &v, sizeof(v));
    return push_new(m, n);
}

static err_t op_string(struct pickle_machine *m, uint8_t op)
{
    uint64_t len = 0;
    const uint8_t *p;
    switch (op) {
    case OP_SHORT_BINUNICODE:
    case OP_SHORT_BINSTRING:
    case OP_SHORT_BINBYTES:
        p = le_bytes(&m->in, 1);
        len = p ? *p : 0;
        break;
    case OP_BINUNICODE8:
    case OP_BINBYTES8:
    case OP_BYTEARRAY8:
        len = le_u64(&m->in);
        break;
    default:
        len = le_u32(&m->in);
    }
    bool bytes = op == OP_SHORT_BINBYTES || op == OP_BINBYTES || op == OP_BINBYTES8 || op == OP_BYTEARRAY8;
    return push_string(m, bytes ? PK_BYTES : PK_STR, len);
}

static err_t op_empty(struct pickle_machine *m, uint8_t op)
{
    enum pickle_kind kind = op == OP_EMPTY_TUPLE  ? PK_TUPLE
                            : op == OP_EMPTY_LIST ? PK_LIST
                            : op == OP_EMPTY_DICT ? PK_DICT
                                                  : PK_SET;
    return push_items(m, kind, 0, 0);
}

static err_t op_tuple_small(struct pickle_machine *m, uint8_t op)
{
    uint32_t n = (uint32_t)op - OP_TUPLE1 + 1, have = depth(&m->stack);
    if (have - floor_of(m) < n)
        return ERR_CORRUPT;
    m->stack.len -= n * sizeof(uint32_t);
    return push_items(m, PK_TUPLE, have - n, n);
}

static err_t op_from_mark(struct pickle_machine *m, uint8_t op)
{
    uint32_t base, n;
    if (!pop_mark(m, &base, &n) || (op == OP_DICT && n % 2))
        return ERR_CORRUPT;
    enum pickle_kind kind = op == OP_TUPLE ? PK_TUPLE : op == OP_LIST ? PK_LIST : op == OP_DICT ? PK_DICT : PK_SET;
    return push_items(m, kind, base, n);
}

/* Items added to an object that is not a list, dict or set are ignored: its class is unknown. */
static err_t add_to_top(struct pickle_machine *m, enum pickle_kind kind, uint32_t base, uint32_t n)
{
    uint32_t id;
    if (!top(m, &id) || (kind == PK_DICT && n % 2))
        return ERR_CORRUPT;
    return m->p->nodes[id].kind == kind ? items_append(m, id, base, n) : OK;
}

static err_t op_add_one(struct pickle_machine *m, uint8_t op)
{
    uint32_t n = op == OP_SETITEM ? 2 : 1, have = depth(&m->stack);
    if (have - floor_of(m) < n)
        return ERR_CORRUPT;
    m->stack.len -= n * sizeof(uint32_t);
    return add_to_top(m, op == OP_SETITEM ? PK_DICT : PK_LIST, have - n, n);
}

static err_t op_add_many(struct pickle_machine *m, uint8_t op)
{
    uint32_t base, n;
    if (!pop_mark(m, &base, &n))
        return ERR_CORRUPT;
    return add_to_top(m, op == OP_SETITEMS ? PK_DICT : op == OP_APPENDS ? PK_LIST : PK_SET, base, n);
}

static uint8_t global_find(const char *module, const char *name)
{
    static const struct {
        const char *module, *name;
    } table[PG_COUNT] = {
#define X(id, mod, nam) [id] = {mod, nam},
        PICKLE_GLOBALS(X)
#undef X
    };
    for (int i = 1; module && name && i < PG_COUNT; i++)
        if (strcmp(name, table[i].name) == 0 && strcmp(module, table[i].module) == 0)
            return (uint8_t)i;
    return PG_OPAQUE;
}

static err_t push_global(struct pickle_machine *m, uint32_t module, uint32_t name)
{
    const struct pickle_node *a = pickle_node(m->p, module), *b = pickle_node(m->p, name);
    if (a->kind != PK_STR || b->kind != PK_STR)
        return ERR_CORRUPT;
    uint8_t global = global_find(pickle_text(a), pickle_text(b));
    return push_new(m,
                    (struct pickle_node){.kind = PK_GLOBAL, .global = global, .a = module, .b = name, .c = PICKLE_NIL});
}

static err_t line_node(struct pickle_machine *m, uint32_t *ret)
{
    const uint8_t *end = memchr(m->in.p, '\n', le_left(&m->in));
    if (!end)
        return ERR_CORRUPT;
    size_t len = (size_t)(end - m->in.p);
    struct pickle_node n = {.kind = PK_STR, .len = (uint32_t)len, .s = string_keep(m->p, m->in.p, len)};
    m->in.p = end + 1;
    return node_new(m->p, n, ret);
}

static err_t op_global(struct pickle_machine *m, uint8_t op)
{
    uint32_t module, name;
    if (op == OP_STACK_GLOBAL)
        return pop(m, &name) && pop(m, &module) ? push_global(m, module, name) : ERR_CORRUPT;
    err_t err = line_node(m, &module);
    if (!err)
        err = line_node(m, &name);
    return err ? err : push_global(m, module, name);
}

static err_t op_call(struct pickle_machine *m, uint8_t op)
{
    uint32_t callee, args, ignored;
    if (op == OP_NEWOBJ_EX && !pop(m, &ignored))
        return ERR_CORRUPT;
    if (!pop(m, &args) || !pop(m, &callee))
        return ERR_CORRUPT;
    const struct pickle_node *f = pickle_node(m->p, callee), *a = pickle_node(m->p, args);
    if (f->kind == PK_GLOBAL && f->global == PG_ORDERED_DICT && a->kind == PK_TUPLE && !a->len)
        return push_items(m, PK_DICT, 0, 0);
    return push_new(m, (struct pickle_node){.kind = PK_CALL, .a = callee, .b = args, .c = PICKLE_NIL});
}

static err_t op_build(struct pickle_machine *m, uint8_t op)
{
    uint32_t state, object;
    if (!pop(m, &state) || !top(m, &object))
        return ERR_CORRUPT;
    if (m->p->nodes[object].kind == PK_CALL)
        m->p->nodes[object].c = state;
    return OK;
}

static err_t op_persid(struct pickle_machine *m, uint8_t op)
{
    uint32_t id;
    if (!pop(m, &id))
        return ERR_CORRUPT;
    return push_new(m, (struct pickle_node){.kind = PK_PERSID, .a = id, .b = PICKLE_NIL, .c = PICKLE_NIL});
}

static err_t memo_set(struct pickle_machine *m, uint64_t slot, uint32_t node)
{
    if (slot >= m->len)
        return ERR_LIMIT; /* more slots than the opcodes of the input can use */
    if (slot >= m->cap_memo) {
        uint32_t cap = m->cap_memo ? m->cap_memo : 64;
        while (cap <= slot)
            cap *= 2;
        uint32_t *memo = realloc(m->memo, cap * sizeof(*memo));
        if (!memo)
            return ERR_NOMEM;
        memset(memo + m->cap_memo, 0xff, (cap - m->cap_memo) * sizeof(*memo));
        m->memo = memo;
        m->cap_memo = cap;
    }
    m->n_memo += m->memo[slot] == PICKLE_NIL;
    m->memo[slot] = node;
    return OK;
}

static uint64_t slot_read(struct pickle_machine *m, bool wide)
{
    if (wide)
        return le_u32(&m->in);
    const uint8_t *p = le_bytes(&m->in, 1);
    return p ? *p : 0;
}

static err_t op_put(struct pickle_machine *m, uint8_t op)
{
    uint32_t id;
    uint64_t slot = op == OP_MEMOIZE ? m->n_memo : slot_read(m, op == OP_LONG_BINPUT);
    return top(m, &id) ? memo_set(m, slot, id) : ERR_CORRUPT;
}

static err_t op_get(struct pickle_machine *m, uint8_t op)
{
    uint64_t slot = slot_read(m, op == OP_LONG_BINGET);
    if (slot >= m->cap_memo || m->memo[slot] == PICKLE_NIL)
        return ERR_CORRUPT;
    return push(m, m->memo[slot]);
}

static const op_fn ops[256] = {
    [OP_PROTO] = op_proto,
    [OP_FRAME] = op_frame,
    [OP_STOP] = op_stop,
    [OP_MARK] = op_mark,
    [OP_POP] = op_pop,
    [OP_POP_MARK] = op_pop,
    [OP_DUP] = op_dup,
    [OP_NONE] = op_constant,
    [OP_NEWTRUE] = op_constant,
    [OP_NEWFALSE] = op_constant,
    [OP_BININT] = op_int,
    [OP_BININT1] = op_int,
    [OP_BININT2] = op_int,
    [OP_LONG1] = op_long,
    [OP_LONG4] = op_long,
    [OP_BINFLOAT] = op_float,
    [OP_BINUNICODE] = op_string,
    [OP_SHORT_BINUNICODE] = op_string,
    [OP_BINUNICODE8] = op_string,
    [OP_BINSTRING] = op_string,
    [OP_SHORT_BINSTRING] = op_string,
    [OP_BINBYTES] = op_string,
    [OP_SHORT_BINBYTES] = op_string,
    [OP_BINBYTES8] = op_string,
    [OP_BYTEARRAY8] = op_string,
    [OP_EMPTY_TUPLE] = op_empty,
    [OP_EMPTY_LIST] = op_empty,
    [OP_EMPTY_DICT] = op_empty,
    [OP_EMPTY_SET] = op_empty,
    [OP_TUPLE1] = op_tuple_small,
    [OP_TUPLE2] = op_tuple_small,
    [OP_TUPLE3] = op_tuple_small,
    [OP_TUPLE] = op_from_mark,
    [OP_LIST] = op_from_mark,
    [OP_DICT] = op_from_mark,
    [OP_FROZENSET] = op_from_mark,
    [OP_APPEND] = op_add_one,
    [OP_SETITEM] = op_add_one,
    [OP_APPENDS] = op_add_many,
    [OP_SETITEMS] = op_add_many,
    [OP_ADDITEMS] = op_add_many,
    [OP_GLOBAL] = op_global,
    [OP_STACK_GLOBAL] = op_global,
    [OP_REDUCE] = op_call,
    [OP_NEWOBJ] = op_call,
    [OP_NEWOBJ_EX] = op_call,
    [OP_BUILD] = op_build,
    [OP_BINPERSID] = op_persid,
    [OP_BINPUT] = op_put,
    [OP_LONG_BINPUT] = op_put,
    [OP_MEMOIZE] = op_put,
    [OP_BINGET] = op_get,
    [OP_LONG_BINGET] = op_get,
};

/* ---- the loop ---- */

static err_t run(struct pickle_machine *m, struct why *why)
{
    const uint8_t *start = m->in.p;
    while (!m->done) {
        size_t offset = (size_t)(m->in.p - start);
        const uint8_t *op = le_bytes(&m->in, 1);
        if (!op)
            return why_set(why, ERR_CORRUPT, "pickle ends at byte %zu without a STOP", offset);
        if (!ops[*op])
            return why_set(why, ERR_UNSUPPORTED,
                           "pickle opcode 0x%02x at byte %zu is not supported; checkpoints do not use it", *op, offset);
        err_t err = ops[*op](m, *op);
        if (!err && m->in.bad)
            err = ERR_CORRUPT;
        if (err)
            return why_set(why, err, "pickle opcode 0x%02x at byte %zu: %s", *op, offset, err_text(err));
    }
    return OK;
}

err_t pickle_read(const void *data, size_t len, struct pickle *ret, struct why *why)
{
    if (len > MAX_INPUT)
        return why_set(why, ERR_LIMIT, "a pickle of %zu bytes is above the limit of %zu", len, MAX_INPUT);
    struct pickle p = {.strings = malloc(len + 1)};
    if (!p.strings)
        return why_set(why, ERR_NOMEM, "out of memory for a pickle of %zu bytes", len);
    struct pickle_machine m = {.in = le_reader_of(data, len), .len = len, .p = &p};
    err_t err = run(&m, why);
    buf_fini(&m.stack);
    buf_fini(&m.marks);
    free(m.memo);
    if (err)
        pickle_fini(&p);
    else
        *ret = p;
    return err;
}

void pickle_fini(struct pickle *p)
{
    free(p->nodes);
    free(p->items);
    free(p->strings);
    *p = (struct pickle){0};
}
