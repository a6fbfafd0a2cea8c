/* Bytes are those of a log that W&B's own reader accepts; tests/interop reads whole logs with it. */
#include "common/metrics/pb.h"
#include "common/metrics/wandb.h"
#include "tests/common/metrics/fixture.h"

#include <math.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>

static struct wandb_run reopen(struct wandb_run *r, const struct card *card)
{
    struct why why = {""};
    struct wandb_run next;
    wandb_run_close(r);
    assert_ok(wandb_run_open(&next, test_tmpdir(), card, &why));
    return next;
}

/* The kinds of a log's records: "header run environment row row summary". Their numbers must be 1, 2, 3 .. */
static const char *kinds(const char *path)
{
    static const char *const names[] = {[2] = "row",    [3] = "summary", [17] = "run",        [18] = "exit",
                                        [20] = "final", [21] = "header", [26] = "environment"};
    static char text[4096];
    struct buf file = fixture_file(path);
    struct wandb_reader r = {.data = file.data, .len = file.len};
    const uint8_t *message;
    size_t len, n = 0;
    uint64_t num = 0;
    bool more;
    text[0] = '\0';
    assert_memory_equal(file.data, "\x3a\x57\x26\x42\xe1\xbe\x00", 7);
    for (;;) {
        struct pb_field f;
        assert_ok(wandb_next(&r, &more, &message, &len));
        if (!more)
            break;
        struct pb_reader fields = pb_read(message, len);
        assert_true(pb_next(&fields, &f) && f.field == 1);
        assert_int_equal(f.whole, ++num);
        assert_true(pb_next(&fields, &f));
        n += (size_t)snprintf(text + n, sizeof(text) - n, "%s%s", n ? " " : "", names[f.field]);
    }
    assert_int_equal(r.at, file.len);
    wandb_reader_fini(&r);
    buf_fini(&file);
    return text;
}

TEST(records_of_the_worked_example)
{
    struct buf b = {0}, m = {0}, body = {0}, version = {0};
    struct buf right =
        fixture_hex("f5 94 b2 86 18 00 01 08 01 aa 01 13 0a 11 0a 07 64 74 64 2d 30 2e 31 12 06 30 2e 37 30 2e 30"
                    "ef 84 9b dd 07 00 01 08 0b 92 01 02 10 01 30 3e df c3 05 00 01 08 0c a2 01 00");
    assert_ok(pb_text(&version, 1, "dtd-0.1"));
    assert_ok(pb_text(&version, 2, "0.70.0"));
    assert_ok(pb_message(&body, 1, &version));
    assert_ok(pb_uint(&m, 1, 1));
    assert_ok(pb_message(&m, 21, &body));
    assert_ok(wandb_record(&b, WANDB_HEADER_BYTES, m.data, m.len));
    m.len = body.len = 0;
    assert_ok(pb_uint(&body, 2, 1));
    assert_ok(pb_uint(&m, 1, 11));
    assert_ok(pb_message(&m, 18, &body));
    assert_ok(wandb_record(&b, WANDB_HEADER_BYTES, m.data, m.len));
    m.len = body.len = 0;
    assert_ok(pb_uint(&m, 1, 12));
    assert_ok(pb_message(&m, 20, &body));
    assert_ok(wandb_record(&b, WANDB_HEADER_BYTES, m.data, m.len));
    assert_int_equal(b.len, right.len);
    assert_memory_equal(b.data, right.data, right.len);
    buf_fini(&b);
    buf_fini(&m);
    buf_fini(&body);
    buf_fini(&version);
    buf_fini(&right);
}

