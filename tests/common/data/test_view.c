/* Samples of a set with documents: cut and packed, with begins and targets that count, against a naive reading. */
#include "common/data/pack.h"
#include "common/data/view.h"
#include "tests/common/data/files.h"

#define SEQ 16

/* Document i has the tokens 100 i % 1000 + 0, 1, 2, .. of its length; some tokens do not count. */
static struct data_set *documents_make(const int *lengths, int n, char hash[65])
{
    struct data_set *set = NULL;
    struct why why = {0};
    struct buf text = {0};
    for (int i = 0; i < n; i++) {
        assert_ok(buf_printf(&text, "{\"input_ids\": ["));
        for (int k = 0; k < lengths[i]; k++)
            assert_ok(buf_printf(&text, "%s%d", k ? ", " : "", (i * 7 + k) % 256));
        assert_ok(buf_printf(&text, "], \"loss_mask\": ["));
        for (int k = 0; k < lengths[i]; k++)
            assert_ok(buf_printf(&text, "%s%d", k ? ", " : "", (i + k) % 5 != 0));
        assert_ok(buf_printf(&text, "]}\n"));
    }
    char *path = file_make("rows.jsonl", text.data, text.len);
    struct data_prepare p = {.files = &path, .n_files = 1, .tokenizer = TOKENIZER_BYTES, .cache = file_path("cache")};
    if (data_prepare(&p, hash, &why) || data_open(p.cache, hash, &set, &why))
        fail_msg("%s", why.text);
    buf_fini(&text);
    return set;
}

static const int lengths[] = {5, 1, 40, 17, 3, 16, 2, 9, 33, 1, 12, 8, 15, 4, 7, 7, 6, 50};
#define DOCUMENTS ((int)(sizeof(lengths) / sizeof(lengths[0])))

static struct data_view *view_make(const struct data_set *set, enum data_documents documents, enum data_packing packing)
{
    struct data_view *v;
    struct why why = {0};
    const struct job_data d = {.documents = documents, .packing = packing};
    if (view_open(set, &d, SEQ, 0, &v, &why))
        fail_msg("%s", why.text);
    return v;
}

static struct data_view *strided_make(const struct data_set *set, int64_t stride)
{
    struct data_view *v;
    struct why why = {0};
    const struct job_data d = {.documents = DOCUMENTS_SEPARATE, .stride = stride};
    if (view_open(set, &d, SEQ, 0, &v, &why))
        fail_msg("%s", why.text);
    return v;
}

struct place {
    int document, at; /* of a token */
};

static int places_list(struct place *ret)
{
    int n = 0;
    for (int i = 0; i < DOCUMENTS; i++)
        for (int k = 0; k < lengths[i]; k++)
            ret[n++] = (struct place){i, k};
    return n;
}

static int token_of(struct place p)
{
    return (p.document * 7 + p.at) % 256;
}

static bool counts(struct place p)
{
    return (p.document + p.at) % 5 != 0;
}

TEST(cut_samples_of_separate_documents)
{
    char hash[65];
    struct place place[512];
    const int n = places_list(place);
    struct data_set *set = documents_make(lengths, DOCUMENTS, hash);
    for (int separate = 0; separate < 2; separate++) {
        struct data_view *v = view_make(set, (enum data_documents)separate, PACKING_WRAPPED);
        assert_int_equal(view_samples(v), (n - 1) / SEQ);
        assert_true(view_masks(v));
        for (int64_t s = 0; s < view_samples(v); s++) {
            int32_t ids[SEQ], targets[SEQ], begins[SEQ];
            int64_t count, expected = 0;
            assert_ok(view_sample(v, s, ids, targets));
            assert_ok(view_begins(v, s, begins));
            assert_ok(view_count(v, s, &count));
            for (int i = 0; i < SEQ; i++) {
                struct place at = place[s * SEQ + i], next = place[s * SEQ + i + 1];
                bool target = counts(next) && !(separate && next.document != at.document);
                assert_int_equal(ids[i], token_of(at));
                assert_int_equal(targets[i], target ? token_of(next) : -1);
                assert_int_equal(begins[i], !separate || at.at >= i ? 0 : i - at.at);
                expected += target;
            }
            assert_int_equal(count, expected);
        }
        view_close(v);
    }
    data_close(set);
}

/* The samples of every stride are windows of the same list of tokens: stride 1 has all of them. */
TEST(a_sample_begins_every_stride_tokens)
{
    char hash[65];
    struct place place[512];
    const int n = places_list(place);
    struct data_set *set = documents_make(lengths, DOCUMENTS, hash);
    for (int stride = 1; stride <= SEQ; stride++) {
        struct data_view *v = strided_make(set, stride);
        int64_t s = 0;
        for (int at = 0; at + SEQ < n; at += stride, s++) {
            int32_t ids[SEQ], targets[SEQ], begins[SEQ];
            assert_ok(view_sample(v, s, ids, targets));
            assert_ok(view_begins(v, s, begins));
            for (int i = 0; i < SEQ; i++) {
                struct place here = place[at + i], next = place[at + i + 1];
                assert_int_equal(ids[i], token_of(here));
                assert_int_equal(targets[i], counts(next) && next.document == here.document ? token_of(next) : -1);
                assert_int_equal(begins[i], here.at >= i ? 0 : i - here.at);
            }
        }
        assert_int_equal(view_samples(v), s);
        int32_t ids[SEQ], targets[SEQ];
        assert_err(ERR_INVALID, view_sample(v, s, ids, targets));
        view_close(v);
    }
    data_close(set);
}

