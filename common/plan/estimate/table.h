/* Measured times of operations (`dtctl plan --calibrate`), and their use in a forecast. A table belongs to one node;
 * its times are those of one worker while all cores of the node work. As a file:
 *
 *     dtd times 1
 *     # comment
 *     gemm float32 trans_b 1  512 768 256  0.00354 0.0035 0.00361
 *
 * The columns are the operation, its type, its form ("-": none), the ranks that take part, its size in up to three
 * numbers (0: not used), and the seconds that it took: the median, the lower and the upper quartile; of a collective
 * the lower quartile, the lower tenth and the median, because ranks that wait for each other are disturbed more. Rows
 * of one operation, type, form and number of ranks are a group; the group's sizes are in ascending order and form a
 * full grid. A size between grid points gets the rate (work per second) that lies between theirs, on a logarithmic
 * scale; in a product the sizes that are multiples of 1024 are interpolated among themselves, and so are the others.
 * Outside the grid the rate of its edge holds, except that no collective takes less time than the smallest measured
 * one.
 *
 *     operation                     form                        size
 *     gemm, grouped_gemm            trans_a, trans_b, acc       m, n, k (of one expert)
 *     attention, attention_grad     causal                      keys, head_dim; of one head and as many queries
 *     collectives                   private, shared (operand)   bytes from peers
 *     other                         -                           bytes read and written
 *
 * Pure, except for printing. */
#ifndef DTD_COMMON_PLAN_ESTIMATE_TABLE_H
#define DTD_COMMON_PLAN_ESTIMATE_TABLE_H

#include "common/base/buf.h"
#include "common/plan/program.h"

#define TABLE_MAX_BYTES ((size_t)8 << 20)
#define TABLE_MAX_ROWS 65536
#define TABLE_DIMS 3
/* Rows of a matrix whose width is a multiple of this many elements (4 KiB in float32) fall into the same sets of a
 * cache, which makes its products up to a fifth slower. */
#define TABLE_ALIAS 1024

enum table_figure { TABLE_MEDIAN, TABLE_LOW, TABLE_HIGH, TABLE_FIGURES };

/* Bits of table_key.form. A gemm has the first three, an attention CAUSAL, a collective SHARED. */
enum { TABLE_TRANS_A = 1, TABLE_TRANS_B = 2, TABLE_ACC = 4, TABLE_CAUSAL = 8, TABLE_SHARED = 16 };

struct table_key {
    enum op_kind kind;
    enum dtype dtype;
    int form, ranks; /* ranks: 1 for an operation without communication */
};

struct table_row {
    struct table_key key;
    double size[TABLE_DIMS];
    double seconds[TABLE_FIGURES];
};

struct plan_table {
    struct table_row *rows; /* sorted by key and size */
    int n;
};

/* Fills key and size of the op, without seconds. *ret_parts: how many times the work of a row of this size the op has
 * (an attention: samples and heads). False: no table has a row for it (messages between stages). */
bool plan_table_shape(const struct program *p, const struct op *op, int64_t samples, struct table_row *ret,
                      double *ret_parts);

/* Seconds of the op; negative: the table has no answer. For a product with a bias or an activation they include these
 * passes. */
double plan_table_seconds(const struct plan_table *t, const struct program *p, const struct op *op, int64_t samples,
                          enum table_figure figure);

/* Sorts rows and prints them as a file, after comments that begin with "# ". Rows of equal key and size must not be
 * there twice. */
void plan_table_sort(struct table_row *rows, int n);
NODISCARD err_t plan_table_print(const struct table_row *rows, int n, struct buf *ret);
/* `name` begins error messages, as in "NAME:LINE: ...". ERR_INVALID, ERR_NOMEM. Freed by plan_table_fini. */
NODISCARD err_t plan_table_read(const char *text, size_t len, const char *name, struct plan_table *ret,
                                struct why *why);
void plan_table_fini(struct plan_table *t); /* legal on a zeroed one */

#endif
