/* bench_data WORD ..: measures the reading of training data on one core, and prints one JSON line.
 *
 *   read FILE             documents of a file of JSON lines: decompressed and parsed, but not encoded
 *   unpack FILE           the same file, only decompressed by the same code
 *   batches CACHE HASH    samples of 2,048 tokens in the order of a full permutation, from a warm page cache, and
 *                         memcpy from places as random: of as many bytes as a batch has (ids and targets of 4 bytes
 *                         each), and of as many as its tokens have in a shard (2 bytes each)
 *   open CACHE HASH       opening a set, its first batch of 32 samples, and the memory that both take
 *   make CACHE SHARD_TOKENS FILE    prepares FILE with the tokenizer bytes; prints the hash
 *
 * Rates are bytes of content per second of processor time, in the best of some rounds, and of wall time. */
#include "common/base/clock.h"
#include "common/base/file.h"
#include "common/data/data.h"
#include "common/data/input.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define ROUNDS 7
#define SEQ 2048
#define FIRST_BATCH 32

struct times {
    double cpu_s, wall_s;
};

static struct times now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (struct times){(double)t.tv_sec + (double)t.tv_nsec * 1e-9, (double)clock_mono_ns() * 1e-9};
}

static void keep_best(struct times *best, struct times start)
{
    struct times end = now();
    end.cpu_s -= start.cpu_s;
    end.wall_s -= start.wall_s;
    best->cpu_s = !best->cpu_s || end.cpu_s < best->cpu_s ? end.cpu_s : best->cpu_s;
    best->wall_s = !best->wall_s || end.wall_s < best->wall_s ? end.wall_s : best->wall_s;
}

/* ---- files of documents ---- */

struct sums {
    int64_t documents, text, content;
};

static err_t read_documents(const struct input *in, struct sums *ret, struct why *why)
{
    const struct doc_options o = {0};
    struct input_reader r;
    bool end = false;
    err_t err = input_reader_open(in, &o, &r, why);
    if (err)
        return err;
    while (!err && !end) {
        struct document d;
        err = r.docs->ops->next(r.docs, &d, &end, why);
        if (!err && !end) {
            ret->documents++;
            ret->text += (int64_t)d.len;
        }
    }
    input_reader_close(&r);
    return err;
}

static err_t read_content(const struct input *in, struct sums *ret, struct why *why)
{
    static uint8_t piece[1 << 20];
    struct input_file f;
    size_t n = 1;
    err_t err = input_file_open(in, &f, why);
    if (err)
        return err;
    while (!err && n) {
        err = f.stream->ops->read(f.stream, piece, sizeof(piece), &n, why);
        ret->content += err ? 0 : (int64_t)n;
    }
    input_file_close(&f);
    return err;
}

static err_t bench_file(const char *path, bool parse, struct why *why)
{
    const struct data_prepare p = {0};
    struct input in = {0};
    struct sums sums = {0};
    struct times best = {0};
    err_t err = input_find(path, &p, &in, why);
    for (int i = 0; !err && i < ROUNDS; i++) {
        struct times start = now();
        struct sums once = {0};
        err = parse ? read_documents(&in, &once, why) : read_content(&in, &once, why);
        keep_best(&best, start);
        sums = once;
    }
    if (!err && parse)
        err = read_content(&in, &sums, why);
    if (!err)
        printf("{\"bench\": \"data_%s\", \"bytes\": %" PRId64 ", \"documents\": %" PRId64 ", \"text_bytes\": %" PRId64
               ", \"mb_per_s\": %.0f, \"wall_mb_per_s\": %.0f}\n",
               parse ? "read" : "unpack", sums.content, sums.documents, sums.text,
               (double)sums.content / best.cpu_s * 1e-6, (double)sums.content / best.wall_s * 1e-6);
    input_fini(&in);
    return err;
}

/* ---- prepared sets ---- */

static err_t make_set(char **arg, struct why *why)
{
    char hash[65];
    const struct data_prepare p = {
        .files = arg + 2, .n_files = 1, .cache = arg[0], .raw = true, .shard_tokens = strtoll(arg[1], NULL, 10)};
    err_t err = data_prepare(&p, hash, why);
    if (!err)
        printf("%s\n", hash);
    return err;
}

static err_t read_samples(const struct data_set *set, int64_t from, int64_t n, int32_t *ids)
{
    int64_t samples = data_samples(set, SEQ);
    err_t err = OK;
    for (int64_t i = from; !err && i < from + n; i++)
        err = data_sample(set, SEQ, data_sampler(1, samples, i), ids, ids + SEQ);
    return err;
}

