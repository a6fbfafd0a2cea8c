/* A record batch may have gigabytes, so its buffers are not loaded: each is a stream with a window of 64 KiB, also
 * through the decompressors of LZ4 frames and Zstandard. */
#include "common/data/arrow_priv.h"

#include <lz4frame.h>
#include <string.h>
#include <zstd.h>

#define WINDOW ((size_t)1 << 16)

static err_t fail_lane(const struct arrow_lane *l, err_t err, const char *text, struct why *why)
{
    return arrow_column_fail(l->owner, err, err == ERR_CORRUPT ? text : err_text(err), why);
}

static err_t need_contexts(struct arrow_lane *l)
{
    if (l->codec == ARROW_LZ4 && !l->lz4) {
        LZ4F_dctx *d = NULL;
        if (LZ4F_isError(LZ4F_createDecompressionContext(&d, LZ4F_VERSION)))
            return ERR_NOMEM;
        l->lz4 = d;
    }
    if (l->codec == ARROW_ZSTD && !l->zstd && !(l->zstd = ZSTD_createDCtx()))
        return ERR_NOMEM;
    if (l->codec == ARROW_LZ4)
        LZ4F_resetDecompressionContext(l->lz4);
    if (l->codec == ARROW_ZSTD)
        ZSTD_DCtx_reset(l->zstd, ZSTD_reset_session_only);
    return OK;
}

err_t arrow_lane_open(struct arrow_lane *l, const struct arrow_column *owner, int64_t at, int64_t len,
                      enum arrow_codec codec, struct why *why)
{
    int64_t plain_len = len;
    l->owner = owner;
    l->at = at;
    l->end = at + len;
    l->left = len;
    l->codec = len > 0 ? codec : ARROW_RAW;
    l->packed.len = l->plain.len = l->packed_at = l->plain_at = 0;
    if (l->codec == ARROW_RAW)
        return OK;
    /* The length comes first; -1: the buffer is not compressed. */
    if (len < 8)
        return fail_lane(l, ERR_CORRUPT, "a compressed buffer has no length; the file is damaged", why);
    err_t err = owner->in->ops->read(owner->in, at, &plain_len, sizeof(plain_len), why);
    if (err)
        return err;
    if (plain_len < -1)
        return fail_lane(l, ERR_CORRUPT, "the length of a compressed buffer is negative; the file is damaged", why);
    l->at += 8;
    l->left = plain_len == -1 ? len - 8 : plain_len;
    if (plain_len == -1)
        l->codec = ARROW_RAW;
    err = need_contexts(l);
    return err ? fail_lane(l, err, "", why) : OK;
}

/* Reads the next bytes of the file into a window. */
static err_t load_window(struct arrow_lane *l, struct buf *b, struct why *why)
{
    size_t n = (uint64_t)(l->end - l->at) < WINDOW ? (size_t)(l->end - l->at) : WINDOW;
    b->len = 0;
    if (buf_reserve(b, WINDOW))
        return fail_lane(l, ERR_NOMEM, "", why);
    err_t err = l->owner->in->ops->read(l->owner->in, l->at, b->data, n, why);
    if (err)
        return err;
    b->len = n;
    l->at += (int64_t)n;
    return OK;
}

/* One call of the decompressor. False: the bytes are damaged. */
static bool unpack_some(struct arrow_lane *l, size_t *ret_used, size_t *ret_made)
{
    const uint8_t *from = l->packed.data + l->packed_at;
    size_t n = l->packed.len - l->packed_at;
    if (l->codec == ARROW_LZ4) {
        *ret_used = n;
        *ret_made = WINDOW;
        return !LZ4F_isError(LZ4F_decompress(l->lz4, l->plain.data, ret_made, from, ret_used, NULL));
    }
    ZSTD_inBuffer in = {from, n, 0};
    ZSTD_outBuffer out = {l->plain.data, WINDOW, 0};
    size_t rc = ZSTD_decompressStream(l->zstd, &out, &in);
    *ret_used = in.pos;
    *ret_made = out.pos;
    return !ZSTD_isError(rc);
}

static err_t unpack_window(struct arrow_lane *l, struct why *why)
{
    if (buf_reserve(&l->plain, WINDOW) || buf_reserve(&l->packed, WINDOW))
        return fail_lane(l, ERR_NOMEM, "", why);
    for (;;) {
        size_t used, made;
        if (l->packed_at == l->packed.len && l->at < l->end) {
            err_t err = load_window(l, &l->packed, why);
            if (err)
                return err;
            l->packed_at = 0;
        }
        bool ok = unpack_some(l, &used, &made);
        if (!ok || (!used && !made))
            return fail_lane(l, ERR_CORRUPT, "a buffer cannot be decompressed; the file is damaged", why);
        l->packed_at += used;
        l->plain.len = made;
        if (made)
            return OK;
    }
}

static err_t fill(struct arrow_lane *l, struct why *why)
{
    l->plain.len = l->plain_at = 0;
    return l->codec == ARROW_RAW ? load_window(l, &l->plain, why) : unpack_window(l, why);
}

static err_t check_left(const struct arrow_lane *l, int64_t n, struct why *why)
{
    return n <= l->left ? OK
                        : fail_lane(l, ERR_CORRUPT, "a buffer is shorter than its values; the file is damaged", why);
}

err_t arrow_lane_read(struct arrow_lane *l, void *ret, size_t n, struct why *why)
{
    uint8_t *to = ret;
    err_t err = check_left(l, (int64_t)n, why);
    while (!err && n > 0) {
        size_t there = l->plain.len - l->plain_at, some = n < there ? n : there;
        if (some == 0) {
            err = fill(l, why);
            continue;
        }
        memcpy(to, l->plain.data + l->plain_at, some);
        l->plain_at += some;
        l->left -= (int64_t)some;
        to += some;
        n -= some;
    }
    return err;
}

err_t arrow_lane_skip(struct arrow_lane *l, int64_t n, struct why *why)
{
    err_t err = check_left(l, n, why);
    while (!err && n > 0) {
        int64_t there = (int64_t)(l->plain.len - l->plain_at), some = n < there ? n : there;
        if (some == 0 && l->codec == ARROW_RAW) {
            l->at += n;
            l->left -= n;
            return OK;
        }
        if (some == 0) {
            err = fill(l, why);
            continue;
        }
        l->plain_at += (size_t)some;
        l->left -= some;
        n -= some;
    }
    return err;
}

void arrow_lane_fini(struct arrow_lane *l)
{
    LZ4F_freeDecompressionContext(l->lz4);
    ZSTD_freeDCtx(l->zstd);
    buf_fini(&l->packed);
    buf_fini(&l->plain);
}

err_t arrow_bits_next(struct arrow_bits *b, bool *ret, struct why *why)
{
    err_t err = OK;
    *ret = true;
    if (b->absent)
        return OK;
    if (b->left == 0) {
        err = arrow_lane_read(&b->lane, &b->byte, 1, why);
        b->left = 8;
    }
    *ret = b->byte >> (8 - b->left--) & 1;
    return err;
}

err_t arrow_bits_skip(struct arrow_bits *b, int64_t n, struct why *why)
{
    bool bit;
    err_t err = OK;
    for (; !err && !b->absent && n > 0 && b->left > 0; n--)
        err = arrow_bits_next(b, &bit, why);
    if (err || b->absent)
        return err;
    err = arrow_lane_skip(&b->lane, n / 8, why);
    for (n %= 8; !err && n > 0; n--)
        err = arrow_bits_next(b, &bit, why);
    return err;
}
