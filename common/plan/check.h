/* The checker's own parts, beside check_extent.c (how far operands reach, and their types): check.c (structure, and all
 * ranks together), check_place.c (where buffers lie), check_rank.c (what one rank does in two steps). Private to
 * common/plan. */
#ifndef DTD_COMMON_PLAN_CHECK_H
#define DTD_COMMON_PLAN_CHECK_H

#include "common/plan/program.h"

/* A line of a program, for messages. */
struct check_at {
    const struct program *p;
    int action, op;
};

/* ERR_INVALID with "rank 1, action 3 (backward micro 0), op 17 (gemm): " before the sentence. */
err_t check_fail(const struct check_at *at, struct why *why, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

bool check_is_collective(const struct op *op);
/* No operand reaches past its buffer or has elements of another type than the kernel takes. */
err_t check_operand_shapes(const struct check_at *at, const struct op *op, struct why *why);

/* One instance of a buffer that contains no other: the unit in which values are followed. */
struct spot {
    int buffer, slot;
    int64_t lo, hi; /* bytes in its space */
};

struct spots {
    struct spot *place;
    int n;
    int *first;                    /* by buffer: its first place; -1 for a run of other buffers */
    int *overlap_first, *overlaps; /* by place: the places that share bytes with it */
};

/* Every buffer inside its space, aligned, inside its run; buffers that live as long as the job disjoint; the
 * spaces exactly as large as what is in them. `ret` is freed by spots_fini. */
NODISCARD err_t spots_check(const struct program *p, struct spots *ret, struct why *why);
void spots_fini(struct spots *p);
/* Whether `buffer` is `run` or lies in it, at any depth. */
bool spots_in_run(const struct program *p, int buffer, int run);

/* Two steps of one rank: what is read has been written in this step and not been overwritten, partials are reduced once
 * before use, every parameter is updated once, and accesses from different streams are ordered by events. */
NODISCARD err_t check_rank(const struct program *p, struct why *why);

#endif
