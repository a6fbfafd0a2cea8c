/* What the parts of `dt-worker --measure` share. Private to worker/measure*.c. */
#ifndef DTD_WORKER_MEASURE_PART_H
#define DTD_WORKER_MEASURE_PART_H

#include "common/base/buf.h"
#include "common/plan/estimate/table.h"
#include "kernels/kernels.h"

/* One measured time. */
struct measure_sample {
    struct table_key key;
    double size[TABLE_DIMS], seconds;
    uint64_t call; /* of a collective: equal on all ranks that take part in this call of it, and nowhere else; else 0 */
};

/* The samples of one process in one part, in memory that it shares with its parent. */
#define MEASURE_SAMPLES 65536
struct measure_samples {
    int n;
    struct measure_sample list[MEASURE_SAMPLES];
};

/* What a process of a part works with. */
struct measure {
    int rank, world, fd; /* fd: the segment of the comm */
    int turn;            /* of a part with several turns: which */
    struct dev *dev;
    struct kern_stream *stream;
    double *figures;                 /* shared with the parent */
    struct measure_samples *samples; /* the same; NULL: the parent needs none of this process */
    struct why *why;
};

int64_t measure_thread_ns(void); /* processor time of this thread */

/* ---- measure_kernels.c: kernels one by one, over grids of sizes ---- */

#define MEASURE_TYPES 2 /* turns: float32, bfloat16 */
NODISCARD err_t measure_products(struct measure *m);
NODISCARD err_t measure_kernels(struct measure *m);
void measure_add(struct measure *m, const struct measure_sample *s);

/* ---- measure_steps.c: operations of whole steps ---- */

extern const int measure_steps_turns;
NODISCARD err_t measure_steps(struct measure *m);

/* ---- measure_table.c ---- */

/* The samples of all parts, in the parent. */
struct measure_all {
    struct measure_sample *list;
    int n, cap;
};
/* Adds those of the processes. Of one call of a collective the rank that arrived last counts, since it did not wait. */
NODISCARD err_t measure_collect(struct measure_all *all, const struct measure_samples *of, int world);
/* Reduces the samples of each operation and size to a row, and prints the table. */
NODISCARD err_t measure_table(struct measure_all *all, struct buf *ret);
void measure_all_fini(struct measure_all *all);

#endif
