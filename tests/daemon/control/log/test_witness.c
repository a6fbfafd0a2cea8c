/* What a voter knows of the others: which starts are those of an old copy, and the file. */
#include "daemon/control/log/witness.h"
#include "tests/lib/test.h"

static struct log_witness w;

static bool judge(uint64_t id, uint64_t process, uint64_t term, uint64_t stored)
{
    return witness_judge(&w, &(struct log_mark){id, process, term, stored});
}

static void note(uint64_t id, uint64_t process, uint64_t term, uint64_t stored)
{
    witness_note(&w, &(struct log_mark){id, process, term, stored});
}

TEST(a_start_with_less_is_an_old_copy)
{
    assert_true(judge(2, 11, 3, 100));
    note(2, 11, 3, 150);
    assert_true(judge(2, 11, 3, 100)); /* the same process connects again */
    assert_true(judge(2, 12, 3, 150)); /* a restart */
    note(2, 12, 4, 160);
    assert_false(judge(2, 13, 3, 500)); /* an earlier term, whatever it has */
    assert_true(witness_is_old(&w, 2));
    assert_false(judge(2, 13, 4, 159));
    assert_true(judge(2, 14, 4, 160));
    assert_false(witness_is_old(&w, 2));
}

/* A leader of a later term may have removed entries that were not committed. */
TEST(a_later_term_may_have_less)
{
    assert_true(judge(2, 11, 3, 100));
    note(2, 11, 3, 900);
    assert_true(judge(2, 12, 4, 200));
}

TEST(only_the_newest_counts)
{
    assert_true(judge(2, 11, 3, 100));
    note(2, 11, 5, 10);
    note(2, 11, 3, 999); /* late */
    assert_int_equal(5, witness_find(&w, 2)->term);
    assert_int_equal(10, witness_find(&w, 2)->stored);
}

TEST(nothing_is_known_of_an_older_version)
{
    assert_true(judge(2, 0, 0, 0)); /* it shows no process */
    note(2, 0, 7, 7);
    assert_null(witness_find(&w, 2));
    assert_true(judge(2, 11, 1, 1));
}

TEST(there_is_room_for_all_members)
{
    for (uint64_t id = 1; id <= LOG_MAX_MEMBERS + 5; id++)
        assert_true(judge(id, id, 1, id));
    assert_int_equal(LOG_MAX_MEMBERS, w.n);
    assert_false(judge(LOG_MAX_MEMBERS, 99, 1, LOG_MAX_MEMBERS - 1));
}

TEST(the_file_comes_back_and_a_changed_bit_is_noticed)
{
    uint8_t bytes[WITNESS_BYTES];
    struct log_witness back;
    for (uint64_t id = 1; id <= 5; id++)
        assert_true(judge(id, id << 40, 7, 1000 * id));
    witness_encode(&w, bytes);
    assert_ok(witness_decode(bytes, sizeof(bytes), &back));
    assert_int_equal(5, back.n);
    assert_memory_equal(w.marks, back.marks, 5 * sizeof(w.marks[0]));
    for (size_t bit = 0; bit < 8 * sizeof(bytes); bit += 3) {
        bytes[bit / 8] ^= (uint8_t)(1 << bit % 8);
        assert_err(ERR_CORRUPT, witness_decode(bytes, sizeof(bytes), &back));
        bytes[bit / 8] ^= (uint8_t)(1 << bit % 8);
    }
    assert_err(ERR_CORRUPT, witness_decode(bytes, sizeof(bytes) - 1, &back));
}

TEST(a_damaged_file_is_an_empty_one)
{
    struct log_witness back;
    witness_load(&back, test_tmpdir());
    assert_int_equal(0, back.n);
    assert_true(judge(3, 4, 5, 6));
    witness_save(&w, test_tmpdir());
    assert_false(w.is_dirty);
    witness_load(&back, test_tmpdir());
    assert_int_equal(1, back.n);
    assert_int_equal(6, back.marks[0].stored);
    char path[400];
    snprintf(path, sizeof(path), "%s/witness", test_tmpdir());
    FILE *f = fopen(path, "r+");
    assert_non_null(f);
    assert_int_equal('x', fputc('x', f));
    fclose(f);
    witness_load(&back, test_tmpdir());
    assert_int_equal(0, back.n);
}