/* A first record that leaves 0 to 15 bytes of its block, then one of 70 000 bytes: it needs three blocks more. */
TEST(edges_of_blocks)
{
    uint8_t *big = malloc(70000);
    memset(big, 'x', 70000);
    for (size_t left = 0; left < 16; left++) {
        struct buf b = {0};
        const uint8_t *message;
        size_t len, first = WANDB_BLOCK_BYTES - 7 - 7 - left;
        bool more;
        assert_ok(buf_append(&b, wandb_header, 7));
        assert_ok(wandb_record(&b, 0, big, first));
        assert_int_equal(b.len, WANDB_BLOCK_BYTES - left);
        assert_ok(wandb_record(&b, 0, big, 70000));
        /* fewer than 7 bytes are filled with zeros; 7 and more have a chunk of type FIRST with the rest of the block */
        size_t chunk = left < 7 ? WANDB_BLOCK_BYTES : WANDB_BLOCK_BYTES - left;
        assert_int_equal(b.data[chunk + 6], 2);
        assert_int_equal(b.data[chunk + 4] | b.data[chunk + 5] << 8, left < 7 ? WANDB_BLOCK_BYTES - 7 : left - 7);
        struct wandb_reader r = {.data = b.data, .len = b.len};
        assert_ok(wandb_next(&r, &more, &message, &len));
        assert_true(more && len == first);
        assert_ok(wandb_next(&r, &more, &message, &len));
        assert_true(more && len == 70000);
        assert_memory_equal(message, big, 70000);
        assert_ok(wandb_next(&r, &more, &message, &len));
        assert_false(more);
        assert_int_equal(r.at, b.len);
        wandb_reader_fini(&r);
        buf_fini(&b);
    }
    free(big);
}

/* However the last record is cut, the earlier ones are read, and the log continues behind them. */
TEST(torn_tail)
{
    struct card card = fixture_card();
    struct wandb_run r = {0};
    struct why why = {""};
    const struct metric rows[] = {fixture_row(1, 1, 2.5), fixture_row(2, 1, NAN)};
    assert_ok(wandb_run_open(&r, test_tmpdir(), &card, &why));
    assert_null(r.dir);
    assert_ok(wandb_run_add(&r, &card, rows, 1, &why));
    struct buf before = fixture_file(r.path);
    assert_ok(wandb_run_add(&r, &card, rows + 1, 1, &why));
    struct buf all = fixture_file(r.path);
    char *path = strdup(r.path);
    r = reopen(&r, &card);
    assert_string_equal(fixture_points(&r.points), "1:1 2:1");
    uint64_t row_end = 0;
    for (size_t n = before.len; n < all.len; n++) {
        fixture_write(path, all.data, n);
        r = reopen(&r, &card);
        row_end = r.points.n == 2 && !row_end ? n : row_end;
        assert_string_equal(fixture_points(&r.points), row_end ? "1:1 2:1" : "1:1");
    }
    assert_true(row_end > before.len);
    fixture_write(path, all.data, row_end - 1);
    r = reopen(&r, &card);
    assert_ok(wandb_run_add(&r, &card, rows, 2, &why));
    struct buf again = fixture_file(path);
    assert_int_equal(again.len, all.len);
    assert_memory_equal(again.data, all.data, all.len);
    assert_string_equal(kinds(path), "header run environment row summary row summary");
    wandb_run_close(&r);
    free(path);
    card_fini(&card);
    buf_fini(&before);
    buf_fini(&all);
    buf_fini(&again);
}

/* After a roll-back the log has each step once, in one file, with increasing steps. */
TEST(roll_back)
{
    struct card card = fixture_card();
    struct wandb_run r = {0};
    struct why why = {""};
    const struct metric rows[] = {fixture_row(1, 1, 3), fixture_row(2, 1, 2), fixture_row(3, 1, 1),
                                  fixture_row(2, 2, 4), fixture_row(3, 2, 5)};
    assert_ok(wandb_run_open(&r, test_tmpdir(), &card, &why));
    assert_ok(wandb_run_add(&r, &card, rows, 3, &why));
    assert_ok(wandb_run_end(&r, false, &why));
    assert_string_equal(kinds(r.path), "header run environment row row row summary exit final");
    r = reopen(&r, &card);
    assert_true(r.has_end);
    assert_ok(wandb_run_add(&r, &card, rows + 3, 1, &why));
    r = reopen(&r, &card);
    assert_ok(wandb_run_add(&r, &card, rows + 3, 2, &why));
    assert_string_equal(fixture_points(&r.points), "1:1 2:2 3:2");
    assert_string_equal(kinds(r.path), "header run environment row row summary row summary");
    r = reopen(&r, &card);
    assert_string_equal(fixture_points(&r.points), "1:1 2:2 3:2");
    assert_ok(wandb_run_end(&r, true, &why));
    r = reopen(&r, &card);
    assert_ok(wandb_run_end(&r, true, &why));
    assert_ok(wandb_run_add(&r, &card, rows + 3, 2, &why)); /* nothing new: the end stays */
    assert_string_equal(kinds(r.path), "header run environment row row summary row summary exit final");
    assert_ok(wandb_run_cut(&r, 3, &why));
    assert_string_equal(kinds(r.path), "header run environment row row summary");
    wandb_run_close(&r);
    card_fini(&card);
}

