/* A prepared set as lists that a test makes itself, and the comparison of every sample with them. */
#ifndef DTD_TESTS_COMMON_DATA_EXPECTED_H
#define DTD_TESTS_COMMON_DATA_EXPECTED_H

#include "tests/common/data/files.h"

static inline err_t prepare(struct data_prepare p, int n, char *const *files, char ret_hash[65], struct why *why)
{
    p.files = files;
    p.n_files = n;
    p.cache = file_path("cache");
    return data_prepare(&p, ret_hash, why);
}

static inline struct data_set *prepare_open(struct data_prepare p, int n, char *const *files)
{
    struct data_set *set = NULL;
    struct why why = {0};
    char hash[65];
    if (prepare(p, n, files, hash, &why) || data_open(file_path("cache"), hash, &set, &why))
        fail_msg("%s", why.text);
    return set;
}

/* A set as lists. */
struct expected {
    int32_t ids[4096];
    uint8_t weights[4096];
    int64_t begins[4096]; /* of the document of each token */
    int64_t tokens, documents;
};

static inline void expect_document(struct expected *e, const int32_t *ids, const uint8_t *weights, int64_t n)
{
    int64_t begin = e->tokens;
    for (int64_t i = 0; i < n; i++, e->tokens++) {
        e->ids[e->tokens] = ids[i];
        e->weights[e->tokens] = weights ? weights[i] : 1;
        e->begins[e->tokens] = begin;
    }
    e->documents++;
}

static inline void expect_text(struct expected *e, const char *text)
{
    int32_t ids[1024];
    int64_t n = (int64_t)strlen(text);
    for (int64_t i = 0; i < n; i++)
        ids[i] = (uint8_t)text[i];
    expect_document(e, ids, NULL, n);
}

static inline void check_sample(const struct data_set *set, const struct expected *e, int64_t seq, int64_t i)
{
    int32_t ids[64], targets[64], begins[64], joined[64];
    uint8_t weights[64], source[64];
    assert_ok(data_sample(set, seq, i, ids, targets));
    assert_ok(data_window_marks(set, seq, i * seq, true, begins, weights));
    assert_ok(data_window_marks(set, seq, i * seq, false, joined, source));
    for (int64_t k = 0; k < seq; k++) {
        int64_t at = i * seq + k, begin = e->begins[at] < i * seq ? 0 : e->begins[at] - i * seq;
        bool first = e->begins[at + 1] == at + 1;
        if (ids[k] != e->ids[at] || targets[k] != e->ids[at + 1] || begins[k] != begin ||
            weights[k] != (first ? 0 : e->weights[at + 1]) || joined[k] != 0 || source[k] != e->weights[at + 1])
            fail_msg("seq %d, sample %d, place %d: id %d, begin %d, weight %d", (int)seq, (int)i, (int)k, ids[k],
                     begins[k], weights[k]);
    }
}

static inline void check_set(const struct data_set *set, const struct expected *e)
{
    assert_int_equal(data_tokens(set), e->tokens);
    assert_int_equal(data_documents(set), e->documents);
    for (int64_t seq = 1; seq <= 64; seq += seq < 9 ? 1 : 11)
        for (int64_t i = 0; i < data_samples(set, seq); i++)
            check_sample(set, e, seq, i);
    for (int64_t at = 0; at < e->tokens; at++) {
        struct data_document d;
        assert_ok(data_document(set, at, &d));
        assert_int_equal(d.begin, e->begins[at]);
        assert_true(d.end == e->tokens || e->begins[d.end] == d.end);
        assert_true(d.end > at && e->begins[d.end - 1] == d.begin);
    }
    assert_ok(data_verify(set, NULL));
}

#endif