/* Every pair of neighbouring tokens of a document is in exactly one sample. */
TEST(packed_samples_have_every_prediction_once)
{
    char hash[65];
    int seen[DOCUMENTS][64] = {{0}};
    struct data_set *set = documents_make(lengths, DOCUMENTS, hash);
    struct data_view *v = view_make(set, DOCUMENTS_SEPARATE, PACKING_BEST_FIT);
    int64_t inputs = 0;
    for (int64_t s = 0; s < view_samples(v); s++) {
        int32_t ids[SEQ], targets[SEQ], begins[SEQ];
        int64_t count, expected = 0;
        assert_ok(view_sample(v, s, ids, targets));
        assert_ok(view_begins(v, s, begins));
        assert_ok(view_count(v, s, &count));
        for (int i = 0; i < SEQ; i++)
            expected += targets[i] >= 0;
        assert_int_equal(count, expected);
        for (int from = 0, to; from < SEQ; from = to) {
            for (to = from; to < SEQ && begins[to] == begins[from]; to++)
                ;
            assert_int_equal(begins[from], from);
            int found = -1, at = 0;
            for (int d = 0; d < DOCUMENTS; d++) /* a piece begins at a multiple of SEQ in its document */
                for (int k = 0; found < 0 && k < lengths[d] - 1; k += SEQ) {
                    int end = lengths[d] - 1 - k < SEQ ? lengths[d] - 1 - k : SEQ;
                    bool same = end == to - from && !seen[d][k];
                    for (int i = 0; same && i < end; i++) {
                        struct place next = {d, k + i + 1};
                        same = ids[from + i] == token_of((struct place){d, k + i}) &&
                               targets[from + i] == (counts(next) ? token_of(next) : -1);
                    }
                    found = same ? d : -1;
                    at = k;
                }
            if (found < 0) { /* padding, at the end of the sample */
                assert_int_equal(to, SEQ);
                for (int i = from; i < to; i++)
                    assert_true(ids[i] == 0 && targets[i] == -1);
                continue;
            }
            seen[found][at]++;
            inputs += to - from;
        }
    }
    for (int d = 0; d < DOCUMENTS; d++)
        for (int k = 0; k < lengths[d] - 1; k += SEQ)
            assert_int_equal(seen[d][k], 1);
    assert_true(view_filled(v) == (double)inputs / (double)(view_samples(v) * SEQ));
    view_close(v);
    data_close(set);
}

TEST(joined_files_have_no_separate_documents)
{
    char hash[65];
    char *path = file_make_text("joined.txt", "a text that is long enough for one sample or two\n");
    struct data_set *set = set_make(path, TOKENIZER_BYTES, 0, hash);
    struct data_view *v;
    struct why why = {0};
    const struct job_data d = {.documents = DOCUMENTS_SEPARATE};
    assert_int_equal(view_open(set, &d, SEQ, 0, &v, &why), ERR_INVALID);
    assert_non_null(strstr(why.text, "no boundaries between documents"));
    const struct job_data plain = {.documents = DOCUMENTS_JOINED};
    assert_ok(view_open(set, &plain, SEQ, 0, &v, &why));
    assert_false(view_masks(v));
    view_close(v);
    assert_int_equal(view_open(set, &plain, 1000, 0, &v, &why), ERR_INVALID);
    assert_non_null(strstr(why.text, "set train.seq to at most 48"));
    data_close(set);
}

/* ---- packing, against an algorithm that looks at every row ---- */

static void check_packing(int64_t length, int n, uint64_t seed)
{
    int64_t *size = calloc((size_t)n, sizeof(*size)), *room = calloc((size_t)n, sizeof(*room)), rows = 0, longest = 0;
    struct packing p = {0};
    for (int i = 0; i < n; i++) {
        size[i] = 1 + (int64_t)(random_next(&seed) % (uint64_t)length);
        size[i] = i % 3 ? 1 + size[i] / 7 : size[i];
        assert_ok(packing_add(&p, i * 1000000, size[i]));
    }
    for (longest = length; longest; longest--)
        for (int i = 0; i < n; i++) {
            int64_t best = -1;
            if (size[i] != longest)
                continue;
            for (int64_t r = 0; r < rows; r++)
                if (room[r] >= longest && (best < 0 || room[r] < room[best]))
                    best = r;
            if (best < 0)
                room[best = rows++] = length;
            room[best] -= longest;
        }
    assert_ok(packing_finish(&p, length));
    assert_int_equal(p.n_rows, rows);
    assert_int_equal(p.n_pieces, n);
    assert_int_equal(p.rows[0], 0);
    assert_int_equal(p.rows[p.n_rows], n);
    uint8_t *seen = calloc((size_t)n, 1);
    for (int64_t r = 0; r < p.n_rows; r++) {
        int64_t sum = 0;
        for (int64_t i = p.rows[r]; i < p.rows[r + 1]; i++) {
            sum += p.pieces[i].n;
            assert_int_equal(p.pieces[i].n, size[p.pieces[i].at / 1000000]);
            assert_false(seen[p.pieces[i].at / 1000000]++);
        }
        assert_in_range(sum, 1, length);
    }
    free(seen);
    free(size);
    free(room);
    packing_fini(&p);
}

TEST(as_many_rows_as_the_naive_algorithm)
{
    for (int n = 1; n < 60; n++)
        check_packing(1 + n % 17, n, (uint64_t)n + 1);
    check_packing(63, 500, 3);
    check_packing(64, 500, 4);
    check_packing(65, 500, 5);
    check_packing(4096, 2000, 6);
    check_packing(5000, 2000, 7);
    check_packing(300000, 1000, 8);
}
