/* Pickle as data: a reader that converts a stream into a tree of nodes without executing it, and a writer for the few
 * opcodes that dtd needs.
 *
 * The reader uses names only for comparison: a global from its list gets a number, any other is opaque, and a call or
 * build becomes a node of that kind. There are at most as many nodes as opcodes in the input, and the reader does not
 * recurse. A tree may share nodes or even contain itself, so code that walks it must limit the depth. */
#ifndef DTD_COMMON_CKPT_PICKLE_H
#define DTD_COMMON_CKPT_PICKLE_H

#include "common/base/buf.h"

#include <stdbool.h>
#include <stdint.h>

/* X(number, module, name): the globals that the reader recognizes. */
#define PICKLE_GLOBALS(X)                                                                        \
    X(PG_METADATA, "torch.distributed.checkpoint.metadata", "Metadata")                          \
    X(PG_TENSOR_META, "torch.distributed.checkpoint.metadata", "TensorStorageMetadata")          \
    X(PG_BYTES_META, "torch.distributed.checkpoint.metadata", "BytesStorageMetadata")            \
    X(PG_CHUNK_META, "torch.distributed.checkpoint.metadata", "ChunkStorageMetadata")            \
    X(PG_PROPERTIES, "torch.distributed.checkpoint.metadata", "TensorProperties")                \
    X(PG_MEM_FORMAT, "torch.distributed.checkpoint.metadata", "_MEM_FORMAT_ENCODING")            \
    X(PG_PROPERTIES_OLD, "torch.distributed._shard.sharded_tensor.metadata", "TensorProperties") \
    X(PG_INDEX, "torch.distributed.checkpoint.metadata", "MetadataIndex")                        \
    X(PG_STORAGE_INFO, "torch.distributed.checkpoint.filesystem", "_StorageInfo")                \
    X(PG_SIZE, "torch", "Size")                                                                  \
    X(PG_GET_LAYOUT, "torch.serialization", "_get_layout")                                       \
    X(PG_REBUILD_1, "torch._utils", "_rebuild_tensor")                                           \
    X(PG_REBUILD_2, "torch._utils", "_rebuild_tensor_v2")                                        \
    X(PG_REBUILD_3, "torch._utils", "_rebuild_tensor_v3")                                        \
    X(PG_REBUILD_PARAMETER, "torch._utils", "_rebuild_parameter")                                \
    X(PG_REBUILD_TYPE, "torch._tensor", "_rebuild_from_type_v2")                                 \
    X(PG_UNTYPED_STORAGE, "torch.storage", "UntypedStorage")                                     \
    X(PG_ORDERED_DICT, "collections", "OrderedDict")

enum pickle_global {
    PG_OPAQUE,
#define X(id, module, name) id,
    PICKLE_GLOBALS(X)
#undef X
        PG_COUNT
};

enum pickle_kind {
    PK_NONE,
    PK_BOOL,   /* i */
    PK_INT,    /* i */
    PK_BIG,    /* an integer beyond 64 bits; its value is not stored */
    PK_FLOAT,  /* f */
    PK_STR,    /* s, len; NUL-terminated, but may contain NULs */
    PK_BYTES,  /* s, len */
    PK_TUPLE,  /* items[len] */
    PK_LIST,   /* items[len] */
    PK_SET,    /* items[len] */
    PK_DICT,   /* items[2 len]: key, value, .. */
    PK_GLOBAL, /* global; a: module, b: name (nodes) */
    PK_CALL,   /* REDUCE, NEWOBJ: a: the callee, b: its arguments; c: state of BUILD, or PICKLE_NIL */
    PK_PERSID, /* a: the persistent id */
};

#define PICKLE_NIL UINT32_MAX

struct pickle_node {
    uint8_t kind;   /* enum pickle_kind */
    uint8_t global; /* enum pickle_global */
    uint32_t len;
    union {
        int64_t i;
        double f;
        const char *s;
        struct {
            uint32_t items, cap; /* into pickle.items */
        };
        struct {
            uint32_t a, b, c; /* nodes */
        };
    };
};

struct pickle {
    struct pickle_node *nodes;
    uint32_t n_nodes, cap_nodes;
    uint32_t *items;
    uint32_t n_items, cap_items;
    char *strings; /* one block that never moves; the caller may take ownership of it */
    size_t n_strings;
    uint32_t root;
};

/* Reads protocols 2 to 5. ERR_CORRUPT: not a pickle. ERR_UNSUPPORTED: the sentence names an unsupported opcode. */
NODISCARD err_t pickle_read(const void *data, size_t len, struct pickle *ret, struct why *why);
void pickle_fini(struct pickle *p);

static inline const struct pickle_node *pickle_node(const struct pickle *p, uint32_t at)
{
    return &p->nodes[at];
}
/* Item k of a tuple or list; NULL after its end, or if n is neither. */
const struct pickle_node *pickle_item(const struct pickle *p, const struct pickle_node *n, uint32_t k);
/* The value of a string key in a small dict, or in the state dict of a built object; NULL: none. The last one wins, as
 * in Python. NULL also for dicts of more than PICKLE_MAX_ATTRS keys: they are not attributes of an object, and the
 * limit bounds the search in a hostile file. */
#define PICKLE_MAX_ATTRS 256
const struct pickle_node *pickle_get(const struct pickle *p, const struct pickle_node *n, const char *key);
/* Whether n is a call of this global. */
bool pickle_is_call(const struct pickle *p, const struct pickle_node *n, enum pickle_global global);
/* The name of a global of this module; NULL if n is none. */
const char *pickle_global_name(const struct pickle *p, const struct pickle_node *n, const char *module);
/* Reads a tuple, or a torch.Size of one, of at most `max` integers >= 0. False if n is none. */
bool pickle_dims(const struct pickle *p, const struct pickle_node *n, int max, int64_t *ret, int *ret_n);
/* The text of a string without NULs; NULL for any other node. */
const char *pickle_text(const struct pickle_node *n);

/* ---- writing ---- */

struct pickle_writer {
    struct buf *out;
    err_t err;        /* the first error; later calls do nothing */
    int protocol;     /* 2 or 4 */
    uint32_t n_memo;  /* number of MEMOIZE opcodes so far */
    uint32_t *consts; /* memo slot + 1 of each of n_consts names, 0: not written yet */
    int n_consts;
};

void pickle_put(struct pickle_writer *w, const void *data, size_t len);
void pickle_put_op(struct pickle_writer *w, uint8_t op);
void pickle_put_int(struct pickle_writer *w, int64_t v);
void pickle_put_float(struct pickle_writer *w, double v);
void pickle_put_bool(struct pickle_writer *w, bool v);
void pickle_put_str(struct pickle_writer *w, const char *s);
/* Protocol 4: stores the last value in the memo. Returns the slot for pickle_put_memo. */
uint32_t pickle_memoize(struct pickle_writer *w);
void pickle_put_memo(struct pickle_writer *w, uint32_t slot);
/* Protocol 2: module and name in one opcode. */
void pickle_put_global(struct pickle_writer *w, const char *module, const char *name);
/* Protocol 4: string `s`, which has number `id` in the caller's list. It is written once and recalled afterwards. */
void pickle_put_const(struct pickle_writer *w, int id, const char *s);
/* A tuple of integers. */
void pickle_put_dims(struct pickle_writer *w, const int64_t *v, int n);

#endif
