/* See clock.h. A follower applies a record some time after the leader has read its clock, so of several records the one
 * with the shortest way counts: the largest difference to the monotonic clock.
 *
 * The file needs no fsync: it is valid only for this boot, so a loss of power makes it useless anyway. */
#include "daemon/control/state/clock.h"

#include "common/base/clock.h"
#include "common/base/file.h"
#include "daemon/control/log/sum.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define WRONG_MS 100 /* of the file; the rates of two clocks differ by this much in an hour */
#define TEXT_MAX 96

static void read_text(const char *path, char *ret, size_t size)
{
    struct buf text = {0};
    size_t n = 0;
    if (file_read(path, TEXT_MAX, &text) == OK)
        n = text.len < size ? text.len : size - 1;
    if (n)
        memcpy(ret, text.data, n);
    ret[n] = '\0';
    buf_fini(&text);
}

#define SUM_BYTES (sizeof(" 00000000\n") - 1)

/* A bit that the disk has changed would be a clock that is wrong by years, on all nodes and for good. */
static void print_sum(const char *text, size_t len, char ret[SUM_BYTES + 1])
{
    snprintf(ret, SUM_BYTES + 1, " %08" PRIx32 "\n", log_crc(0, text, len));
}

void state_clock_open(struct state_clock *c, const char *dir)
{
    char text[TEXT_MAX + 1], boot[sizeof(c->boot)], sum[SUM_BYTES + 1], end;
    int64_t ahead_ms;
    *c = (struct state_clock){0};
    read_text("/proc/sys/kernel/random/boot_id", c->boot, sizeof(c->boot));
    c->boot[strcspn(c->boot, "\n")] = '\0';
    if (snprintf(c->path, sizeof(c->path), "%s/clock", dir) >= (int)sizeof(c->path))
        c->boot[0] = '\0';
    read_text(c->path, text, sizeof(text));
    bool is_whole = strlen(text) > SUM_BYTES;
    if (is_whole)
        print_sum(text, strlen(text) - SUM_BYTES, sum);
    if (!is_whole || strcmp(text + strlen(text) - SUM_BYTES, sum) != 0 ||
        sscanf(text, "%39s %" SCNd64 "%c", boot, &ahead_ms, &end) != 3 || strcmp(boot, c->boot) != 0)
        return;
    c->runs = c->is_saved = true;
    c->ahead_ms = c->saved_ms = ahead_ms;
}

int64_t state_clock_ms(struct state_clock *c)
{
    int64_t now = clock_mono_ms();
    if (!c->runs)
        c->ahead_ms = 1 - now;
    c->runs = true;
    return now + c->ahead_ms;
}

void state_clock_seen(struct state_clock *c, int64_t clock_ms)
{
    int64_t ahead_ms = clock_ms - clock_mono_ms();
    if (clock_ms <= 0 || (c->runs && ahead_ms <= c->ahead_ms))
        return;
    c->runs = true;
    c->ahead_ms = ahead_ms;
}

void state_clock_save(struct state_clock *c)
{
    char text[TEXT_MAX];
    if (!c->runs || !c->boot[0] || (c->is_saved && llabs(c->ahead_ms - c->saved_ms) <= WRONG_MS))
        return;
    c->is_saved = true; /* also if the file cannot be written: a full disk must not cost a try at each tick */
    c->saved_ms = c->ahead_ms;
    int n = snprintf(text, sizeof(text) - SUM_BYTES, "%s %" PRId64, c->boot, c->ahead_ms);
    print_sum(text, (size_t)n, text + n);
    n += (int)SUM_BYTES;
    int fd = open(c->path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (fd < 0)
        return;
    if (file_write_all(fd, text, (size_t)n))
        (void)ftruncate(fd, 0); /* a part of a line is no file */
    close(fd);
}
