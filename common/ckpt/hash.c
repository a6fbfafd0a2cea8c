/* SHA-256 of a tensor's elements, row-major, in the stored type. It equals hashlib's result for
 * tensor.contiguous().view(torch.uint8).numpy(). The tensor is read in slabs along dimension 0 to bound memory. */
#include "common/ckpt/ckpt_priv.h"
#include "common/ckpt/sums.h"

#include <openssl/evp.h>
#include <stdlib.h>
#include <string.h>

#define SLAB_BYTES ((int64_t)64 << 20)

static int64_t rows_per_slab(const struct ckpt_tensor *t)
{
    int64_t row = (int64_t)dtype_bytes(t->dtype);
    for (int d = 1; d < t->ndim; d++)
        row *= t->shape[d];
    return row && row < SLAB_BYTES ? SLAB_BYTES / row : 1;
}

static err_t slab_hash(struct ckpt *c, const struct ckpt_tensor *t, const struct box *slab, EVP_MD_CTX *ctx,
                       struct why *why)
{
    size_t bytes = (size_t)box_elements(slab) * dtype_bytes(t->dtype);
    uint8_t *data = malloc(bytes + 1);
    if (!data)
        return why_set(why, ERR_NOMEM, "out of memory for %zu bytes of %.200s", bytes, t->fqn);
    const struct ckpt_want want = {t->fqn, *slab, t->dtype, data};
    err_t err = ckpt_read(c, &want, 1, NULL, why);
    if (!err && !EVP_DigestUpdate(ctx, data, bytes))
        err = ERR_NOMEM;
    free(data);
    return err;
}

static err_t slabs_hash(struct ckpt *c, const struct ckpt_tensor *t, EVP_MD_CTX *ctx, struct why *why)
{
    struct box slab = {.ndim = t->ndim};
    memcpy(slab.size, t->shape, sizeof(slab.size));
    int64_t step = t->ndim ? rows_per_slab(t) : 1, rows = t->ndim ? t->shape[0] : 1;
    err_t err = OK;
    for (int64_t row = 0; row < rows && !err; row += step) {
        slab.offset[0] = t->ndim ? row : 0;
        slab.size[0] = rows - row < step ? rows - row : step;
        err = slab_hash(c, t, &slab, ctx, why);
    }
    return err;
}

err_t ckpt_tensor_hash(struct ckpt *c, const char *fqn, char ret[65], struct why *why)
{
    const struct ckpt_tensor *t = ckpt_find(c, fqn);
    if (!t)
        return why_set(why, ERR_NOTFOUND, "%s has no tensor %.200s", c->dir, fqn);
    if (t->dtype == DT_NONE)
        return why_set(why, ERR_UNSUPPORTED, "%.200s has elements of an unsupported type", fqn);
    uint8_t sha[SUMS_SHA256_BYTES];
    EVP_MD_CTX *ctx = EVP_MD_CTX_new();
    err_t err = ctx && EVP_DigestInit_ex(ctx, EVP_sha256(), NULL) ? OK : ERR_NOMEM;
    if (!err)
        err = slabs_hash(c, t, ctx, why);
    if (!err && !EVP_DigestFinal_ex(ctx, sha, NULL))
        err = ERR_NOMEM;
    EVP_MD_CTX_free(ctx);
    if (!err)
        sums_hex(sha, sizeof(sha), ret);
    return err;
}
