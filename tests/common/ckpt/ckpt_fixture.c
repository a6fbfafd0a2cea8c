/* Values are multiples of 1/2 below 128: exact in bfloat16, float16 and (doubled) in int8. */
#include "tests/common/ckpt/ckpt_fixture.h"

#include <limits.h>
#include <math.h>

const struct fixture_tensor fixture_model[] = {
    {"tok_embeddings.weight", DT_F32, 2, {37, 24}},
    {"layers.0.attention.wq.weight", DT_F32, 2, {24, 24}},
    {"layers.0.attention_norm.weight", DT_F32, 1, {24}},
    {"layers.0.cube", DT_BF16, 3, {5, 6, 7}},
    {"half", DT_F16, 2, {9, 4}},
    {"double", DT_F64, 1, {33}},
    {"flags", DT_BOOL, 1, {17}},
    {"ids", DT_I64, 2, {3, 5}},
    {"optimizer.state.tok_embeddings.weight.exp_avg", DT_F32, 2, {37, 24}},
    {"optimizer.state.tok_embeddings.weight.step", DT_F32, 0, {0}},
    {"empty", DT_F32, 2, {0, 4}},
};
const int fixture_n_model = (int)(sizeof(fixture_model) / sizeof(fixture_model[0]));

const struct ckpt_scalar fixture_scalars[] = {
    {"train_state.step", CKPT_INT, 100, {0, 0}, NULL},
    {"train_state.ntokens_seen", CKPT_INT, 12345678901234, {0, 0}, NULL},
    {"lr_scheduler.last_lr", CKPT_FLOAT, 0, {0.1, 0}, NULL},
    {"optimizer.param_groups.w.betas", CKPT_FLOAT_PAIR, 0, {0.9, 0.95}, NULL},
    {"optimizer.param_groups.w.amsgrad", CKPT_BOOL, 1, {0, 0}, NULL},
    {"optimizer.param_groups.w.foreach", CKPT_NONE, 0, {0, 0}, NULL},
    {"dataloader.name", CKPT_STR, 0, {0, 0}, "wikitext"},
};
const int fixture_n_scalars = (int)(sizeof(fixture_scalars) / sizeof(fixture_scalars[0]));

double fixture_value(int t, int64_t i)
{
    return (double)((i * 7 + t * 13) % 101) / 2 - 20;
}

static uint16_t top_half(float v)
{
    uint32_t bits;
    memcpy(&bits, &v, sizeof(bits));
    return (uint16_t)(bits >> 16);
}

/* Exact only for the fixture's values. */
static uint16_t to_f16(double v)
{
    int exp;
    double m = frexp(fabs(v), &exp);
    if (v == 0)
        return 0;
    return (uint16_t)((v < 0 ? 0x8000 : 0) | (unsigned)(exp + 14) << 10 | ((unsigned)(m * 2048) & 1023));
}

static double from_f16(uint16_t h)
{
    int exp = (h >> 10) & 31, man = h & 1023;
    double v = exp ? ldexp(1024 + man, exp - 25) : ldexp(man, -24);
    return h & 0x8000 ? -v : v;
}

static int64_t integer(enum dtype dtype, double v)
{
    return dtype == DT_BOOL ? v > 0 : (int64_t)(2 * v);
}

void fixture_fill(enum dtype dtype, int t, int64_t first, int64_t n, void *dst)
{
    for (int64_t i = 0; i < n; i++) {
        double v = fixture_value(t, first + i);
        float f = (float)v;
        int64_t whole = integer(dtype, v);
        uint16_t h = dtype == DT_BF16 ? top_half(f) : to_f16(v);
        const void *from = dtype == DT_F32                       ? (const void *)&f
                           : dtype == DT_F64                     ? (const void *)&v
                           : dtype == DT_BF16 || dtype == DT_F16 ? (const void *)&h
                                                                 : (const void *)&whole;
        memcpy((char *)dst + (size_t)i * dtype_bytes(dtype), from, dtype_bytes(dtype));
    }
}

