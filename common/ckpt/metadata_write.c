/* The file has current class names, storage_meta None and version 1.0.0, which torch 2.3 and later load. `dtd_manifest`
 * is an additional attribute that torch ignores; it shows that a checkpoint without a manifest has lost it and was not
 * written by torch. Classes, attribute names, tensor names and file names repeat once per chunk, so they are written
 * once and recalled from the memo. */
#include "common/ckpt/metadata.h"

#include "common/ckpt/pickle.h"
#include "common/ckpt/pickle_op.h"

#include <stdlib.h>
#include <string.h>

/* X(id, text): strings that are written once and recalled. */
#define CONSTS(X)                                              \
    X(C_MODULE, "torch.distributed.checkpoint.metadata")       \
    X(C_FILESYSTEM, "torch.distributed.checkpoint.filesystem") \
    X(C_TORCH, "torch")                                        \
    X(C_SERIALIZATION, "torch.serialization")                  \
    X(C_GET_LAYOUT, "_get_layout")                             \
    X(C_STRIDED, "torch.strided")                              \
    X(C_METADATA, "Metadata")                                  \
    X(C_TENSOR, "TensorStorageMetadata")                       \
    X(C_BYTES, "BytesStorageMetadata")                         \
    X(C_CHUNK, "ChunkStorageMetadata")                         \
    X(C_PROPERTIES_CLASS, "TensorProperties")                  \
    X(C_MEM_FORMAT, "_MEM_FORMAT_ENCODING")                    \
    X(C_INDEX_CLASS, "MetadataIndex")                          \
    X(C_INFO, "_StorageInfo")                                  \
    X(C_SIZE_CLASS, "Size")                                    \
    X(C_PROPERTIES, "properties")                              \
    X(C_SIZE, "size")                                          \
    X(C_CHUNKS, "chunks")                                      \
    X(C_OFFSETS, "offsets")                                    \
    X(C_SIZES, "sizes")                                        \
    X(C_FQN, "fqn")                                            \
    X(C_INDEX, "index")                                        \
    X(C_OFFSET, "offset")                                      \
    X(C_LENGTH, "length")                                      \
    X(C_PATH, "relative_path")

enum {
#define X(id, text) id,
    CONSTS(X)
#undef X
        N_CONSTS
};

static const char *const texts[N_CONSTS] = {
#define X(id, text) text,
    CONSTS(X)
#undef X
};

struct metadata_writer {
    struct pickle_writer w;
    const struct meta *m;
    uint32_t classes[N_CONSTS]; /* memo slot + 1 of a class by the id of its name */
    uint32_t *tensor_names, *leaf_names;
    const char *file; /* the last file written, and its memo slot */
    uint32_t file_slot;
};

static void put_text(struct metadata_writer *w, int id)
{
    pickle_put_const(&w->w, id, texts[id]);
}

static void put_class(struct metadata_writer *w, int module, int name)
{
    if (w->classes[name]) {
        pickle_put_memo(&w->w, w->classes[name] - 1);
        return;
    }
    put_text(w, module);
    put_text(w, name);
    pickle_put_op(&w->w, OP_STACK_GLOBAL);
    w->classes[name] = pickle_memoize(&w->w) + 1;
}

static void put_new(struct metadata_writer *w, int module, int name)
{
    put_class(w, module, name);
    pickle_put_op(&w->w, OP_EMPTY_TUPLE);
    pickle_put_op(&w->w, OP_NEWOBJ);
}

static void put_ops(struct metadata_writer *w, int a, int b)
{
    pickle_put_op(&w->w, (uint8_t)a);
    pickle_put_op(&w->w, (uint8_t)b);
}

static void put_dims(struct metadata_writer *w, const int64_t *v, int n)
{
    put_class(w, C_TORCH, C_SIZE_CLASS);
    pickle_put_dims(&w->w, v, n);
    put_ops(w, OP_TUPLE1, OP_REDUCE);
}

