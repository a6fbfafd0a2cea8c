/* Token files of other programs. Their layouts are those of the programs' sources, built here byte by byte; what a set
 * returns is compared with the ids that were written. */
#include "tests/common/data/expected.h"

#include <endian.h>
#include <utime.h>

static const int32_t ids[] = {5, 6, 7, 250, 8, 9, 0, 1, 2, 3, 4, 255};
#define N_IDS ((int64_t)(sizeof(ids) / sizeof(ids[0])))

static void put(struct buf *b, uint64_t value, int bytes)
{
    uint64_t le = htole64(value);
    assert_ok(buf_append(b, &le, (size_t)bytes));
}

static char *make(const char *name, struct buf *b)
{
    char *path = file_make(name, b->data ? b->data : (const uint8_t *)"", b->len);
    buf_fini(b);
    return path;
}

static char *make_ids(const char *name, int bytes)
{
    struct buf b = {0};
    for (int64_t i = 0; i < N_IDS; i++)
        put(&b, (uint64_t)ids[i], bytes);
    return make(name, &b);
}

/* Sequences of these lengths; documents end behind sequences 2, 2 (an empty one) and 3. */
static const int lengths[] = {3, 4, 5};
static const int breaks[] = {0, 2, 2, 3};

static char *make_mmididx(const char *name, int code, int bytes)
{
    struct buf b = {0};
    uint64_t place = 0;
    assert_ok(buf_append(&b, "MMIDIDX\0\0", 9));
    put(&b, 1, 8);
    put(&b, (uint64_t)code, 1);
    put(&b, 3, 8);
    put(&b, 4, 8);
    for (int i = 0; i < 3; i++)
        put(&b, (uint64_t)lengths[i], 4);
    for (int i = 0; i < 3; place += (uint64_t)(lengths[i++] * bytes))
        put(&b, place, 8);
    for (int i = 0; i < 4; i++)
        put(&b, (uint64_t)breaks[i], 8);
    return make(name, &b);
}

static char *make_tntidx(const char *name, int code, int bytes)
{
    struct buf b = {0};
    uint64_t place = 0;
    assert_ok(buf_append(&b, "TNTIDX\0\0", 8));
    put(&b, 1, 8);
    put(&b, (uint64_t)code, 8);
    put(&b, (uint64_t)bytes, 8);
    put(&b, 3, 8);
    put(&b, 3, 8);
    put(&b, 4, 8);
    for (int i = 0; i <= 3; i++)
        put(&b, (uint64_t)i, 8);
    for (int i = 0; i <= 3; place += i < 3 ? (uint64_t)lengths[i] : 0, i++)
        put(&b, place, 8);
    for (int i = 0; i < 3; i++)
        put(&b, (uint64_t)lengths[i], 8);
    for (int i = 0; i < 4; i++)
        put(&b, (uint64_t)breaks[i], 8);
    return make(name, &b);
}

static void check_file(struct data_prepare p, int n, char *const *files, int64_t first_end)
{
    static struct expected e;
    e = (struct expected){0};
    struct data_set *set = prepare_open(p, n, files);
    if (first_end) {
        expect_document(&e, ids, NULL, first_end);
        expect_document(&e, ids + first_end, NULL, N_IDS - first_end);
    } else {
        expect_document(&e, ids, NULL, N_IDS);
        e.documents = 0;
    }
    check_set(set, &e);
    data_close(set);
}

TEST(megatron)
{
    static const struct {
        int code, bytes;
    } types[] = {{1, 1}, {3, 2}, {4, 4}, {5, 8}, {8, 2}};
    for (size_t i = 0; i < sizeof(types) / sizeof(types[0]); i++) {
        char *bin = make_ids("x.bin", types[i].bytes), *idx = make_mmididx("x.idx", types[i].code, types[i].bytes);
        char *both[] = {bin, idx};
        check_file((struct data_prepare){0}, 1, &idx, 7);
        check_file((struct data_prepare){0}, 1, &bin, 7);
        check_file((struct data_prepare){0}, 2, both, 7);
        make_tntidx("x.idx", types[i].code, types[i].bytes);
        check_file((struct data_prepare){0}, 1, &idx, 7);
    }
}

TEST(llmc)
{
    for (int wide = 0; wide < 2; wide++) {
        struct buf b = {0};
        put(&b, wide ? 20240801 : 20240520, 4);
        put(&b, wide ? 7 : 1, 4);
        put(&b, (uint64_t)N_IDS, 4);
        for (int i = 3; i < 256; i++)
            put(&b, 0, 4);
        for (int64_t i = 0; i < N_IDS; i++)
            put(&b, (uint64_t)ids[i], wide ? 4 : 2);
        char *file = make("fineweb_train_000001.bin", &b);
        check_file((struct data_prepare){0}, 1, &file, 0);
    }
}

