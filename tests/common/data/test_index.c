/* index.json: it reads back, and a change of any byte is detected. */
#include "common/data/index.h"
#include "common/data/sha.h"
#include "tests/common/data/files.h"

#include <jansson.h>

#define HASH_A "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
#define HASH_B "bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb"

static struct index_shard shards[] = {{.tokens = 10, .sha256 = HASH_A}, {.tokens = 3, .sha256 = HASH_B}};
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

static struct index_place place = {(char *)"/data/x.bin", TOKEN_I32, 1024, 1024 + 40, 1700000000123456789};
static struct index_shard places[] = {{.tokens = 10, .sha256 = HASH_A, .place = &place},
                                      {.tokens = 3, .sha256 = HASH_B}};
static struct index_source source_list[] = {{(char *)"/data/a.jsonl", (char *)"jsonl", 99, 4, 13}};
static struct data_index sample_2(void)
{
    struct data_index x = sample;
    x.shards = places;
    x.documents = 4;
    strcpy(x.documents_sha256, HASH_A);
    strcpy(x.weights_sha256, HASH_B);
    x.n_sources = 1;
    x.sources = source_list;
    return x;
}

TEST(version_2_reads_back)
{
    struct buf text = {0};
    struct data_index in = sample_2(), x;
    struct why why = {0};
    assert_ok(index_print(&in, &text));
    assert_non_null(memmem(text.data, text.len, "\"version\": 2", 12));
    assert_ok(index_parse(text.data, text.len, &x, &why));
    assert_int_equal(x.documents, 4);
    assert_string_equal(x.documents_sha256, HASH_A);
    assert_string_equal(x.weights_sha256, HASH_B);
    assert_string_equal(x.shards[0].place->path, "/data/x.bin");
    assert_int_equal(x.shards[0].place->type, TOKEN_I32);
    assert_int_equal(x.shards[0].place->offset, 1024);
    assert_int_equal(x.shards[0].place->bytes, 1064);
    assert_int_equal(x.shards[0].place->mtime_ns, 1700000000123456789);
    assert_string_equal(x.shards[0].sha256, HASH_A);
    assert_null(x.shards[1].place);
    assert_int_equal(x.n_sources, 1);
    assert_string_equal(x.sources[0].path, "/data/a.jsonl");
    assert_string_equal(x.sources[0].format, "jsonl");
    assert_int_equal(x.sources[0].documents, 4);
    assert_int_equal(x.sources[0].tokens, 13);
    index_fini(&x);
    buf_fini(&text);
}

/* Each would make a reader go beyond a file. */
TEST(version_2_contradictions)
{
    struct data_index bad[6];
    struct index_place other[3];
    struct index_shard list[3][2];
    for (int i = 0; i < 6; i++)
        bad[i] = sample_2();
    for (int i = 0; i < 3; i++) {
        memcpy(list[i], places, sizeof(places));
        other[i] = place;
        list[i][0].place = &other[i];
        bad[i].shards = list[i];
    }
    other[0].offset = 1028;
    other[1].offset = -4;
    other[2].path = (char *)"data/x.bin";
    bad[3].documents = 14;
    bad[4].documents_sha256[0] = '\0';
    strcpy(bad[5].weights_sha256, "short");
    for (int i = 0; i < 6; i++) {
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

TEST(versions_of_the_future_are_refused)
{
    struct buf text = {0};
    struct data_index x;
    struct why why = {0};
    struct data_index in = sample_2();
    char seal[65];
    assert_ok(index_print(&in, &text));
    json_t *object = json_loadb((const char *)text.data, text.len, 0, NULL);
    json_object_set_new(object, "version", json_integer(3));
    json_object_del(object, "sha256");
    char *compact = json_dumps(object, JSON_COMPACT | JSON_SORT_KEYS);
    assert_ok(sha_of(compact, strlen(compact), seal));
    json_object_set_new(object, "sha256", json_string(seal));
    char *sealed = json_dumps(object, 0);
    assert_err(ERR_UNSUPPORTED, index_parse(sealed, strlen(sealed), &x, &why));
    assert_non_null(strstr(why.text, "version 3 is not supported; this dtd reads versions 1 to 2"));
    free(compact);
    free(sealed);
    json_decref(object);
    buf_fini(&text);
}

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