double fixture_load(enum dtype dtype, const void *data, int64_t i)
{
    const char *p = (const char *)data + (size_t)i * dtype_bytes(dtype);
    float f = 0;
    double d = 0;
    uint16_t h = 0;
    int64_t whole = 0;
    switch (dtype) {
    case DT_F32:
        memcpy(&f, p, 4);
        return (double)f;
    case DT_F64:
        memcpy(&d, p, 8);
        return d;
    case DT_F16:
        memcpy(&h, p, 2);
        return from_f16(h);
    case DT_BF16: {
        uint32_t bits;
        memcpy(&h, p, 2);
        bits = (uint32_t)h << 16;
        memcpy(&f, &bits, 4);
        return (double)f;
    }
    default:
        memcpy(&whole, p, dtype_bytes(dtype));
        return (double)whole;
    }
}

int64_t fixture_index(int ndim, const int64_t *shape, const int64_t *at)
{
    int64_t i = 0;
    for (int d = 0; d < ndim; d++)
        i = i * shape[d] + at[d];
    return i;
}

struct box fixture_whole(const struct fixture_tensor *t)
{
    struct box b = {.ndim = t->ndim};
    memcpy(b.size, t->shape, sizeof(b.size));
    return b;
}

/* Calls the callback for every element of a box, with its coordinates and its index within the box. */
static void each_element(const struct box *box, void (*fn)(const int64_t *at, int64_t i, void *arg), void *arg)
{
    int64_t at[BOX_MAX_DIMS], n = box_elements(box);
    memcpy(at, box->offset, sizeof(at));
    for (int64_t i = 0; i < n; i++) {
        fn(at, i, arg);
        for (int d = box->ndim - 1; d >= 0; d--) {
            if (++at[d] < box->offset[d] + box->size[d])
                break;
            at[d] = box->offset[d];
        }
    }
}

struct fill {
    int t;
    const struct fixture_tensor *tensor;
    char *data;
};

static void fill_one(const int64_t *at, int64_t i, void *arg)
{
    struct fill *f = arg;
    fixture_fill(f->tensor->dtype, f->t, fixture_index(f->tensor->ndim, f->tensor->shape, at), 1,
                 f->data + (size_t)i * dtype_bytes(f->tensor->dtype));
}

void fixture_add(struct fixture *f, int t, int rank, const struct box *box)
{
    const struct fixture_tensor *tensor = &f->tensors[t];
    assert_true(f->n_pieces < FIXTURE_MAX_PIECES);
    struct fixture_piece *p = &f->pieces[f->n_pieces++];
    char *data = malloc((size_t)box_elements(box) * dtype_bytes(tensor->dtype) + 1);
    assert_non_null(data);
    struct fill fill = {t, tensor, data};
    each_element(box, fill_one, &fill);
    p->rank = rank;
    p->piece = (struct ckpt_piece){
        .fqn = tensor->fqn, .dtype = tensor->dtype, .ndim = tensor->ndim, .box = *box, .data = data};
    memcpy(p->piece.shape, tensor->shape, sizeof(p->piece.shape));
}

void fixture_shard(struct fixture *f, int ranks)
{
    for (int t = 0; t < f->n_tensors; t++) {
        struct box box = fixture_whole(&f->tensors[t]);
        if (box.ndim == 0 || box_elements(&box) == 0) {
            fixture_add(f, t, 0, &box);
            continue;
        }
        int64_t rows = box.size[0], share = (rows + ranks - 1) / ranks;
        for (int r = 0; r < ranks; r++) {
            box.offset[0] = r * share < rows ? r * share : rows;
            box.size[0] = rows - box.offset[0] < share ? rows - box.offset[0] : share;
            fixture_add(f, t, r, &box);
        }
    }
}

/* Halves a box at a random place of a random dimension, a few times. */
static void scatter_box(struct fixture *f, int t, const struct box *box, int ranks, int depth, unsigned *seed)
{
    int d = box->ndim ? rand_r(seed) % box->ndim : 0;
    if (depth == 0 || box->ndim == 0 || box->size[d] < 2) {
        fixture_add(f, t, rand_r(seed) % ranks, box);
        return;
    }
    int64_t cut = 1 + rand_r(seed) % (box->size[d] - 1);
    struct box a = *box, b = *box;
    a.size[d] = cut;
    b.offset[d] += cut;
    b.size[d] -= cut;
    scatter_box(f, t, &a, ranks, depth - 1, seed);
    scatter_box(f, t, &b, ranks, depth - 1, seed);
}