TEST(numpy)
{
    static const char header[] = "{'descr': '<u2', 'fortran_order': False, 'shape': (12,), }";
    struct buf b = {0};
    assert_ok(buf_append(&b, "\x93NUMPY\x01\0\x76\0", 10)); /* 118 bytes: the array begins at 128 */
    assert_ok(buf_printf(&b, "%-117s\n", header));
    for (int64_t i = 0; i < N_IDS; i++)
        put(&b, (uint64_t)ids[i], 2);
    char *file = make("x.npy", &b);
    check_file((struct data_prepare){0}, 1, &file, 0);
}

TEST(ids_and_nothing_else)
{
    static const struct {
        const char *format;
        int bytes;
    } types[] = {{"uint16", 2}, {"uint32", 4}, {"int32", 4}, {"int64", 8}};
    for (size_t i = 0; i < sizeof(types) / sizeof(types[0]); i++) {
        char *file = make_ids("train.bin", types[i].bytes);
        check_file((struct data_prepare){.format = types[i].format}, 1, &file, 0);
    }
}

TEST(datatrove)
{
    static struct expected e;
    static const uint8_t weights[] = {0, 1, 1, 1, 0, 0, 1, 1, 1, 1, 0, 1};
    struct buf index = {0};
    put(&index, 7, 8);
    put(&index, 12, 8);
    char *files[] = {make_ids("00000.ds", 4), make("00000.ds.index", &index), file_make_text("00000.ds.metadata", "x")};
    check_file((struct data_prepare){0}, 3, files, 7);
    file_make("00000.ds.loss", weights, sizeof(weights));
    struct data_set *set = prepare_open((struct data_prepare){0}, 1, files + 1);
    expect_document(&e, ids, weights, 7);
    expect_document(&e, ids + 7, weights + 7, 5);
    check_set(set, &e);
    assert_true(data_weighted(set));
    data_close(set);
}

/* Files with and without ends: one without them is one document. */
TEST(files_are_joined)
{
    static struct expected e;
    char *files[] = {make_ids("a.bin", 2), make_ids("b.bin", 2)};
    make_mmididx("a.idx", 8, 2);
    make_mmididx("b.idx", 8, 2);
    struct data_set *set = prepare_open((struct data_prepare){0}, 2, files);
    for (int i = 0; i < 2; i++) {
        expect_document(&e, ids, NULL, 7);
        expect_document(&e, ids + 7, NULL, 5);
    }
    check_set(set, &e);
    data_close(set);
}

/* A set copies no tokens. A file that changes is noticed, and the set is made again. */
TEST(files_stay_where_they_are)
{
    char *file = make_ids("train.bin", 2), hash[65], again[65], dir[PATH_MAX];
    const struct data_prepare p = {.format = "uint16"};
    struct why why = {0};
    struct data_set *set;
    struct utimbuf later = {1, 1};
    assert_ok(prepare(p, 1, &file, hash, &why));
    snprintf(dir, sizeof(dir), "%s/%s", file_path("cache"), hash);
    assert_int_equal(file_count(dir, "tokens-"), 0);
    assert_int_equal(utime(file, &later), 0);
    assert_err(ERR_CORRUPT, data_open(file_path("cache"), hash, &set, &why));
    assert_non_null(strstr(why.text, "train.bin: the file has changed since it was prepared"));
    assert_ok(prepare(p, 1, &file, again, &why));
    assert_string_equal(again, hash);
    assert_ok(data_open(file_path("cache"), hash, &set, &why));
    data_close(set);
    char *moved = file_path("moved.bin");
    assert_int_equal(rename(file, moved), 0);
    assert_err(ERR_CORRUPT, data_open(file_path("cache"), hash, &set, &why));
    assert_non_null(strstr(why.text, "the set reads its tokens from this file"));
    assert_ok(prepare(p, 1, &moved, again, &why));
    assert_string_equal(again, hash);
    make_ids("train.bin", 4);
    assert_ok(prepare(p, 1, &file, again, &why));
    assert_string_not_equal(again, hash);
}

static void cut(const char *path, int64_t bytes)
{
    assert_int_equal(truncate(path, bytes), 0);
}

static void poke(const char *path, int64_t at, uint64_t value, int bytes)
{
    uint64_t le = htole64(value);
    int fd = open(path, O_WRONLY);
    assert_int_equal(pwrite(fd, &le, (size_t)bytes, at), bytes);
    close(fd);
}