static void put_properties(struct metadata_writer *w, enum dtype dtype)
{
    put_new(w, C_MODULE, C_PROPERTIES_CLASS);
    pickle_put_op(&w->w, OP_MARK);
    put_text(w, C_TORCH);
    pickle_put_str(&w->w, dtype_name(dtype));
    pickle_put_op(&w->w, OP_STACK_GLOBAL);
    put_class(w, C_SERIALIZATION, C_GET_LAYOUT);
    put_text(w, C_STRIDED);
    put_ops(w, OP_TUPLE1, OP_REDUCE);
    pickle_put_bool(&w->w, false); /* requires_grad */
    put_class(w, C_MODULE, C_MEM_FORMAT);
    pickle_put_int(&w->w, 0);
    put_ops(w, OP_TUPLE1, OP_REDUCE);
    pickle_put_bool(&w->w, false); /* pin_memory */
    put_ops(w, OP_TUPLE, OP_BUILD);
}

static void put_tensor(struct metadata_writer *w, const struct ckpt_tensor *t)
{
    put_new(w, C_MODULE, C_TENSOR);
    put_ops(w, OP_EMPTY_DICT, OP_MARK);
    put_text(w, C_PROPERTIES);
    put_properties(w, t->dtype);
    put_text(w, C_SIZE);
    put_dims(w, t->shape, t->ndim);
    put_text(w, C_CHUNKS);
    put_ops(w, OP_EMPTY_LIST, OP_MARK);
    for (int i = 0; i < t->n_chunks; i++) {
        put_new(w, C_MODULE, C_CHUNK);
        put_ops(w, OP_EMPTY_DICT, OP_MARK);
        put_text(w, C_OFFSETS);
        put_dims(w, t->chunks[i].box.offset, t->ndim);
        put_text(w, C_SIZES);
        put_dims(w, t->chunks[i].box.size, t->ndim);
        put_ops(w, OP_SETITEMS, OP_BUILD);
    }
    pickle_put_op(&w->w, OP_APPENDS);
    put_ops(w, OP_SETITEMS, OP_BUILD);
}

static void put_state_dict(struct metadata_writer *w)
{
    pickle_put_str(&w->w, "state_dict_metadata");
    put_ops(w, OP_EMPTY_DICT, OP_MARK);
    for (int i = 0; i < w->m->n_tensors; i++) {
        pickle_put_str(&w->w, w->m->tensors[i].fqn);
        w->tensor_names[i] = pickle_memoize(&w->w);
        put_tensor(w, &w->m->tensors[i]);
    }
    for (int i = 0; i < w->m->n_leaves; i++) {
        pickle_put_str(&w->w, w->m->leaves[i].fqn);
        w->leaf_names[i] = pickle_memoize(&w->w);
        put_new(w, C_MODULE, C_BYTES);
    }
    pickle_put_op(&w->w, OP_SETITEMS);
}

/* Paths as in torchtitan: (top, rest of the name) for names under one of `tops`, and the name alone for the model's. */
static void put_path(struct metadata_writer *w, const char *fqn, uint32_t slot)
{
    static const char *const tops[] = {"optimizer", "lr_scheduler", "train_state", "dataloader"};
    pickle_put_memo(&w->w, slot);
    for (size_t i = 0; i < sizeof(tops) / sizeof(tops[0]); i++) {
        size_t n = strlen(tops[i]);
        if (strncmp(fqn, tops[i], n) != 0 || fqn[n] != '.' || !fqn[n + 1])
            continue;
        pickle_put_str(&w->w, tops[i]);
        pickle_put_str(&w->w, fqn + n + 1);
        pickle_put_op(&w->w, OP_TUPLE2);
        return;
    }
    pickle_put_memo(&w->w, slot);
    pickle_put_op(&w->w, OP_TUPLE1);
}

static void put_planner_data(struct metadata_writer *w)
{
    pickle_put_str(&w->w, "planner_data");
    put_ops(w, OP_EMPTY_DICT, OP_MARK);
    for (int i = 0; i < w->m->n_tensors; i++)
        put_path(w, w->m->tensors[i].fqn, w->tensor_names[i]);
    for (int i = 0; i < w->m->n_leaves; i++)
        put_path(w, w->m->leaves[i].fqn, w->leaf_names[i]);
    pickle_put_op(&w->w, OP_SETITEMS);
}

