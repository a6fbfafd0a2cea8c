/* Numbers use the shortest opcode, like Python's pickler. Archives use protocol 2, because torch.load with weights_only
 * accepts no other. `.metadata` uses protocol 4: names repeat so often that recalling them from the memo halves the
 * file. */
#include "common/ckpt/pickle.h"

#include "common/ckpt/le_bytes.h"
#include "common/ckpt/pickle_op.h"

#include <string.h>

void pickle_put(struct pickle_writer *w, const void *data, size_t len)
{
    if (!w->err)
        w->err = buf_append(w->out, data, len);
}

void pickle_put_op(struct pickle_writer *w, uint8_t op)
{
    pickle_put(w, &op, 1);
}

static void put_op_u8(struct pickle_writer *w, uint8_t op, uint8_t v)
{
    const uint8_t raw[2] = {op, v};
    pickle_put(w, raw, sizeof(raw));
}

static void put_op_u32(struct pickle_writer *w, uint8_t op, uint32_t v)
{
    pickle_put_op(w, op);
    if (!w->err)
        w->err = le_put_u32(w->out, v);
}

void pickle_put_int(struct pickle_writer *w, int64_t v)
{
    if (v >= 0 && v < 256) {
        put_op_u8(w, OP_BININT1, (uint8_t)v);
    } else if (v >= 0 && v < 65536) {
        pickle_put_op(w, OP_BININT2);
        if (!w->err)
            w->err = le_put_u16(w->out, (uint16_t)v);
    } else if (v >= INT32_MIN && v <= INT32_MAX) {
        put_op_u32(w, OP_BININT, (uint32_t)v);
    } else {
        put_op_u8(w, OP_LONG1, 8);
        if (!w->err)
            w->err = le_put_u64(w->out, (uint64_t)v);
    }
}

void pickle_put_float(struct pickle_writer *w, double v)
{
    uint64_t raw;
    memcpy(&raw, &v, sizeof(raw));
    pickle_put_op(w, OP_BINFLOAT);
    if (!w->err)
        w->err = le_put_u64(w->out, __builtin_bswap64(raw));
}

void pickle_put_bool(struct pickle_writer *w, bool v)
{
    pickle_put_op(w, v ? OP_NEWTRUE : OP_NEWFALSE);
}

void pickle_put_str(struct pickle_writer *w, const char *s)
{
    size_t len = strlen(s);
    if (len > UINT32_MAX) {
        w->err = w->err ? w->err : ERR_LIMIT;
        return;
    }
    if (w->protocol >= 4 && len < 256)
        put_op_u8(w, OP_SHORT_BINUNICODE, (uint8_t)len);
    else
        put_op_u32(w, OP_BINUNICODE, (uint32_t)len);
    pickle_put(w, s, len);
}

uint32_t pickle_memoize(struct pickle_writer *w)
{
    pickle_put_op(w, OP_MEMOIZE);
    return w->n_memo++;
}

void pickle_put_memo(struct pickle_writer *w, uint32_t slot)
{
    if (slot < 256)
        put_op_u8(w, OP_BINGET, (uint8_t)slot);
    else
        put_op_u32(w, OP_LONG_BINGET, slot);
}

void pickle_put_global(struct pickle_writer *w, const char *module, const char *name)
{
    pickle_put_op(w, OP_GLOBAL);
    pickle_put(w, module, strlen(module));
    pickle_put(w, "\n", 1);
    pickle_put(w, name, strlen(name));
    pickle_put(w, "\n", 1);
}

void pickle_put_const(struct pickle_writer *w, int id, const char *s)
{
    if (w->consts[id]) {
        pickle_put_memo(w, w->consts[id] - 1);
        return;
    }
    pickle_put_str(w, s);
    w->consts[id] = pickle_memoize(w) + 1;
}

void pickle_put_dims(struct pickle_writer *w, const int64_t *v, int n)
{
    static const uint8_t closing[] = {OP_EMPTY_TUPLE, OP_TUPLE1, OP_TUPLE2, OP_TUPLE3};
    if (n > 3)
        pickle_put_op(w, OP_MARK);
    for (int i = 0; i < n; i++)
        pickle_put_int(w, v[i]);
    pickle_put_op(w, n > 3 ? OP_TUPLE : closing[n]);
}
