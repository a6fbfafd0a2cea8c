/* The set of words, compared with an array that is searched linearly. */
#include "common/data/vocab.h"
#include "tests/common/data/files.h"

TEST(numbers_follow_arrival)
{
    struct vocab w = {0};
    int32_t id;
    assert_int_equal(vocab_find(&w, "a", 1), -1);
    assert_ok(vocab_add(&w, "a", 1, &id));
    assert_int_equal(id, 0);
    assert_ok(vocab_add(&w, "b\0c", 3, &id));
    assert_int_equal(id, 1);
    assert_ok(vocab_add(&w, "a", 1, &id));
    assert_int_equal(id, 0);
    assert_int_equal(vocab_find(&w, "b\0c", 3), 1);
    assert_int_equal(vocab_find(&w, "b\0d", 3), -1);
    assert_int_equal(vocab_find(&w, "b", 1), -1);
    assert_int_equal(w.n, 2);
    vocab_fini(&w);
}

TEST(many_words_against_the_slow_way)
{
    struct vocab w = {0};
    uint64_t state = 12345;
    char list[600][12];
    int n = 0;
    for (int i = 0; i < 3000; i++) {
        char word[12];
        int32_t id;
        int k = 0;
        snprintf(word, sizeof(word), "w%d", (int)(random_next(&state) % 600));
        while (k < n && strcmp(list[k], word) != 0)
            k++;
        assert_int_equal(vocab_find(&w, word, strlen(word)), k < n ? k : -1);
        if (k == n)
            strcpy(list[n++], word);
        assert_ok(vocab_add(&w, word, strlen(word), &id));
        assert_int_equal(id, k);
        assert_memory_equal(vocab_text(&w, id), word, strlen(word));
    }
    assert_int_equal(w.n, n);
    vocab_fini(&w);
}

TEST(lengths_do_not_mix)
{
    struct vocab w = {0};
    char a[64] = {0};
    for (int32_t len = 0; len < 64; len++) {
        int32_t id;
        assert_ok(vocab_add(&w, a, (size_t)len, &id));
        assert_int_equal(id, len);
    }
    vocab_fini(&w);
}
