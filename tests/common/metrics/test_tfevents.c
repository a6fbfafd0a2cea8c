/* Bytes and checksums are those of a file that TensorBoard's reader accepts; tests/interop reads whole runs with it. */
#include "common/metrics/pb.h"
#include "common/metrics/tfevents.h"
#include "tests/common/metrics/fixture.h"

#include <dirent.h>
#include <math.h>
#include <signal.h>
#include <sys/resource.h>

static struct tf_run reopen(struct tf_run *r, const char *dir)
{
    struct why why = {""};
    struct tf_run next;
    tf_run_close(r);
    assert_ok(tf_run_open(&next, dir, &why));
    return next;
}

static int files(const char *dir, char last[512])
{
    struct dirent **names;
    int n = scandir(dir, &names, NULL, alphasort), found = 0;
    for (int i = 0; i < n; i++) {
        if (strstr(names[i]->d_name, "tfevents")) {
            snprintf(last, 512, "%s/%s", dir, names[i]->d_name);
            found++;
        }
        free(names[i]);
    }
    free(names);
    return found;
}

TEST(record_of_the_worked_example)
{
    struct buf event = {0}, summary = {0}, value = {0}, b = {0};
    struct buf right =
        fixture_hex("20 00 00 00 00 00 00 00 29 ed a9 50 09 00 00 40 40 fc 54 d9 41 10 01 2a 13 0a 11 0a 0a"
                    "74 72 61 69 6e 2f 6c 6f 73 73 15 00 00 20 40 35 30 53 92");
    assert_ok(pb_text(&value, 1, "train/loss"));
    assert_ok(pb_float(&value, 2, 2.5F));
    assert_ok(pb_message(&summary, 1, &value));
    assert_ok(pb_double(&event, 1, 1700000001.0));
    assert_ok(pb_uint(&event, 2, 1));
    assert_ok(pb_message(&event, 5, &summary));
    assert_ok(tf_record(&b, event.data, event.len));
    assert_int_equal(b.len, right.len);
    assert_memory_equal(b.data, right.data, right.len);
    buf_fini(&event);
    buf_fini(&summary);
    buf_fini(&value);
    buf_fini(&b);
    buf_fini(&right);
}

/* The file's first record, up to the time, is that of the worked example. */
TEST(head_of_a_file)
{
    struct card card = fixture_card();
    struct tf_run r;
    struct why why = {""};
    struct metric row = fixture_row(1, 1, 2.5);
    char path[512];
    struct buf right = fixture_hex("1a 0d 62 72 61 69 6e 2e 45 76 65 6e 74 3a 32 52 05 0a 03 64 74 64");
    assert_ok(tf_run_open(&r, test_tmpdir(), &why));
    assert_ok(tf_run_add(&r, &card, NULL, 0, &why));
    assert_int_equal(files(test_tmpdir(), path), 0); /* no file without a row */
    assert_ok(tf_run_add(&r, &card, &row, 1, &why));
    assert_int_equal(files(test_tmpdir(), path), 1);
    struct buf file = fixture_file(path);
    assert_int_equal(file.data[0], 31);
    assert_memory_equal(file.data + 21, right.data, right.len);
    const uint8_t *message;
    size_t len;
    bool damaged;
    size_t n = tf_record_read(file.data, file.len, &message, &len, &damaged);
    assert_int_equal(n, 47);
    assert_int_equal(tf_record_read(file.data + n, file.len - n, &message, &len, &damaged), 13 + 16);
    assert_memory_equal(message + 9, "\x3a\x02\x08\x01", 4); /* a session start without a step */
    tf_run_close(&r);
    card_fini(&card);
    buf_fini(&file);
    buf_fini(&right);
}

/* However the last record is cut, all earlier ones are read, and the next process starts another file. */
TEST(torn_tail)
{
    struct card card = fixture_card();
    struct tf_run r = {0};
    struct why why = {""};
    const struct metric rows[] = {fixture_row(1, 1, 2.5), fixture_row(2, 1, NAN), fixture_row(3, 1, 2)};
    char path[512];
    assert_ok(tf_run_open(&r, test_tmpdir(), &why));
    assert_ok(tf_run_add(&r, &card, rows, 2, &why));
    files(test_tmpdir(), path);
    struct buf before = fixture_file(path);
    assert_ok(tf_run_add(&r, &card, &rows[2], 1, &why));
    struct buf all = fixture_file(path);
    r = reopen(&r, test_tmpdir());
    assert_string_equal(fixture_points(&r.points), "1:1 2:1 3:1");
    for (size_t n = before.len; n < all.len; n++) {
        fixture_write(path, all.data, n);
        r = reopen(&r, test_tmpdir());
        assert_string_equal(fixture_points(&r.points), "1:1 2:1");
    }
    assert_ok(tf_run_add(&r, &card, &rows[2], 1, &why));
    assert_int_equal(files(test_tmpdir(), path), 2);
    r = reopen(&r, test_tmpdir());
    assert_string_equal(fixture_points(&r.points), "1:1 2:1 3:1");
    tf_run_close(&r);
    card_fini(&card);
    buf_fini(&before);
    buf_fini(&all);
}

TEST(damaged_record_ends_a_file)
{
    struct card card = fixture_card();
    struct tf_run r = {0};
    struct why why = {""};
    const struct metric rows[] = {fixture_row(1, 1, 2.5), fixture_row(2, 1, 2)};
    char path[512];
    assert_ok(tf_run_open(&r, test_tmpdir(), &why));
    assert_ok(tf_run_add(&r, &card, rows, 2, &why));
    files(test_tmpdir(), path);
    struct buf all = fixture_file(path);
    all.data[all.len - 6] ^= 1;
    fixture_write(path, all.data, all.len);
    r = reopen(&r, test_tmpdir());
    assert_string_equal(fixture_points(&r.points), "1:1");
    tf_run_close(&r);
    card_fini(&card);
    buf_fini(&all);
}

