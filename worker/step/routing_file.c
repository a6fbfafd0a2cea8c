/* The head is an array of numbers in the order of its fields, and so is that of a block, so both are written and read
 * by one loop. A file is checked as a whole before anything is taken from it. */
#include "worker/step/routing_file.h"

#include "common/base/hash.h"

#include <inttypes.h>
#include <string.h>

#define MAGIC "dtdroute"
#define MAGIC_BYTES 8
#define HEAD_NUMBERS ((int)(sizeof(struct routing_head) / sizeof(int64_t)))
#define BLOCK_NUMBERS 4

static int64_t number_at(const uint8_t *at)
{
    uint64_t x = 0;
    for (int i = 7; i >= 0; i--)
        x = x << 8 | at[i];
    return (int64_t)x;
}

static err_t add_numbers(struct buf *b, const int64_t *x, int n)
{
    err_t err = OK;
    for (int i = 0; i < n && !err; i++) {
        uint8_t bytes[8];
        for (int k = 0; k < 8; k++)
            bytes[k] = (uint8_t)((uint64_t)x[i] >> 8 * k);
        err = buf_append(b, bytes, sizeof(bytes));
    }
    return err;
}

err_t routing_file_begin(struct buf *b, const struct routing_head *head)
{
    const int64_t x[HEAD_NUMBERS] = {head->version, head->step, head->experts, head->k,
                                     head->routers, head->seq,  head->batch,   head->data};
    err_t err = buf_append(b, MAGIC, MAGIC_BYTES);
    return err ? err : add_numbers(b, x, HEAD_NUMBERS);
}

err_t routing_file_add(struct buf *b, const struct routing_head *head, const struct routing_block *block,
                       const uint16_t *ids)
{
    const int64_t x[BLOCK_NUMBERS] = {block->router, block->sample, block->position, block->tokens};
    err_t err = add_numbers(b, x, BLOCK_NUMBERS);
    err = err ? err : buf_reserve(b, (size_t)(block->tokens * head->k) * 2);
    for (int64_t i = 0; i < block->tokens * head->k && !err; i++) {
        const uint8_t bytes[2] = {(uint8_t)ids[i], (uint8_t)(ids[i] >> 8)};
        err = buf_append(b, bytes, sizeof(bytes));
    }
    return err;
}

static uint64_t hash_of(const uint8_t *data, size_t n)
{
    struct hash h;
    hash_init(&h);
    hash_add(&h, data, n);
    return hash_end(&h);
}

err_t routing_file_end(struct buf *b)
{
    const int64_t hash = (int64_t)hash_of(b->data, b->len);
    return add_numbers(b, &hash, 1);
}

size_t routing_file_most(const struct routing_head *head)
{
    const int64_t tokens = head->routers * head->batch * head->seq;
    return MAGIC_BYTES + 8 * (HEAD_NUMBERS + 1) + (size_t)tokens * (size_t)(8 * BLOCK_NUMBERS + 2 * head->k);
}

static bool head_legal(const struct routing_head *h)
{
    const int64_t most = INT64_C(1) << 40;
    return h->version == ROUTING_VERSION && h->experts > 0 && h->experts <= 1 << 16 && h->k > 0 && h->k <= h->experts &&
           h->step > 0 && h->routers > 0 && h->routers < most && h->seq > 0 && h->seq < most && h->batch > 0 &&
           h->batch < most;
}

static bool ids_legal(const struct routing_head *h, const struct routing_block *b)
{
    for (int64_t i = 0; i < b->tokens * h->k; i++)
        if (routing_id(b, i) >= h->experts || (i % h->k && routing_id(b, i) <= routing_id(b, i - 1)))
            return false;
    return true;
}

static bool in(int64_t x, int64_t n)
{
    return x >= 0 && x < n;
}

/* Reads the block at f->at. False: there is no legal one. */
static bool block_at(const struct routing_file *f, struct routing_block *b)
{
    const struct routing_head *h = &f->head;
    const size_t left = (size_t)(f->end - f->at);
    if (left < 8 * BLOCK_NUMBERS)
        return false;
    *b = (struct routing_block){number_at(f->at), number_at(f->at + 8), number_at(f->at + 16), number_at(f->at + 24),
                                f->at + 8 * BLOCK_NUMBERS};
    return in(b->router, h->routers) && in(b->sample, h->batch) && in(b->position, h->seq) && b->tokens > 0 &&
           b->tokens <= h->seq - b->position && (uint64_t)b->tokens <= (left - 8 * BLOCK_NUMBERS) / 2 / (uint64_t)h->k;
}

bool routing_file_next(struct routing_file *f, struct routing_block *ret)
{
    if (f->at == f->end || !block_at(f, ret))
        return false;
    f->at = ret->ids + 2 * ret->tokens * f->head.k;
    return true;
}

err_t routing_file_open(const uint8_t *data, size_t n, const char *name, struct routing_file *ret, struct why *why)
{
    const size_t least = MAGIC_BYTES + 8 * (HEAD_NUMBERS + 1);
    int64_t x[HEAD_NUMBERS];
    struct routing_block b;
    if (n < least || memcmp(data, MAGIC, MAGIC_BYTES) != 0)
        return why_set(why, ERR_CORRUPT, "%s is no file of routing, or is cut off", name);
    if ((uint64_t)number_at(data + n - 8) != hash_of(data, n - 8))
        return why_set(why, ERR_CORRUPT, "%s is damaged: its checksum is wrong. Save the routing again", name);
    for (int i = 0; i < HEAD_NUMBERS; i++)
        x[i] = number_at(data + MAGIC_BYTES + 8 * i);
    struct routing_file f = {{x[0], x[1], x[2], x[3], x[4], x[5], x[6], x[7]}, data + least - 8, data + n - 8};
    struct routing_file all = f;
    if (!head_legal(&f.head))
        return why_set(why, ERR_CORRUPT, "%s has version %" PRId64 " and sizes that this version of dtd does not read",
                       name, f.head.version);
    while (routing_file_next(&f, &b))
        if (!ids_legal(&f.head, &b))
            return why_set(why, ERR_CORRUPT, "%s: block of sample %" PRId64 ": no choice of %" PRId64 " experts", name,
                           b.sample, f.head.k);
    if (f.at != f.end)
        return why_set(why, ERR_CORRUPT, "%s: byte %zu begins no block of choices", name, (size_t)(f.at - data));
    *ret = all;
    return OK;
}
