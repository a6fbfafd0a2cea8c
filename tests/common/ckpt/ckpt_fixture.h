/* Checkpoints for tests: models of a few tensors with known values, cut into boxes and written by a few ranks. The
 * oracle is value_at(), which gives the value of every element, independent of the boxes. */
#ifndef DTD_TESTS_COMMON_CKPT_FIXTURE_H
#define DTD_TESTS_COMMON_CKPT_FIXTURE_H

#include "common/ckpt/shared.h"
#include "tests/lib/test.h"

#define FIXTURE_MAX_PIECES 256

struct fixture_tensor {
    const char *fqn;
    enum dtype dtype;
    int ndim;
    int64_t shape[BOX_MAX_DIMS];
};

/* One box that one rank holds. */
struct fixture_piece {
    int rank;
    struct ckpt_piece piece;
};

struct fixture {
    const struct fixture_tensor *tensors;
    int n_tensors;
    struct fixture_piece pieces[FIXTURE_MAX_PIECES];
    int n_pieces;
};

/* The exact value of the element with row-major number i of tensor t: small enough for every type. */
double fixture_value(int t, int64_t i);
/* Writes n values in a type, from number `first`. */
void fixture_fill(enum dtype dtype, int t, int64_t first, int64_t n, void *dst);
double fixture_load(enum dtype dtype, const void *data, int64_t i);
/* Row-major number of coordinates in a shape. */
int64_t fixture_index(int ndim, const int64_t *shape, const int64_t *at);

/* Adds one box with its data. */
void fixture_add(struct fixture *f, int t, int rank, const struct box *box);
/* Cuts every tensor along dimension 0 into `ranks` shards (ceil); scalars stay on rank 0. */
void fixture_shard(struct fixture *f, int ranks);
/* Cuts every tensor at random into boxes and distributes them over `ranks`. */
void fixture_scatter(struct fixture *f, int ranks, unsigned seed);
void fixture_free(struct fixture *f);

/* Writes the parts of all ranks into root's partial folder. */
void fixture_write_parts(const struct fixture *f, const char *root, int64_t step, uint64_t epoch, int ranks,
                         struct ckpt_part **ret);
/* The same in the partial folder of this writer, as a dtd-io of its job. */
void fixture_write_parts_of(const struct fixture *f, const char *root, int64_t step, const struct ckpt_writer_id *id,
                            int ranks, struct ckpt_part **ret);
/* Parts and commit. */
void fixture_save(const struct fixture *f, const char *root, int64_t step, uint64_t epoch, int ranks);
/* Asserts that a box of tensor t, read as `as`, has the right values. */
void fixture_check_box(const struct fixture *f, struct ckpt *c, int t, const struct box *box, enum dtype as);
void fixture_check_all(const struct fixture *f, struct ckpt *c);
struct box fixture_whole(const struct fixture_tensor *t);

/* The small model that most tests use, and its values. */
extern const struct fixture_tensor fixture_model[];
extern const int fixture_n_model;
extern const struct ckpt_scalar fixture_scalars[];
extern const int fixture_n_scalars;

#endif
