/* bench_bpe TEXT FILE [FILE]: measures byte-pair encoding on one core in MB per second of processor time, and prints
 * one JSON line. FILE: as data.tokenizer_files. The result is the best of five passes over the text, in chunks of a
 * megabyte as `dtctl data prepare` reads it. Each pass has a new encoder. */
#include "common/base/file.h"
#include "common/data/tokenizer.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define PIECE ((size_t)1 << 20)
#define ROUNDS 5

static double now_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static err_t encode(const struct tokenizer *t, const struct buf *text, struct buf *ids, double *ret_s)
{
    struct encoder e;
    double start = now_s();
    err_t err = OK;
    ids->len = 0;
    encoder_init(&e, t, ids);
    for (size_t at = 0; !err && at < text->len; at += PIECE)
        err = encoder_feed(&e, text->data + at, text->len - at < PIECE ? text->len - at : PIECE);
    err = err ? err : encoder_finish(&e);
    encoder_fini(&e);
    *ret_s = now_s() - start;
    return err;
}

int main(int argc, char **argv)
{
    struct tokenizer *t = NULL;
    struct why why = {0};
    struct buf text = {0}, ids = {0};
    double best = 1e30, s, start = now_s();
    if (argc < 3)
        return fprintf(stderr, "usage: bench_bpe TEXT FILE [FILE]\n"), 2;
    err_t err = tokenizer_bpe_files(argv + 2, argc - 2, &t, &why);
    double load = now_s() - start;
    err = err ? err : file_read(argv[1], (size_t)1 << 32, &text);
    for (int i = 0; !err && i < ROUNDS; i++) {
        err = encode(t, &text, &ids, &s);
        best = s < best ? s : best;
    }
    if (err)
        return fprintf(stderr, "bench_bpe: %s %s\n", err_text(err), why.text), 1;
    printf("{\"bench\": \"bpe\", \"vocab\": %lld, \"bytes\": %zu, \"tokens\": %zu, \"mb_per_s\": %.1f, \"load_s\": "
           "%.3f}\n",
           (long long)tokenizer_vocab(t), text.len, ids.len / sizeof(int32_t), (double)text.len / best * 1e-6, load);
    tokenizer_free(t);
    buf_fini(&text);
    buf_fini(&ids);
    return 0;
}