/* One process that gets both epochs in one call. */
TEST(roll_back_within_a_call)
{
    struct card card = fixture_card();
    struct wandb_run r = {0};
    struct why why = {""};
    const struct metric rows[] = {fixture_row(1, 1, 3), fixture_row(2, 1, 2), fixture_row(2, 2, 4)};
    assert_ok(wandb_run_open(&r, test_tmpdir(), &card, &why));
    assert_ok(wandb_run_add(&r, &card, rows, 3, &why));
    assert_string_equal(kinds(r.path), "header run environment row row summary");
    r = reopen(&r, &card);
    assert_string_equal(fixture_points(&r.points), "1:1 2:2");
    wandb_run_close(&r);
    card_fini(&card);
}

/* Another program's file is left alone. */
TEST(foreign_log)
{
    struct card card = fixture_card();
    struct wandb_run r = {0};
    struct why why = {""};
    struct metric row = fixture_row(1, 1, 3);
    assert_ok(wandb_run_open(&r, test_tmpdir(), &card, &why));
    assert_ok(wandb_run_add(&r, &card, &row, 1, &why));
    char *path = strdup(r.path);
    wandb_run_close(&r);
    fixture_write(path, "something else", 14);
    assert_err(ERR_CORRUPT, wandb_run_open(&r, test_tmpdir(), &card, &why));
    assert_non_null(strstr(why.text, path));
    wandb_run_close(&r);
    free(path);
    card_fini(&card);
}

TEST(full_disk)
{
    struct card card = fixture_card();
    struct wandb_run r = {0};
    struct why why = {""};
    struct metric row = fixture_row(1, 1, 3);
    struct stat st;
    signal(SIGXFSZ, SIG_IGN);
    assert_ok(wandb_run_open(&r, test_tmpdir(), &card, &why));
    assert_ok(wandb_run_add(&r, &card, &row, 1, &why));
    assert_int_equal(stat(r.path, &st), 0);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &(struct rlimit){(rlim_t)st.st_size + 10, RLIM_INFINITY}), 0);
    row = fixture_row(2, 1, 2);
    assert_int_not_equal(wandb_run_add(&r, &card, &row, 1, &why), OK);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &(struct rlimit){RLIM_INFINITY, RLIM_INFINITY}), 0);
    assert_non_null(strstr(why.text, r.path));
    assert_string_equal(kinds(r.path), "header run environment row summary");
    wandb_run_close(&r);
    card_fini(&card);
}

/* The time of a row in the run never decreases, although the second node's clock is behind. */
TEST(clock_that_is_behind)
{
    struct card card = fixture_card();
    struct wandb_run r = {0};
    struct why why = {""};
    struct metric rows[] = {fixture_row(1, 1, 3), fixture_row(2, 1, 2)};
    rows[1].wall_ms -= 3600000;
    assert_ok(wandb_run_open(&r, test_tmpdir(), &card, &why));
    assert_ok(wandb_run_add(&r, &card, rows, 1, &why));
    double before = r.runtime_s;
    assert_true(fabs(before - 0.5) < 1e-9); /* the first step took half a second */
    assert_ok(wandb_run_add(&r, &card, rows + 1, 1, &why));
    assert_true(r.runtime_s >= before);
    r = reopen(&r, &card);
    assert_true(fabs(r.runtime_s - before) < 1e-9);
    assert_int_equal(r.points.n, 2);
    wandb_run_close(&r);
    card_fini(&card);
}
