/* index.json: it reads back, and a change of any byte is detected. */
#include "common/data/index.h"
#include "tests/common/data/files.h"

#define HASH_A "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
#define HASH_B "bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb"

static struct index_shard shards[] = {{10, HASH_A}, {3, HASH_B}};
static const struct data_index sample = {.hash = HASH_B,
                                         .tokenizer = TOKENIZER_WORDS,
                                         .lowercase = true,
                                         .vocab = 70000,
                                         .wide = true,
                                         .tokens = 13,
                                         .source_bytes = 55,
                                         .vocab_sha256 = HASH_A,
                                         .n_shards = 2,
                                         .shards = shards};

TEST(reads_back)
{
    struct buf text = {0};
    struct data_index x;
    struct why why = {0};
    assert_ok(index_print(&sample, &text));
    assert_ok(index_parse(text.data, text.len, &x, &why));
    assert_string_equal(x.hash, HASH_B);
    assert_int_equal(x.tokenizer, TOKENIZER_WORDS);
    assert_true(x.lowercase);
    assert_true(x.wide);
    assert_int_equal(x.vocab, 70000);
    assert_int_equal(x.tokens, 13);
    assert_int_equal(x.source_bytes, 55);
    assert_string_equal(x.vocab_sha256, HASH_A);
    assert_int_equal(x.n_shards, 2);
    assert_int_equal(x.shards[0].tokens, 10);
    assert_string_equal(x.shards[1].sha256, HASH_B);
    index_fini(&x);
    buf_fini(&text);
}

/* No flipped bit gives a different index: it is rejected, or (white space, an escape) it has the same meaning. */
TEST(every_flipped_bit)
{
    struct buf text = {0};
    int refused = 0;
    assert_ok(index_print(&sample, &text));
    for (size_t i = 0; i < text.len * 8; i++) {
        struct data_index x;
        struct why why = {0};
        text.data[i / 8] ^= (uint8_t)(1 << i % 8);
        err_t err = index_parse(text.data, text.len, &x, &why);
        if (!err) {
            assert_int_equal(x.tokens, 13);
            assert_int_equal(x.vocab, 70000);
            assert_string_equal(x.shards[0].sha256, HASH_A);
            index_fini(&x);
        } else {
            assert_err(ERR_CORRUPT, err);
            assert_true(why.text[0]);
            refused++;
        }
        text.data[i / 8] ^= (uint8_t)(1 << i % 8);
    }
    assert_true(refused > (int)text.len * 7);
    buf_fini(&text);
}

TEST(every_truncation)
{
    struct buf text = {0};
    assert_ok(index_print(&sample, &text));
    for (size_t len = 0; len < text.len - 2; len++) {
        struct data_index x;
        assert_err(ERR_CORRUPT, index_parse(text.data, len, &x, NULL));
    }
    buf_fini(&text);
}

/* A correct seal around illegal values. */
TEST(sealed_contradictions)
{
    struct data_index bad[7];
    for (int i = 0; i < 7; i++)
        bad[i] = sample;
    bad[0].tokens = 14;
    bad[1].wide = false;
    bad[2].vocab = 0;
    strcpy(bad[3].hash, "short");
    bad[4].vocab_sha256[0] = '\0';
    bad[5].tokenizer = TOKENIZER_BYTES;
    bad[6].n_shards = 0;
    for (int i = 0; i < 7; i++) {
        struct buf text = {0};
        struct data_index x;
        struct why why = {0};
        assert_ok(index_print(&bad[i], &text));
        err_t err = index_parse(text.data, text.len, &x, &why);
        if (err != ERR_CORRUPT)
            fail_msg("contradiction %d: %s %s", i, err_name(err), why.text);
        buf_fini(&text);
    }
}
