#include "tests/common/metrics/fixture.h"

#include "common/base/file.h"

#include <fcntl.h>

#define EPOCH_MS 1000000

static const char yaml[] = "name: small\n"
                           "model: {arch: llama, dim: 64, layers: 2, heads: 4, kv_heads: 2, ffn: 128}\n"
                           "data: {train: [/text.txt], valid: [], tokenizer: bytes}\n"
                           "train: {steps: 40, seq: 32, global_batch: 8, micro_batch: 2, lr: 0.001, schedule: cosine}\n"
                           "parallel: {workers: 2}\n"
                           "checkpoint: {dir: /ckpt, every: 10}\n"
                           "run: {device: cpu, env: {SECRET: hidden}}\n";

struct card fixture_card(void)
{
    struct card card;
    struct why why = {""};
    assert_ok(card_make("7", 1700000000000, yaml, &card, &why));
    return card;
}

struct metric fixture_row(int64_t step, uint64_t epoch, double loss)
{
    struct metric m = metric_none;
    m.step = step;
    m.loss = loss;
    m.grad_norm = 0.75;
    m.lr = 0.001;
    m.tokens_per_s = 1024;
    m.step_s = 0.5;
    m.workers = 2;
    m.epoch = epoch;
    m.wall_ms = 1700000000000 + (int64_t)epoch * EPOCH_MS + step * 500;
    return m;
}

struct buf fixture_hex(const char *text)
{
    struct buf b = {0};
    unsigned byte;
    int n;
    for (; sscanf(text, " %2x%n", &byte, &n) == 1; text += n) {
        uint8_t x = (uint8_t)byte;
        assert_ok(buf_append(&b, &x, 1));
    }
    assert_int_equal(*text, 0);
    return b;
}

struct buf fixture_file(const char *path)
{
    struct buf b = {0};
    assert_ok(file_read(path, 1u << 26, &b));
    return b;
}

void fixture_write(const char *path, const void *data, size_t len)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    assert_true(fd >= 0);
    assert_ok(file_write_all(fd, data, len));
    close(fd);
}

const char *fixture_points(const struct curve_points *p)
{
    static char text[4096];
    size_t n = 0;
    text[0] = '\0';
    for (size_t i = 0; i < p->n; i++)
        n += (size_t)snprintf(text + n, sizeof(text) - n, "%s%lld:%lld", i ? " " : "", (long long)p->point[i].step,
                              (long long)((p->point[i].wall_ms - 1700000000000) / EPOCH_MS));
    return text;
}
