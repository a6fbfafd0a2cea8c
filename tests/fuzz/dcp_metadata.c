/* .metadata: any pickle. Accepted metadata, written and read again, gives the same tables. */
#include "common/ckpt/metadata.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool holds)
{
    if (!holds)
        abort();
}

static void compare_tables(const struct meta *a, const struct meta *b)
{
    require(a->n_tensors == b->n_tensors && a->n_leaves == b->n_leaves && b->ours);
    for (int i = 0; i < a->n_tensors; i++) {
        const struct ckpt_tensor *s = &a->tensors[i], *t = &b->tensors[i];
        require(strcmp(s->fqn, t->fqn) == 0 && s->dtype == t->dtype && s->ndim == t->ndim &&
                s->n_chunks == t->n_chunks);
        for (int k = 0; k < s->n_chunks; k++)
            require(box_equal(&s->chunks[k].box, &t->chunks[k].box) &&
                    strcmp(s->chunks[k].file, t->chunks[k].file) == 0 && s->chunks[k].offset == t->chunks[k].offset);
    }
    for (int i = 0; i < a->n_leaves; i++)
        require(strcmp(a->leaves[i].fqn, b->leaves[i].fqn) == 0 && a->leaves[i].length == b->leaves[i].length);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct meta m, again;
    struct why why;
    struct buf b = {0};
    if (metadata_read(data, size, &m, &why))
        return 0;
    for (int i = 0; i < m.n_tensors; i++) /* tensors of unsupported types are not written */
        if (m.tensors[i].dtype == DT_NONE)
            m.tensors[i].dtype = DT_U8;
    require(metadata_write(&m, &b) == OK);
    require(metadata_read(b.data, b.len, &again, &why) == OK);
    compare_tables(&m, &again);
    metadata_fini(&again);
    metadata_fini(&m);
    buf_fini(&b);
    return 0;
}