static void put_file(struct metadata_writer *w, const char *file)
{
    if (w->file && strcmp(w->file, file) == 0) {
        pickle_put_memo(&w->w, w->file_slot);
        return;
    }
    pickle_put_str(&w->w, file);
    w->file = file;
    w->file_slot = pickle_memoize(&w->w);
}

/* box NULL: a scalar value, whose key has no offset. */
static void put_place(struct metadata_writer *w, uint32_t slot, const struct box *box, int index, const char *file,
                      int64_t offset, int64_t length)
{
    put_new(w, C_MODULE, C_INDEX_CLASS);
    put_ops(w, OP_EMPTY_DICT, OP_MARK);
    put_text(w, C_FQN);
    pickle_put_memo(&w->w, slot);
    put_text(w, C_INDEX);
    if (box) {
        pickle_put_int(&w->w, index);
        put_text(w, C_OFFSET);
        put_dims(w, box->offset, box->ndim);
    } else {
        pickle_put_op(&w->w, OP_NONE);
    }
    put_ops(w, OP_SETITEMS, OP_BUILD);
    put_new(w, C_FILESYSTEM, C_INFO);
    put_ops(w, OP_EMPTY_DICT, OP_MARK);
    put_text(w, C_PATH);
    put_file(w, file);
    put_text(w, C_OFFSET);
    pickle_put_int(&w->w, offset);
    put_text(w, C_LENGTH);
    pickle_put_int(&w->w, length);
    put_ops(w, OP_SETITEMS, OP_BUILD);
}

static void put_storage_data(struct metadata_writer *w)
{
    pickle_put_str(&w->w, "storage_data");
    put_ops(w, OP_EMPTY_DICT, OP_MARK);
    for (int i = 0; i < w->m->n_tensors; i++) {
        const struct ckpt_tensor *t = &w->m->tensors[i];
        for (int k = 0; k < t->n_chunks; k++)
            put_place(w, w->tensor_names[i], &t->chunks[k].box, k, t->chunks[k].file, t->chunks[k].offset,
                      t->chunks[k].length);
    }
    for (int i = 0; i < w->m->n_leaves; i++) {
        const struct meta_leaf *l = &w->m->leaves[i];
        put_place(w, w->leaf_names[i], NULL, 0, l->file, l->offset, l->length);
    }
    pickle_put_op(&w->w, OP_SETITEMS);
}

static void put_all(struct metadata_writer *w)
{
    pickle_put(&w->w, "\x80\x04", 2);
    put_new(w, C_MODULE, C_METADATA);
    put_ops(w, OP_EMPTY_DICT, OP_MARK);
    put_state_dict(w);
    put_planner_data(w);
    put_storage_data(w);
    pickle_put_str(&w->w, "storage_meta");
    pickle_put_op(&w->w, OP_NONE);
    pickle_put_str(&w->w, "version");
    pickle_put_str(&w->w, "1.0.0");
    pickle_put_str(&w->w, "dtd_manifest");
    pickle_put_bool(&w->w, true);
    put_ops(w, OP_SETITEMS, OP_BUILD);
    pickle_put_op(&w->w, OP_STOP);
}

err_t metadata_write(const struct meta *m, struct buf *ret)
{
    uint32_t consts[N_CONSTS] = {0};
    struct metadata_writer w = {.w = {.out = ret, .protocol = 4, .consts = consts, .n_consts = N_CONSTS}, .m = m};
    w.tensor_names = calloc((size_t)m->n_tensors + 1, sizeof(*w.tensor_names));
    w.leaf_names = calloc((size_t)m->n_leaves + 1, sizeof(*w.leaf_names));
    if (!w.tensor_names || !w.leaf_names)
        w.w.err = ERR_NOMEM;
    else
        put_all(&w);
    free(w.tensor_names);
    free(w.leaf_names);
    return w.w.err;
}
