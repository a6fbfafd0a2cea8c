/* Writes curves for curves_check.py: curves_tool DIR. 3000 steps with values that are not numbers, in batches of
 * changing size; epochs that go back, processes that end and leave a torn tail, and a clock that stands still. */
#include "common/base/file.h"
#include "common/metrics/tfevents.h"
#include "common/metrics/wandb.h"
#include "common/rpc/metric_line.h"

#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define STEPS 3000

static const char yaml[] =
    "name: small\n"
    "model: {arch: llama, dim: 64, layers: 2, heads: 4, kv_heads: 2, ffn: 128}\n"
    "data: {train: [/text.txt], valid: [], tokenizer: bytes}\n"
    "train: {steps: 3000, seq: 32, global_batch: 8, micro_batch: 2, lr: 0.001, schedule: cosine}\n"
    "checkpoint: {dir: /ckpt, every: 10}\n";

static void need(bool holds, const char *what)
{
    if (!holds) {
        fprintf(stderr, "curves_tool: %s\n", what);
        exit(1);
    }
}

static struct metric row_of(int64_t step, uint64_t epoch)
{
    struct metric m = metric_none;
    m.step = step;
    m.loss = step % 97 == 0 ? NAN : 3.0 / (double)step + 0.1 * (double)epoch;
    m.grad_norm = 0.75;
    m.lr = 0.001;
    m.tokens_per_s = 1024 + (double)step / 3;
    m.step_s = 0.25;
    m.workers = 2;
    m.epoch = epoch;
    m.wall_ms = 1700000000000 + (int64_t)epoch * 10000000 + step * 250;
    return m;
}

/* Bytes that are no record at the end of every file that is newer than the last call. */
static void tear(const char *path)
{
    int fd = open(path, O_WRONLY | O_APPEND | O_CLOEXEC);
    need(fd >= 0 && file_write_all(fd, "torn", 4) == OK, path);
    close(fd);
}

struct files {
    char tb[4096], root[4096];
    struct card card;
    struct tf_run tf;
    struct wandb_run wandb;
};

static void again(struct files *f, bool torn)
{
    struct why why = {""};
    if (torn)
        tear(f->tf.path);
    if (torn)
        tear(f->wandb.path);
    tf_run_close(&f->tf);
    wandb_run_close(&f->wandb);
    need(tf_run_open(&f->tf, f->tb, &why) == OK && wandb_run_open(&f->wandb, f->root, &f->card, &why) == OK, why.text);
}

static void add(struct files *f, int64_t from, int64_t to, uint64_t epoch)
{
    struct metric rows[64];
    struct why why = {""};
    for (int64_t step = from; step <= to;) {
        size_t n = 0, most = 1 + (size_t)(step % 64);
        while (n < most && step <= to)
            rows[n++] = row_of(step++, epoch);
        need(tf_run_add(&f->tf, &f->card, rows, n, &why) == OK, why.text);
        need(wandb_run_add(&f->wandb, &f->card, rows, n, &why) == OK, why.text);
    }
}

int main(int argc, char **argv)
{
    static struct files f;
    struct why why = {""};
    struct buf lines = {0};
    need(argc == 2, "one folder is needed");
    snprintf(f.tb, sizeof(f.tb), "%s/tb/job7", argv[1]);
    snprintf(f.root, sizeof(f.root), "%s/wb", argv[1]);
    need(card_make("7", 1700000000000, yaml, &f.card, &why) == OK, why.text);
    again(&f, false);
    add(&f, 1, 500, 1);
    add(&f, 301, 700, 2); /* back to 300 within a process */
    again(&f, true);
    add(&f, 1, 1200, 3); /* from the start, after a crash */
    again(&f, true);
    add(&f, 1201, 2000, 3); /* goes on after a crash */
    again(&f, false);
    add(&f, 1990, 2100, 3); /* some rows come again */
    add(&f, 2001, STEPS, 4);
    need(tf_run_end(&f.tf, &f.card, true, 1700100000000, &why) == OK, why.text);
    need(wandb_run_end(&f.wandb, true, &why) == OK, why.text);
    for (int64_t step = 1; step <= STEPS; step++) {
        const struct metric m = row_of(step, step <= 2000 ? 3 : 4);
        need(metric_line_format(&m, &lines) == OK, "a line");
    }
    fwrite(lines.data, 1, lines.len, stdout);
    tf_run_close(&f.tf);
    wandb_run_close(&f.wandb);
    card_fini(&f.card);
    buf_fini(&lines);
    return 0;
}
