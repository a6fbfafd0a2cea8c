/* Copies of sets: they read as the set did, also when its files are gone; damage and full disks are distinguished. */
#include "common/data/stage.h"
#include "tests/common/data/files.h"

#include <sys/time.h>

static const atomic_bool go_on;

static int copy_new(void)
{
    int fd = open(file_path("copy"), O_RDWR | O_CREAT | O_TRUNC, 0600);
    assert_true(fd >= 0);
    return fd;
}

/* Documents with weights, in shards of 4 tokens. */
static struct data_set *set_of_documents(char ret_hash[65])
{
    static const char lines[] = "{\"input_ids\": [1, 2, 3, 4, 5], \"loss_mask\": [0, 0, 1, 1, 1]}\n"
                                "{\"input_ids\": [9, 8]}\n{\"input_ids\": [7, 6, 5, 250, 3], \"loss_mask\": "
                                "[1, 0, 1, 0, 1]}\n";
    return set_make(file_make_text("a.jsonl", lines), TOKENIZER_BYTES, 4, ret_hash);
}

/* A NumPy array of 5,000 uint16, used in place. */
static char *array_make(void)
{
    struct buf b = {0};
    assert_ok(buf_append(&b, "\x93NUMPY\x01\0\x46\0", 10));
    assert_ok(buf_printf(&b, "%-69s\n", "{'descr': '<u2', 'fortran_order': False, 'shape': (5000,), }"));
    for (int i = 0; i < 5000; i++)
        assert_ok(buf_append(&b, (const uint8_t[]){(uint8_t)(i * 7), 0}, 2));
    char *path = file_make("x.npy", b.data, b.len);
    buf_fini(&b);
    return path;
}

struct content {
    int64_t n;
    int32_t ids[5000];
    uint8_t weights[5000];
    struct data_document documents[16];
};

static struct content content_of(const struct data_set *d)
{
    struct content c = {.n = data_tokens(d)};
    assert_in_range(c.n, 1, 5000);
    assert_ok(data_read(d, 0, c.n, c.ids, c.weights));
    for (int64_t at = 0, i = 0; data_documents(d) && at < c.n; i++) {
        assert_in_range(i, 0, 15);
        assert_ok(data_document(d, at, &c.documents[i]));
        at = c.documents[i].end;
    }
    return c;
}

/* Were a page still one of the set's own files, reading it would now end the process by SIGBUS. */
static void empty_files(const char *dir)
{
    char command[PATH_MAX + 64];
    snprintf(command, sizeof(command), "truncate -s 0 %s/*.bin", dir);
    assert_int_equal(system(command), 0);
}

static void check_copy(struct data_set *set, const char *emptied)
{
    const struct content before = content_of(set);
    struct why why = {0};
    bool target = true;
    int fd = copy_new();
    assert_ok(stage_copy(set, fd, 0, &go_on, &target, &why));
    assert_false(target);
    if (emptied)
        empty_files(emptied);
    assert_ok(stage_use(set, fd, 0, &why));
    close(fd);
    assert_int_equal(unlink(file_path("copy")), 0);
    const struct content after = content_of(set);
    assert_memory_equal(&before, &after, sizeof(before));
    assert_ok(data_verify(set, &why));
    data_close(set);
}

TEST(a_copy_outlives_the_files)
{
    char hash[65], dir[PATH_MAX];
    struct data_set *set = set_of_documents(hash);
    assert_int_equal(data_documents(set), 3);
    assert_true(data_weighted(set));
    snprintf(dir, sizeof(dir), "%s/%s", file_path("cache"), hash);
    assert_int_equal(file_count(dir, "tokens-"), 3);
    check_copy(set, dir);
}

TEST(ids_in_place_are_copied)
{
    char hash[65], *path = array_make();
    struct data_set *set = set_make(path, TOKENIZER_BYTES, 0, hash);
    const struct content c = content_of(set);
    assert_int_equal(c.ids[100], 700 % 256);
    check_copy(set, NULL);
}

