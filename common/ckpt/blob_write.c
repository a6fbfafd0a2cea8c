/* data.pkl contains the same call that torch's pickler writes for a plain CPU tensor (rebuild, storage by persistent
 * id, offset, size, stride). It uses protocol 2 and no memo; torch.load with weights_only accepts that. */
#include "common/ckpt/blob.h"

#include "common/ckpt/pickle.h"
#include "common/ckpt/pickle_op.h"
#include "common/ckpt/storage.h"
#include "common/ckpt/sums.h"

#include <string.h>

static void put_strides(struct pickle_writer *w, int ndim, const int64_t *size)
{
    int64_t stride[BOX_MAX_DIMS], s = 1;
    for (int d = ndim - 1; d >= 0; d--) {
        stride[d] = s;
        s *= size[d] > 1 ? size[d] : 1;
    }
    pickle_put_dims(w, stride, ndim);
}

static err_t tensor_pickle(enum dtype dtype, int ndim, const int64_t *size, struct buf *ret)
{
    struct pickle_writer w = {.out = ret, .protocol = 2};
    int64_t numel = 1;
    for (int d = 0; d < ndim; d++)
        numel *= size[d];
    pickle_put(&w, "\x80\x02", 2);
    pickle_put_global(&w, "torch._utils", "_rebuild_tensor_v2");
    pickle_put_op(&w, OP_MARK);
    pickle_put_op(&w, OP_MARK);
    pickle_put_str(&w, "storage");
    pickle_put_global(&w, "torch", storage_class(dtype));
    pickle_put_str(&w, "0");
    pickle_put_str(&w, "cpu");
    pickle_put_int(&w, numel);
    pickle_put_op(&w, OP_TUPLE);
    pickle_put_op(&w, OP_BINPERSID);
    pickle_put_int(&w, 0);
    pickle_put_dims(&w, size, ndim);
    put_strides(&w, ndim, size);
    pickle_put_bool(&w, false);
    pickle_put_global(&w, "collections", "OrderedDict");
    pickle_put_op(&w, OP_EMPTY_TUPLE);
    pickle_put_op(&w, OP_REDUCE);
    pickle_put_op(&w, OP_TUPLE);
    pickle_put_op(&w, OP_REDUCE);
    pickle_put_op(&w, OP_STOP);
    return w.err;
}

static struct zip_record record(const char *name, const void *data, size_t len)
{
    return (struct zip_record){name, data, len, sums_crc32(0, data, len)};
}

err_t blob_tensor_write(enum dtype dtype, int ndim, const int64_t *size, uint64_t bytes, uint32_t crc, struct buf *head,
                        struct buf *tail)
{
    struct buf pkl = {0};
    err_t err = tensor_pickle(dtype, ndim, size, &pkl);
    if (!err) {
        const struct zip_record r[] = {record("data.pkl", pkl.data, pkl.len),
                                       record("byteorder", "little", 6),
                                       record("version", "3\n", 2),
                                       {"data/0", NULL, bytes, crc}};
        err = zip_write(r, 4, head, tail);
    }
    buf_fini(&pkl);
    return err;
}

static err_t scalar_pickle(const struct ckpt_scalar *s, struct buf *ret)
{
    struct pickle_writer w = {.out = ret, .protocol = 2};
    pickle_put(&w, "\x80\x02", 2);
    switch (s->kind) {
    case CKPT_INT:
        pickle_put_int(&w, s->i);
        break;
    case CKPT_FLOAT:
        pickle_put_float(&w, s->f[0]);
        break;
    case CKPT_BOOL:
        pickle_put_bool(&w, s->i != 0);
        break;
    case CKPT_STR:
        pickle_put_str(&w, s->s);
        break;
    case CKPT_NONE:
        pickle_put_op(&w, OP_NONE);
        break;
    case CKPT_FLOAT_PAIR:
        pickle_put_float(&w, s->f[0]);
        pickle_put_float(&w, s->f[1]);
        pickle_put_op(&w, OP_TUPLE2);
        break;
    case CKPT_OPAQUE:
        return ERR_INVALID;
    }
    pickle_put_op(&w, OP_STOP);
    return w.err;
}

err_t blob_scalar_write(const struct ckpt_scalar *s, struct buf *ret)
{
    struct buf pkl = {0}, tail = {0};
    err_t err = scalar_pickle(s, &pkl);
    if (!err) {
        const struct zip_record r[] = {record("data.pkl", pkl.data, pkl.len), record("byteorder", "little", 6),
                                       record("version", "3\n", 2)};
        err = zip_write(r, 3, ret, &tail);
        if (!err)
            err = buf_append(ret, r[2].data, (size_t)r[2].size);
    }
    if (!err)
        err = buf_append(ret, tail.data, tail.len);
    buf_fini(&pkl);
    buf_fini(&tail);
    return err;
}