/* A roll-back starts a file whose session start drops the steps that run again; they are never there twice. */
TEST(roll_back)
{
    struct card card = fixture_card();
    struct tf_run r = {0};
    struct why why = {""};
    char path[512], first[512];
    const struct metric rows[] = {fixture_row(1, 1, 3), fixture_row(2, 1, 2), fixture_row(3, 1, 1),
                                  fixture_row(2, 2, 4), fixture_row(3, 2, 5)};
    assert_ok(tf_run_open(&r, test_tmpdir(), &why));
    assert_ok(tf_run_add(&r, &card, rows, 3, &why));
    files(test_tmpdir(), first);
    assert_ok(tf_run_add(&r, &card, rows + 3, 2, &why));
    assert_int_equal(files(test_tmpdir(), path), 2);
    assert_string_equal(fixture_points(&r.points), "1:1 2:2 3:2");
    assert_true(strcmp(first, path) < 0); /* readers take the files by name, although both began in one second */
    r = reopen(&r, test_tmpdir());
    assert_string_equal(fixture_points(&r.points), "1:1 2:2 3:2");

    /* Nothing is written twice: not by the same rows, and not by a dtd-io that gets the last ones again. */
    assert_ok(tf_run_add(&r, &card, rows, 1, &why));
    assert_ok(tf_run_add(&r, &card, rows + 3, 2, &why));
    assert_int_equal(files(test_tmpdir(), path), 2);
    assert_ok(tf_run_cut(&r, &card, 3, &why));
    r = reopen(&r, test_tmpdir());
    assert_string_equal(fixture_points(&r.points), "1:1 2:2");
    tf_run_close(&r);
    card_fini(&card);
}

/* The names of files never go back, although the clock does. */
TEST(clock_that_is_behind)
{
    struct card card = fixture_card();
    struct tf_run r = {0};
    struct why why = {""};
    char path[512];
    struct metric row = fixture_row(1, 1, 3);
    snprintf(path, sizeof(path), "%s/events.out.tfevents.9000000000.other.1.0", test_tmpdir());
    fixture_write(path, "", 0);
    assert_ok(tf_run_open(&r, test_tmpdir(), &why));
    assert_ok(tf_run_add(&r, &card, &row, 1, &why));
    files(test_tmpdir(), path);
    assert_non_null(strstr(path, "tfevents.9000000001."));
    tf_run_close(&r);
    card_fini(&card);
}

/* A limit on the size of files stands for a full disk: the whole records stay readable, and the sentence names the
 * file. */
TEST(full_disk)
{
    struct card card = fixture_card();
    struct tf_run r = {0};
    struct why why = {""};
    char path[512];
    struct metric row = fixture_row(1, 1, 3);
    signal(SIGXFSZ, SIG_IGN);
    assert_ok(tf_run_open(&r, test_tmpdir(), &why));
    assert_ok(tf_run_add(&r, &card, &row, 1, &why));
    files(test_tmpdir(), path);
    struct buf before = fixture_file(path);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &(struct rlimit){before.len + 10, RLIM_INFINITY}), 0);
    row = fixture_row(2, 1, 2);
    assert_int_not_equal(tf_run_add(&r, &card, &row, 1, &why), OK);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &(struct rlimit){RLIM_INFINITY, RLIM_INFINITY}), 0);
    assert_non_null(strstr(why.text, path));
    struct buf after = fixture_file(path);
    assert_int_equal(after.len, before.len);
    r = reopen(&r, test_tmpdir());
    assert_string_equal(fixture_points(&r.points), "1:1");
    tf_run_close(&r);
    card_fini(&card);
    buf_fini(&before);
    buf_fini(&after);
}

TEST(another_process_writes)
{
    struct card card = fixture_card();
    struct tf_run r = {0}, other = {0};
    struct why why = {""};
    struct metric row = fixture_row(1, 1, 3);
    assert_ok(tf_run_open(&r, test_tmpdir(), &why));
    assert_ok(tf_run_add(&r, &card, &row, 1, &why));
    assert_ok(tf_run_open(&other, test_tmpdir(), &why));
    assert_true(other.busy);
    tf_run_close(&r);
    other = reopen(&other, test_tmpdir());
    assert_false(other.busy);
    tf_run_close(&other);
    card_fini(&card);
}

TEST(end_is_written_once)
{
    struct card card = fixture_card();
    struct tf_run r = {0};
    struct why why = {""};
    struct metric row = fixture_row(40, 1, 3);
    char path[512];
    assert_ok(tf_run_open(&r, test_tmpdir(), &why));
    assert_ok(tf_run_end(&r, &card, true, 1, &why));
    assert_int_equal(files(test_tmpdir(), path), 0);
    assert_ok(tf_run_add(&r, &card, &row, 1, &why));
    assert_ok(tf_run_end(&r, &card, true, row.wall_ms, &why));
    r = reopen(&r, test_tmpdir());
    assert_true(r.has_card && r.has_end);
    assert_ok(tf_run_end(&r, &card, true, row.wall_ms, &why));
    assert_int_equal(files(test_tmpdir(), path), 1);
    assert_string_equal(fixture_points(&r.points), "40:1");
    tf_run_close(&r);
    card_fini(&card);
}