static void check_refused(struct data_set *set, err_t expected, bool expected_target, const char *text)
{
    struct why why = {0};
    bool target = !expected_target;
    int fd = copy_new();
    assert_err(expected, stage_copy(set, fd, 0, &go_on, &target, &why));
    assert_int_equal(target, expected_target);
    if (!strstr(why.text, text))
        fail_msg("%s", why.text);
    close(fd);
    data_close(set);
}

static void flip(const char *path, off_t at)
{
    uint8_t byte;
    int fd = open(path, O_RDWR);
    assert_ok(file_pread_all(fd, &byte, 1, at));
    byte ^= 1;
    assert_ok(file_pwrite_all(fd, &byte, 1, at));
    close(fd);
}

TEST(a_flipped_bit_is_noticed)
{
    static const char *const files[] = {"tokens-00000.bin", "tokens-00002.bin", "documents.bin", "weights.bin"};
    for (size_t i = 0; i < sizeof(files) / sizeof(files[0]); i++) {
        char hash[65], path[PATH_MAX];
        struct data_set *set = set_of_documents(hash);
        snprintf(path, sizeof(path), "%s/%s/%s", file_path("cache"), hash, files[i]);
        flip(path, 1);
        check_refused(set, ERR_CORRUPT, false, files[i]);
        flip(path, 1);
    }
}

TEST(a_file_that_changes_is_noticed)
{
    char hash[65], path[PATH_MAX];
    struct data_set *set = set_of_documents(hash);
    snprintf(path, sizeof(path), "%s/%s/tokens-00001.bin", file_path("cache"), hash);
    assert_int_equal(truncate(path, 4), 0);
    check_refused(set, ERR_CORRUPT, false, "tokens-00001.bin");
    set = set_of_documents(hash); /* prepares it again */
    assert_int_equal(truncate(path, 12), 0);
    check_refused(set, ERR_CORRUPT, false, "tokens-00001.bin");
}

TEST(ids_in_place_that_change_are_noticed)
{
    char hash[65], *path = array_make();
    const struct timeval later[2] = {{2000000000, 0}, {2000000000, 0}};
    struct data_set *set = set_make(path, TOKENIZER_BYTES, 0, hash);
    assert_int_equal(utimes(path, later), 0);
    check_refused(set, ERR_CORRUPT, false, "x.npy: the file has changed");
}

TEST(a_full_disk_is_no_fault_of_the_set)
{
    char hash[65];
    struct why why = {0};
    bool target = false;
    struct data_set *set = set_of_documents(hash);
    int fd = open("/dev/full", O_RDWR);
    assert_true(fd >= 0);
    assert_err(ERR_NOSPACE, stage_copy(set, fd, 0, &go_on, &target, &why));
    assert_true(target);
    close(fd);
    data_close(set);
}

TEST(copying_ends_when_it_is_canceled)
{
    char hash[65];
    struct why why = {0};
    bool target;
    const atomic_bool cancel = true;
    struct data_set *set = set_of_documents(hash);
    int fd = copy_new();
    assert_err(ERR_CANCELED, stage_copy(set, fd, 0, &cancel, &target, &why));
    assert_false(target);
    close(fd);
    data_close(set);
}

TEST(sets_share_a_file)
{
    char hash[65];
    struct why why = {0};
    bool target;
    struct data_set *set = set_of_documents(hash), *other = set_make(array_make(), TOKENIZER_BYTES, 0, hash);
    const struct content before = content_of(set), other_before = content_of(other);
    const int64_t at = stage_bytes(set);
    int fd = copy_new();
    assert_ok(stage_copy(set, fd, 0, &go_on, &target, &why));
    assert_err(ERR_INVALID, stage_use(other, fd, at, &why)); /* is not there yet */
    assert_ok(stage_copy(other, fd, at, &go_on, &target, &why));
    assert_err(ERR_INVALID, stage_use(other, fd, at + 4096, &why));
    assert_err(ERR_INVALID, stage_use(other, fd, -at, &why));
    assert_ok(stage_use(set, fd, 0, &why));
    assert_ok(stage_use(other, fd, at, &why));
    close(fd);
    const struct content after = content_of(set), other_after = content_of(other);
    assert_memory_equal(&before, &after, sizeof(before));
    assert_memory_equal(&other_before, &other_after, sizeof(before));
    data_close(set);
    data_close(other);
}