static void check_refused(struct data_prepare p, char *file, err_t expected, const char *part)
{
    char hash[65];
    struct why why = {0};
    err_t err = prepare(p, 1, &file, hash, &why);
    if (err != expected || !strstr(why.text, part))
        fail_msg("expected %s, \"%s\": %s: \"%s\"", err_name(expected), part, err_name(err), why.text);
}

TEST(damaged_indexes)
{
    static const struct {
        int64_t at;
        uint64_t value;
        int bytes;
        err_t err;
        const char *part;
    } cases[] = {
        {9, 2, 8, ERR_UNSUPPORTED, "only version 1"},
        {17, 7, 1, ERR_UNSUPPORTED, "floating-point"},
        {17, 9, 1, ERR_CORRUPT, "type of the ids is unknown"},
        {18, 4, 8, ERR_CORRUPT, "its counts announce"},
        {18, UINT64_MAX, 8, ERR_CORRUPT, "its counts"},
        {18, UINT64_MAX / 4 + 1, 8, ERR_CORRUPT, "its counts"},
        {26, UINT64_MAX, 8, ERR_CORRUPT, "its counts"},
        {34, 4, 4, ERR_UNSUPPORTED, "sequence 1 does not begin where"},
        {34, UINT32_MAX, 4, ERR_CORRUPT, "sequence 0"},
        {34 + 8, 6, 4, ERR_CORRUPT, "more tokens than"},
        {34 + 8, 4, 4, ERR_CORRUPT, "sequences have 11 tokens"},
        {34 + 12, 2, 8, ERR_UNSUPPORTED, "sequence 0 does not begin where"},
        {34 + 36, 1, 8, ERR_CORRUPT, "list of documents is damaged"},
        {34 + 44, 3, 8, ERR_CORRUPT, "list of documents is damaged"},
        {34 + 60, 2, 8, ERR_CORRUPT, "list of documents is damaged"},
        {34 + 60, 4, 8, ERR_CORRUPT, "list of documents is damaged"},
    };
    char bin[PATH_MAX]; /* file_path reuses its buffers */
    snprintf(bin, sizeof(bin), "%s", make_ids("x.bin", 2));
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        poke(make_mmididx("x.idx", 8, 2), cases[i].at, cases[i].value, cases[i].bytes);
        check_refused((struct data_prepare){0}, bin, cases[i].err, cases[i].part);
    }
    for (int64_t n = 9; n < 34 + 68; n++) {
        cut(make_mmididx("x.idx", 8, 2), n);
        check_refused((struct data_prepare){0}, bin, ERR_CORRUPT, n < 34 ? "cut off" : "its counts announce");
    }
    for (int64_t n = 8; n < 56 + 100; n += 3) {
        cut(make_tntidx("x.idx", 8, 2), n);
        check_refused((struct data_prepare){.format = "megatron"}, bin, ERR_CORRUPT, "x.idx");
    }
}

TEST(ids_that_the_vocabulary_lacks)
{
    char *file = make_ids("train.bin", 2);
    poke(file, 6, 256, 2);
    check_refused((struct data_prepare){.format = "uint16"}, file, ERR_INVALID, "token 3 has the id 256");
    file = make_ids("train.bin", 4);
    poke(file, 8, UINT32_MAX, 4);
    check_refused((struct data_prepare){.format = "int32"}, file, ERR_INVALID, "token 2 has the id -1");
    check_refused((struct data_prepare){.format = "uint32"}, file, ERR_INVALID, "token 2 has the id");
    cut(file, 7);
    check_refused((struct data_prepare){.format = "uint32"}, file, ERR_CORRUPT, "not a multiple of 4");
}

TEST(damaged_datatrove_and_numpy)
{
    struct buf index = {0}, npy = {0};
    put(&index, 7, 8);
    put(&index, 12, 8);
    char *ds = make_ids("x.ds", 2), *ends = make("x.ds.index", &index);
    poke(ends, 0, 13, 8);
    check_refused((struct data_prepare){0}, ds, ERR_CORRUPT, "do not ascend");
    poke(ends, 8, 11, 8);
    check_refused((struct data_prepare){0}, ds, ERR_CORRUPT, "does not fit");
    cut(ends, 12);
    check_refused((struct data_prepare){0}, ds, ERR_CORRUPT, "does not fit");
    assert_ok(buf_append(&npy, "\x93NUMPY\x01\0\x46\0", 10));
    assert_ok(buf_printf(&npy, "%-69s\n", "{'descr': '<f4', 'fortran_order': False, 'shape': (1,), }"));
    put(&npy, 0, 4);
    check_refused((struct data_prepare){0}, make("x.npy", &npy), ERR_UNSUPPORTED, "are no token ids");
}