void fixture_scatter(struct fixture *f, int ranks, unsigned seed)
{
    for (int t = 0; t < f->n_tensors; t++) {
        struct box box = fixture_whole(&f->tensors[t]);
        scatter_box(f, t, &box, ranks, rand_r(&seed) % 4, &seed);
    }
}

void fixture_free(struct fixture *f)
{
    for (int i = 0; i < f->n_pieces; i++)
        free((void *)(uintptr_t)f->pieces[i].piece.data);
    f->n_pieces = 0;
}

static void parts_write(const struct fixture *f, const char *dir, int ranks, struct ckpt_part **ret)
{
    struct why why = {{0}};
    for (int r = 0; r < ranks; r++) {
        struct ckpt_piece mine[FIXTURE_MAX_PIECES];
        int n = 0;
        for (int i = 0; i < f->n_pieces; i++)
            if (f->pieces[i].rank == r)
                mine[n++] = f->pieces[i].piece;
        err_t err = ckpt_part_write(dir, r, mine, n, fixture_scalars, r ? 0 : fixture_n_scalars, &ret[r], &why);
        if (err)
            print_error("%s\n", why.text);
        assert_ok(err);
    }
}

void fixture_write_parts(const struct fixture *f, const char *root, int64_t step, uint64_t epoch, int ranks,
                         struct ckpt_part **ret)
{
    char dir[PATH_MAX];
    assert_ok(ckpt_partial_dir(root, step, epoch, dir, sizeof(dir)));
    parts_write(f, dir, ranks, ret);
}

void fixture_write_parts_of(const struct fixture *f, const char *root, int64_t step, const struct ckpt_writer_id *id,
                            int ranks, struct ckpt_part **ret)
{
    char dir[PATH_MAX];
    assert_ok(ckpt_partial_dir_of(root, step, id, dir, sizeof(dir)));
    parts_write(f, dir, ranks, ret);
}

void fixture_save(const struct fixture *f, const char *root, int64_t step, uint64_t epoch, int ranks)
{
    struct ckpt_part *parts[64];
    struct why why = {{0}};
    const struct ckpt_commit commit = {.root = root,
                                       .step = step,
                                       .epoch = epoch,
                                       .job_yaml = "name: fixture\n",
                                       .vocab = "a\nb\n",
                                       .vocab_bytes = 4,
                                       .loss = 2.25};
    fixture_write_parts(f, root, step, epoch, ranks, parts);
    err_t err = ckpt_commit(&commit, parts, ranks, &why);
    if (err)
        print_error("%s\n", why.text);
    assert_ok(err);
    for (int r = 0; r < ranks; r++)
        ckpt_part_free(parts[r]);
}

struct check {
    int t;
    const struct fixture_tensor *tensor;
    enum dtype as;
    const char *data;
};

static void check_one(const int64_t *at, int64_t i, void *arg)
{
    const struct check *c = arg;
    int64_t index = fixture_index(c->tensor->ndim, c->tensor->shape, at);
    char want[8];
    fixture_fill(c->tensor->dtype, c->t, index, 1, want);
    double expected = fixture_load(c->tensor->dtype, want, 0), actual = fixture_load(c->as, c->data, i);
    if (expected != actual)
        fail_msg("%s element %lld read as %s is %g, not %g", c->tensor->fqn, (long long)index, dtype_name(c->as),
                 actual, expected);
}

void fixture_check_box(const struct fixture *f, struct ckpt *c, int t, const struct box *box, enum dtype as)
{
    struct why why = {{0}};
    size_t bytes = (size_t)box_elements(box) * dtype_bytes(as);
    char *data = malloc(bytes + 1);
    assert_non_null(data);
    memset(data, 0xa5, bytes + 1);
    const struct ckpt_want want = {f->tensors[t].fqn, *box, as, data};
    err_t err = ckpt_read(c, &want, 1, NULL, &why);
    if (err)
        print_error("%s\n", why.text);
    assert_ok(err);
    struct check check = {t, &f->tensors[t], as, data};
    each_element(box, check_one, &check);
    assert_int_equal((unsigned char)data[bytes], 0xa5);
    free(data);
}

void fixture_check_all(const struct fixture *f, struct ckpt *c)
{
    for (int t = 0; t < f->n_tensors; t++) {
        struct box box = fixture_whole(&f->tensors[t]);
        fixture_check_box(f, c, t, &box, f->tensors[t].dtype);
    }
}
