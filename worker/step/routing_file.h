/* Files of routing: the experts that routers chose in a step, by token. A save is a folder for each step, DIR/step-N,
 * with a file K-of-W from each of W ranks: the choices of the tokens that the rank routes. A token is named by its
 * sample in the global batch and its position, so a job in any other layout finds its own tokens. All numbers are
 * little-endian:
 *
 *   "dtdroute"                                8 bytes
 *   struct routing_head, in order             64-bit integers
 *   blocks: router, sample, position, tokens  64-bit integers, tokens at least 1
 *           tokens k ids                      16-bit integers, ascending in each token
 *   hash_end of all bytes before              64-bit integer
 *
 * Pure, except for memory. */
#ifndef DTD_WORKER_STEP_ROUTING_FILE_H
#define DTD_WORKER_STEP_ROUTING_FILE_H

#include "common/base/buf.h"

#include <stdbool.h>

/* Identifies the job as far as choices depend on it. */
struct routing_head {
    int64_t version, step, experts, k, routers, seq, batch; /* batch: samples of a step */
    int64_t data;                                           /* hash of the data set's hash and of train.seed */
};

#define ROUTING_VERSION 1

/* The choices of consecutive tokens of a sample by one router. */
struct routing_block {
    int64_t router, sample, position, tokens;
    const uint8_t *ids; /* in a file: [tokens, k], 16 bits each */
};

NODISCARD err_t routing_file_begin(struct buf *b, const struct routing_head *head);
/* ids[tokens, k]; block->ids is not used. */
NODISCARD err_t routing_file_add(struct buf *b, const struct routing_head *head, const struct routing_block *block,
                                 const uint16_t *ids);
NODISCARD err_t routing_file_end(struct buf *b);

/* The most bytes of a file of this head. */
size_t routing_file_most(const struct routing_head *head);

struct routing_file {
    struct routing_head head;
    const uint8_t *at, *end; /* the blocks that routing_file_next has not returned */
};

/* Checks the whole file, whose bytes must outlive `ret`; every block is then within the head's sizes, and its ids are
 * experts. ERR_CORRUPT; `why` begins with the name. */
NODISCARD err_t routing_file_open(const uint8_t *data, size_t n, const char *name, struct routing_file *ret,
                                  struct why *why);
/* False after the last block. */
bool routing_file_next(struct routing_file *f, struct routing_block *ret);
/* Id i of a block. */
static inline uint16_t routing_id(const struct routing_block *b, int64_t i)
{
    return (uint16_t)(b->ids[2 * i] | b->ids[2 * i + 1] << 8);
}

#endif