/* Copies n times `size` bytes from memory of `bytes`, in the same order. */
static void copy_samples(const uint8_t *from, size_t bytes, size_t size, int64_t n, int32_t *ids)
{
    int64_t places = (int64_t)(bytes / size);
    for (int64_t i = 0; i < n; i++) {
        memcpy(ids, from + (size_t)data_sampler(1, places, i) * size, size);
        __asm__ volatile("" : : "r"(ids) : "memory");
    }
}

static err_t bench_batches(const char *cache, const char *hash, struct why *why)
{
    int32_t *ids = aligned_alloc(64, 2 * SEQ * sizeof(*ids));
    struct data_set *set = NULL;
    struct times batches = {0}, copies = {0}, shards = {0};
    err_t err = ids ? data_open(cache, hash, &set, why) : ERR_NOMEM;
    if (err)
        return err;
    int64_t n = data_samples(set, SEQ);
    size_t bytes = (size_t)n * 2 * SEQ * sizeof(*ids);
    uint8_t *memory = malloc(bytes);
    if (memory)
        memset(memory, 1, bytes);
    for (int i = 0; !err && memory && i < ROUNDS; i++) {
        struct times start = now();
        err = read_samples(set, 0, n, ids);
        keep_best(&batches, start);
        start = now();
        copy_samples(memory, bytes, 2 * SEQ * sizeof(*ids), n, ids);
        keep_best(&copies, start);
        start = now();
        copy_samples(memory, bytes / 4, SEQ * sizeof(uint16_t), n, ids);
        keep_best(&shards, start);
    }
    if (!err && memory)
        printf("{\"bench\": \"data_batches\", \"seq\": %d, \"samples\": %" PRId64
               ", \"mb_per_s\": %.0f, \"memcpy_mb_per_s\": %.0f, \"ratio\": %.2f, \"ratio_of_tokens\": %.2f}\n",
               SEQ, n, (double)bytes / batches.cpu_s * 1e-6, (double)bytes / copies.cpu_s * 1e-6,
               copies.cpu_s / batches.cpu_s, shards.cpu_s / batches.cpu_s);
    data_close(set);
    free(memory);
    free(ids);
    return err ? err : memory ? OK : ERR_NOMEM;
}

/* A field of /proc/self/status in KiB. */
static long status_kib(const char *field)
{
    char line[256];
    long kib = -1;
    FILE *f = fopen("/proc/self/status", "r");
    while (f && fgets(line, sizeof(line), f))
        if (strncmp(line, field, strlen(field)) == 0)
            kib = strtol(line + strlen(field) + 1, NULL, 10);
    if (f)
        fclose(f);
    return kib;
}

static err_t bench_open(const char *cache, const char *hash, struct why *why)
{
    static int32_t ids[2 * SEQ];
    struct data_set *set = NULL;
    struct times start = now(), opened = {0}, first = {0};
    long before = status_kib("RssAnon:");
    err_t err = data_open(cache, hash, &set, why);
    keep_best(&opened, start);
    err = err ? err : read_samples(set, 0, FIRST_BATCH, ids);
    keep_best(&first, start);
    long after = status_kib("RssAnon:"), file = status_kib("RssFile:");
    if (!err)
        printf("{\"bench\": \"data_open\", \"tokens\": %" PRId64
               ", \"open_s\": %.4f, \"first_batch_s\": %.4f, \"memory_kib\": %ld, \"file_kib\": %ld}\n",
               data_tokens(set), opened.wall_s, first.wall_s, after - before, file);
    data_close(set);
    return err;
}

int main(int argc, char **argv)
{
    struct why why = {0};
    err_t err;
    if (argc == 3 && strcmp(argv[1], "read") == 0)
        err = bench_file(argv[2], true, &why);
    else if (argc == 3 && strcmp(argv[1], "unpack") == 0)
        err = bench_file(argv[2], false, &why);
    else if (argc == 4 && strcmp(argv[1], "batches") == 0)
        err = bench_batches(argv[2], argv[3], &why);
    else if (argc == 4 && strcmp(argv[1], "open") == 0)
        err = bench_open(argv[2], argv[3], &why);
    else if (argc == 5 && strcmp(argv[1], "make") == 0)
        err = make_set(argv + 2, &why);
    else
        return fprintf(stderr,
                       "usage: bench_data read|unpack FILE, batches|open CACHE HASH, or make CACHE SHARD_TOKENS "
                       "FILE\n"),
               2;
    return err ? fprintf(stderr, "bench_data: %s %s\n", err_text(err), why.text), 1 : 0;
}
