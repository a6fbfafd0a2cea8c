/* Messages are those of wandb_internal.proto; the field numbers below are its. Values are JSON texts. */
#include "common/metrics/wandb.h"

#include "common/base/file.h"
#include "common/ckpt/sums.h"
#include "common/metrics/pb.h"

#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define CHUNK_BYTES 7 /* header of a chunk: CRC-32, u16 length, type */
#define FLUSH_BYTES ((size_t)1 << 20)
#define MIN_CONSUMER "0.70.0" /* oldest W&B server format that reads the log */
#define PROJECT "dtd"         /* `wandb sync --project` chooses another one */

enum chunk { CHUNK_WHOLE = 1, CHUNK_FIRST, CHUNK_MIDDLE, CHUNK_LAST };
enum {
    RECORD_NUM = 1,
    RECORD_HISTORY = 2,
    RECORD_SUMMARY = 3,
    RECORD_RUN = 17,
    RECORD_EXIT = 18,
    RECORD_FINAL = 20,
    RECORD_HEADER = 21,
    RECORD_ENVIRONMENT = 26
};
enum { ITEM_KEY = 1, ITEM_NESTED = 2, ITEM_JSON = 16, HISTORY_ITEM = 1, HISTORY_STEP = 2, UPDATE = 1 };
enum { RUN_ID = 1, RUN_PROJECT = 3, RUN_CONFIG, RUN_GROUP = 6, RUN_TYPE, RUN_NAME, RUN_HOST = 13, RUN_START = 17 };
enum { ENV_OS = 1, ENV_STARTED = 3, ENV_PROGRAM = 6, ENV_HOST = 12 };

const uint8_t wandb_header[WANDB_HEADER_BYTES] = {':', 'W', '&', 'B', 0xe1, 0xbe, 0};

/* ---- chunks ---- */

static uint32_t get32(const uint8_t *p)
{
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

/* The CRC-32 of the type and the bytes. */
static uint32_t chunk_crc(uint8_t type, const void *data, size_t len)
{
    uint32_t crc = sums_crc32(0, &type, 1);
    return len ? sums_crc32(crc, data, len) : crc;
}

static err_t put_chunk(struct buf *b, enum chunk type, const uint8_t *data, size_t len)
{
    uint32_t crc = chunk_crc((uint8_t)type, data, len);
    const uint8_t head[CHUNK_BYTES] = {(uint8_t)crc, (uint8_t)(crc >> 8), (uint8_t)(crc >> 16), (uint8_t)(crc >> 24),
                                       (uint8_t)len, (uint8_t)(len >> 8), (uint8_t)type};
    err_t err = buf_append(b, head, sizeof(head));
    return err || !len ? err : buf_append(b, data, len);
}

/* A block has no chunk in its last 6 bytes; with exactly 7 bytes left, the record begins with an empty chunk. */
err_t wandb_record(struct buf *b, uint64_t at, const void *message, size_t len)
{
    static const uint8_t zero[CHUNK_BYTES];
    const uint8_t *p = message;
    bool first = true;
    err_t err = OK;
    for (;;) {
        size_t left = WANDB_BLOCK_BYTES - (size_t)((at + b->len) % WANDB_BLOCK_BYTES);
        if (left < CHUNK_BYTES) {
            err = err ? err : buf_append(b, zero, left);
            left = WANDB_BLOCK_BYTES;
        }
        size_t n = left - CHUNK_BYTES < len ? left - CHUNK_BYTES : len;
        bool last = n == len;
        enum chunk type = first ? last ? CHUNK_WHOLE : CHUNK_FIRST : last ? CHUNK_LAST : CHUNK_MIDDLE;
        err = err ? err : put_chunk(b, type, p, n);
        if (err || last)
            return err;
        p += n;
        len -= n;
        first = false;
    }
}

/* The chunk at offset *at, which becomes the end of the chunk. False: there is no whole, undamaged chunk. */
static bool chunk_at(const struct wandb_reader *r, size_t *at, enum chunk *ret_type, const uint8_t **ret,
                     size_t *ret_len)
{
    size_t left = WANDB_BLOCK_BYTES - *at % WANDB_BLOCK_BYTES;
    size_t from = left < CHUNK_BYTES ? *at + left : *at;
    if (from > r->len || r->len - from < CHUNK_BYTES)
        return false;
    const uint8_t *p = r->data + from;
    size_t len = (size_t)p[4] | (size_t)p[5] << 8;
    if (len > r->len - from - CHUNK_BYTES || chunk_crc(p[6], p + CHUNK_BYTES, len) != get32(p))
        return false;
    *ret_type = (enum chunk)p[6];
    *ret = p + CHUNK_BYTES;
    *ret_len = len;
    *at = from + CHUNK_BYTES + len;
    return true;
}

err_t wandb_next(struct wandb_reader *r, bool *ret_more, const uint8_t **ret, size_t *ret_len)
{
    size_t at = r->at < WANDB_HEADER_BYTES ? WANDB_HEADER_BYTES : r->at, len = 0;
    enum chunk type = CHUNK_WHOLE;
    const uint8_t *p = NULL;
    err_t err = OK;
    *ret_more = false;
    r->joined.len = 0;
    if (!chunk_at(r, &at, &type, &p, &len))
        return OK;
    if (type == CHUNK_FIRST) {
        do
            err = err ? err : buf_append(&r->joined, p, len);
        while (!err && chunk_at(r, &at, &type, &p, &len) && type == CHUNK_MIDDLE);
        if (!err && type == CHUNK_LAST)
            err = buf_append(&r->joined, p, len);
        if (err || type != CHUNK_LAST)
            return err;
        p = r->joined.data;
        len = r->joined.len;
    } else if (type != CHUNK_WHOLE) {
        return OK;
    }
    r->at = at;
    *ret = p;
    *ret_len = len;
    *ret_more = true;
    return OK;
}

void wandb_reader_fini(struct wandb_reader *r)
{
    buf_fini(&r->joined);
}

/* ---- messages ---- */

static err_t nest(struct buf *outer, uint32_t field, struct buf *inner)
{
    err_t err = pb_message(outer, field, inner);
    inner->len = 0;
    return err;
}

/* The shortest of two forms that is read back as the same number. */
static void json_number(double x, char ret[40])
{
    if (!isfinite(x)) {
        snprintf(ret, 40, "%s", isnan(x) ? "NaN" : x > 0 ? "Infinity" : "-Infinity");
        return;
    }
    snprintf(ret, 40, "%.15g", x);
    if (strtod(ret, NULL) < x || strtod(ret, NULL) > x)
        snprintf(ret, 40, "%.17g", x);
}

static err_t put_item(struct buf *b, uint32_t field, const char *key, const char *json)
{
    struct buf item = {0};
    err_t err = pb_text(&item, ITEM_KEY, key);
    err = err ? err : pb_text(&item, ITEM_JSON, json);
    err = err ? err : nest(b, field, &item);
    buf_fini(&item);
    return err;
}

static err_t put_number(struct buf *b, uint32_t field, const char *key, double value)
{
    char json[40];
    json_number(value, json);
    return put_item(b, field, key, json);
}

/* The items of a row: its curves, and what W&B itself needs to draw them. */
static err_t put_row_items(struct buf *b, const struct metric *m, double runtime_s)
{
    struct curve curve[CURVES_MAX];
    int n = curves_of(m, curve);
    err_t err = OK;
    for (int i = 0; !err && i < n; i++)
        err = put_number(b, HISTORY_ITEM, curve[i].name, curve[i].value);
    err = err ? err : put_number(b, HISTORY_ITEM, "_step", (double)m->step);
    err = err ? err : put_number(b, HISTORY_ITEM, "_runtime", runtime_s);
    return err ? err : put_number(b, HISTORY_ITEM, "_timestamp", (double)m->wall_ms / 1000);
}

/* Appends the record with its number. `body` is emptied. */
static err_t put_record(struct wandb_run *r, struct buf *b, uint32_t kind, struct buf *body)
{
    struct buf record = {0};
    err_t err = pb_uint(&record, RECORD_NUM, r->num + 1);
    err = err ? err : nest(&record, kind, body);
    err = err ? err : wandb_record(b, r->end, record.data, record.len);
    if (!err)
        r->num++;
    buf_fini(&record);
    return err;
}

static err_t put_row(struct wandb_run *r, struct buf *b, const struct metric *m)
{
    struct buf history = {0}, step = {0};
    double runtime_s = (double)(m->wall_ms - r->start_ms) / 1000;
    struct curve_point p = {.step = m->step, .wall_ms = m->wall_ms, .at = r->end + b->len, .num = r->num};
    r->runtime_s = runtime_s > r->runtime_s ? runtime_s : r->runtime_s;
    err_t err = put_row_items(&history, m, r->runtime_s);
    err = err ? err : pb_uint(&step, 1, (uint64_t)m->step);
    err = err ? err : nest(&history, HISTORY_STEP, &step);
    err = err ? err : put_record(r, b, RECORD_HISTORY, &history);
    err = err ? err : curve_points_add(&r->points, &p);
    buf_fini(&history);
    buf_fini(&step);
    return err;
}

/* The values of the last row. `wandb sync` does not derive them from the rows. */
static err_t put_summary(struct wandb_run *r, struct buf *b, const struct metric *m)
{
    struct buf summary = {0}, item = {0};
    char json[40];
    json_number(floor(r->runtime_s), json);
    err_t err = put_row_items(&summary, m, r->runtime_s);
    err = err ? err : pb_text(&item, ITEM_NESTED, "_wandb");
    err = err ? err : pb_text(&item, ITEM_NESTED, "runtime");
    err = err ? err : pb_text(&item, ITEM_JSON, json);
    err = err ? err : nest(&summary, UPDATE, &item);
    err = err ? err : put_record(r, b, RECORD_SUMMARY, &summary);
    buf_fini(&summary);
    buf_fini(&item);
    return err;
}

static err_t put_time(struct buf *b, uint32_t field, int64_t ms)
{
    struct buf time = {0};
    err_t err = pb_uint(&time, 1, (uint64_t)(ms / 1000));
    if (!err && ms % 1000)
        err = pb_uint(&time, 2, (uint64_t)(ms % 1000) * 1000000);
    err = err ? err : nest(b, field, &time);
    buf_fini(&time);
    return err;
}

static err_t put_config(struct buf *run, const struct card *card)
{
    struct buf config = {0}, word = {0};
    err_t err = OK;
    for (int i = 0; !err && i < card->n_setting; i++) {
        const struct card_setting *s = &card->setting[i];
        word.len = 0;
        if (s->kind == CARD_NUMBER)
            err = put_number(&config, UPDATE, s->key, s->number);
        else if (s->kind == CARD_BOOL)
            err = put_item(&config, UPDATE, s->key, s->number != 0 ? "true" : "false");
        else /* words of the schema need no escapes */
            err = buf_printf(&word, "\"%s\"", s->text);
        if (!err && s->kind == CARD_WORD)
            err = buf_append(&word, "", 1);
        if (!err && s->kind == CARD_WORD)
            err = put_item(&config, UPDATE, s->key, (const char *)word.data);
    }
    err = err ? err : nest(run, RUN_CONFIG, &config);
    buf_fini(&config);
    buf_fini(&word);
    return err;
}

static err_t put_header(struct wandb_run *r, struct buf *b)
{
    struct buf header = {0}, version = {0};
    err_t err = pb_text(&version, 1, "dtd-" DTD_VERSION);
    err = err ? err : pb_text(&version, 2, MIN_CONSUMER);
    err = err ? err : nest(&header, 1, &version);
    err = err ? err : put_record(r, b, RECORD_HEADER, &header);
    buf_fini(&header);
    buf_fini(&version);
    return err;
}

static err_t put_run(struct wandb_run *r, struct buf *b, const struct card *card)
{
    struct buf run = {0}, name = {0};
    err_t err = buf_printf(&name, "%s (job %s)", card->name, card->job);
    err = err ? err : pb_text(&run, RUN_ID, card->run_id);
    err = err ? err : pb_text(&run, RUN_PROJECT, PROJECT);
    err = err ? err : put_config(&run, card);
    err = err ? err : pb_text(&run, RUN_GROUP, card->name);
    err = err ? err : pb_text(&run, RUN_TYPE, "train");
    err = err ? err : nest(&run, RUN_NAME, &name);
    err = err ? err : pb_text(&run, RUN_HOST, card->host);
    err = err ? err : put_time(&run, RUN_START, r->start_ms);
    err = err ? err : put_record(r, b, RECORD_RUN, &run);
    buf_fini(&run);
    buf_fini(&name);
    return err;
}

static err_t put_environment(struct wandb_run *r, struct buf *b, const struct card *card)
{
    struct buf env = {0};
    err_t err = pb_text(&env, ENV_OS, "Linux");
    err = err ? err : put_time(&env, ENV_STARTED, r->start_ms);
    err = err ? err : pb_text(&env, ENV_PROGRAM, "dtd");
    err = err ? err : pb_text(&env, ENV_HOST, card->host);
    err = err ? err : put_record(r, b, RECORD_ENVIRONMENT, &env);
    buf_fini(&env);
    return err;
}

/* What precedes the first row. */
static err_t put_head(struct wandb_run *r, struct buf *b, const struct card *card)
{
    err_t err = buf_append(b, wandb_header, sizeof(wandb_header));
    err = err ? err : put_header(r, b);
    err = err ? err : put_run(r, b, card);
    return err ? err : put_environment(r, b, card);
}

/* ---- a log that is there ---- */

static double item_number(const struct pb_field *item, const char *key, double otherwise)
{
    struct pb_reader r = pb_read(item->data, item->len);
    struct pb_field f;
    char text[40] = "";
    bool is_key = false;
    while (pb_next(&r, &f)) {
        if (f.field == ITEM_KEY && f.data)
            is_key = f.len == strlen(key) && memcmp(f.data, key, f.len) == 0;
        if (f.field == ITEM_JSON && f.data && f.len < sizeof(text))
            memcpy(text, f.data, f.len);
    }
    return is_key && text[0] ? strtod(text, NULL) : otherwise;
}

static err_t take_row(struct wandb_run *r, const struct pb_field *history, uint64_t at)
{
    struct pb_reader items = pb_read(history->data, history->len);
    struct pb_field item;
    double step = NAN, seconds = NAN, runtime = r->runtime_s;
    while (pb_next(&items, &item)) {
        if (item.field != HISTORY_ITEM || !item.data)
            continue;
        step = item_number(&item, "_step", step);
        seconds = item_number(&item, "_timestamp", seconds);
        runtime = item_number(&item, "_runtime", runtime);
    }
    if (!(step >= 0 && step < 1e15) || !(fabs(seconds) < 1e12))
        return OK;
    r->runtime_s = runtime;
    return curve_points_add(
        &r->points, &(struct curve_point){
                        .step = (int64_t)step, .wall_ms = (int64_t)llround(seconds * 1000), .at = at, .num = r->num});
}

static void take_start(struct wandb_run *r, const struct pb_field *run)
{
    struct pb_reader fields = pb_read(run->data, run->len);
    struct pb_field f, part;
    while (pb_next(&fields, &f)) {
        struct pb_reader time = pb_read(f.data, f.len);
        if (f.field != RUN_START || !f.data)
            continue;
        r->start_ms = 0;
        while (pb_next(&time, &part))
            r->start_ms += part.field == 1 ? (int64_t)part.whole * 1000 : (int64_t)(part.whole / 1000000);
    }
}

static err_t take_record(struct wandb_run *r, const uint8_t *message, size_t len)
{
    struct pb_reader fields = pb_read(message, len);
    struct pb_field f;
    uint64_t num = r->num + 1;
    err_t err = OK;
    while (!err && pb_next(&fields, &f)) {
        if (f.field == RECORD_NUM)
            num = f.whole;
        else if (f.field == RECORD_HISTORY && f.data)
            err = take_row(r, &f, r->end);
        else if (f.field == RECORD_RUN && f.data)
            take_start(r, &f);
        else if (f.field == RECORD_EXIT && !r->has_end) {
            r->rows_end = r->end;
            r->rows_num = r->num;
            r->has_end = true;
        }
    }
    r->num = num;
    return err;
}

static err_t take_log(struct wandb_run *r, const uint8_t *data, size_t len, struct why *why)
{
    struct wandb_reader reader = {.data = data, .len = len};
    const uint8_t *message = NULL;
    size_t message_len = 0;
    bool more = true;
    err_t err = OK;
    if (len < sizeof(wandb_header)) /* torn before the first record */
        return OK;
    if (memcmp(data, wandb_header, sizeof(wandb_header)) != 0)
        return why_set(why, ERR_CORRUPT, "%s: not a log of W&B; move it away", r->path);
    r->end = sizeof(wandb_header);
    while (!err && more) {
        err = wandb_next(&reader, &more, &message, &message_len);
        if (err || !more)
            break;
        err = take_record(r, message, message_len);
        r->end = reader.at;
    }
    wandb_reader_fini(&reader);
    return err ? why_set(why, err, "%s: %s", r->path, err_text(err)) : OK;
}

static err_t read_log(struct wandb_run *r, struct why *why)
{
    struct stat st;
    err_t err = OK;
    int fd = file_open_plain(r->path);
    if (fd < 0)
        return errno == ENOENT ? OK : why_set(why, err_from_errno(errno), "%s: %s", r->path, strerror(errno));
    r->busy = flock(fd, LOCK_SH | LOCK_NB) && errno == EWOULDBLOCK;
    struct buf text = {0};
    if (fstat(fd, &st) == 0 && st.st_size > 0) {
        err = buf_reserve(&text, (size_t)st.st_size);
        err = err ? err : file_pread_all(fd, text.data, (size_t)st.st_size, 0);
        err =
            err ? why_set(why, err, "%s: %s", r->path, err_text(err)) : take_log(r, text.data, (size_t)st.st_size, why);
    }
    buf_fini(&text);
    close(fd);
    return err;
}

/* The folder's name holds a local time, so that it is found by the run's id. */
static err_t find_run(struct wandb_run *r, const struct card *card, struct why *why)
{
    char pattern[PATH_MAX];
    glob_t found;
    struct buf literal = {0};
    err_t err = OK;
    for (const char *p = r->root; !err && *p; p++) /* the folder's own name is no pattern */
        err = buf_printf(&literal, strchr("*?[\\", *p) ? "\\%c" : "%c", *p);
    err = err ? err : buf_append(&literal, "", 1);
    if (err || snprintf(pattern, sizeof(pattern), "%s/wandb/offline-run-*-%s", (const char *)literal.data,
                        card->run_id) >= (int)sizeof(pattern)) {
        buf_fini(&literal);
        return why_set(why, err ? err : ERR_LIMIT, "%s: the path is too long", r->root);
    }
    buf_fini(&literal);
    if (glob(pattern, 0, NULL, &found) == 0) {
        r->dir = strdup(found.gl_pathv[0]);
        globfree(&found);
        err = r->dir ? OK : ERR_NOMEM;
    }
    return err ? why_set(why, err, "out of memory") : OK;
}

static err_t set_path(struct wandb_run *r, const struct card *card, struct why *why)
{
    struct buf path = {0};
    err_t err = buf_printf(&path, "%s/run-%s.wandb", r->dir, card->run_id);
    err = err ? err : buf_append(&path, "", 1);
    if (err) {
        buf_fini(&path);
        return why_set(why, err, "out of memory");
    }
    r->path = (char *)path.data;
    return OK;
}

err_t wandb_run_open(struct wandb_run *r, const char *root, const struct card *card, struct why *why)
{
    *r = (struct wandb_run){.root = strdup(root), .fd = -1};
    if (!r->root)
        return why_set(why, ERR_NOMEM, "out of memory");
    err_t err = find_run(r, card, why);
    if (err || !r->dir)
        return err;
    err = set_path(r, card, why);
    return err ? err : read_log(r, why);
}

/* ---- the log that is written ---- */

/* Makes the folders of a new run. Its name has the time of the job's submission. */
static err_t make_run(struct wandb_run *r, const struct card *card, struct why *why)
{
    struct buf dir = {0};
    char when[32], files[PATH_MAX];
    struct tm tm;
    time_t seconds = (time_t)(card->submitted_ms / 1000);
    localtime_r(&seconds, &tm);
    strftime(when, sizeof(when), "%Y%m%d_%H%M%S", &tm);
    err_t err = buf_printf(&dir, "%s/wandb/offline-run-%s-%s", r->root, when, card->run_id);
    err = err ? err : buf_append(&dir, "", 1);
    if (err) {
        buf_fini(&dir);
        return why_set(why, err, "out of memory");
    }
    r->dir = (char *)dir.data;
    for (int i = 0; i < 2; i++) {
        if (snprintf(files, sizeof(files), "%s/%s", r->dir, i ? "logs" : "files") >= (int)sizeof(files))
            return why_set(why, ERR_LIMIT, "%s: the path is too long", r->dir);
        if (file_make_dirs(files, 0777))
            return why_set(why, err_from_errno(errno), "%s: %s", files, strerror(errno));
    }
    return set_path(r, card, why);
}

/* Opens the log, without its torn tail. `card` is for a run that has no folder yet. */
static err_t open_log(struct wandb_run *r, const struct card *card, struct why *why)
{
    if (r->fd >= 0)
        return OK;
    err_t err = r->dir ? OK : make_run(r, card, why);
    if (err)
        return err;
    r->fd = open(r->path, O_WRONLY | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0666);
    if (r->fd < 0)
        return why_set(why, err_from_errno(errno), "%s: %s", r->path, strerror(errno));
    if (flock(r->fd, LOCK_EX | LOCK_NB) && errno == EWOULDBLOCK)
        err = why_set(why, ERR_BUSY, "%s: another process is writing to it", r->path);
    else if (ftruncate(r->fd, (off_t)r->end))
        err = why_set(why, err_from_errno(errno), "%s: %s", r->path, strerror(errno));
    return err;
}

/* Makes the log end at `end`, where record `num` ends. */
static err_t cut(struct wandb_run *r, uint64_t end, uint64_t num, struct why *why)
{
    r->end = end;
    r->num = num;
    r->has_end = false;
    return ftruncate(r->fd, (off_t)end) ? why_set(why, err_from_errno(errno), "%s: %s", r->path, strerror(errno)) : OK;
}

/* A write that fails leaves nothing behind. */
static err_t flush(struct wandb_run *r, struct buf *b, struct why *why)
{
    err_t err = b->len ? file_pwrite_all(r->fd, b->data, b->len, (off_t)r->end) : OK;
    if (err) {
        why_set(why, err, "%s: %s", r->path, err_text(err));
        if (ftruncate(r->fd, (off_t)r->end))
            why_set(why, err, "%s: %s; the incomplete record at its end was not cut off", r->path, err_text(err));
    } else {
        r->end += b->len;
    }
    b->len = 0;
    return err;
}

/* The log ends where the row comes: earlier ends of the run, and rows of this step and later ones, are cut off. */
static err_t make_way(struct wandb_run *r, int64_t step, struct buf *b, struct why *why)
{
    size_t at = curve_points_before(&r->points, step);
    err_t err = OK;
    if (r->has_end)
        err = cut(r, r->rows_end, r->rows_num, why);
    if (err || at == r->points.n)
        return err;
    err = flush(r, b, why);
    const struct curve_point p = r->points.point[at];
    r->points.n = at;
    return err ? err : cut(r, p.at, p.num, why);
}

/* Rows of a step that a later one of the same call replaces are not written. */
static err_t add_row(struct wandb_run *r, const struct card *card, const struct metric *m, struct buf *b,
                     struct why *why)
{
    err_t err = open_log(r, card, why);
    err = err ? err : make_way(r, m->step, b, why);
    if (err)
        return err;
    if (!r->end && !b->len) {
        r->start_ms = m->wall_ms - (int64_t)(isfinite(m->step_s) ? m->step_s * 1000 : 0);
        err = put_head(r, b, card);
    }
    err = err ? err : put_row(r, b, m);
    return err ? why_set(why, err, "%s: %s", r->path, err_text(err)) : OK;
}

err_t wandb_run_add(struct wandb_run *r, const struct card *card, const struct metric *rows, size_t n, struct why *why)
{
    struct buf b = {0};
    const struct metric *last = NULL;
    err_t err = OK;
    for (size_t i = 0; !err && i < n; i++) {
        if (curve_points_have(&r->points, &rows[i]))
            continue;
        last = &rows[i];
        err = add_row(r, card, last, &b, why);
        if (!err && b.len > FLUSH_BYTES)
            err = flush(r, &b, why);
    }
    if (!err && last && put_summary(r, &b, last))
        err = why_set(why, ERR_NOMEM, "out of memory");
    if (!err && last)
        err = flush(r, &b, why);
    buf_fini(&b);
    return err;
}

err_t wandb_run_cut(struct wandb_run *r, int64_t step, struct why *why)
{
    struct buf b = {0};
    if (curve_points_before(&r->points, step) == r->points.n)
        return OK;
    err_t err = open_log(r, NULL, why); /* it exists, since it has rows */
    err = err ? err : make_way(r, step, &b, why);
    buf_fini(&b);
    return err;
}

err_t wandb_run_end(struct wandb_run *r, bool success, struct why *why)
{
    struct buf b = {0}, body = {0};
    if (r->has_end || !r->points.n)
        return OK;
    err_t err = open_log(r, NULL, why);
    r->rows_end = r->end;
    r->rows_num = r->num;
    if (!err && !success)
        err = pb_uint(&body, 1, 1);
    err = err ? err : pb_uint(&body, 2, (uint64_t)r->runtime_s);
    err = err ? err : put_record(r, &b, RECORD_EXIT, &body);
    err = err ? err : put_record(r, &b, RECORD_FINAL, &body);
    err = err ? err : flush(r, &b, why);
    r->has_end = !err;
    buf_fini(&body);
    buf_fini(&b);
    return err;
}

void wandb_run_close(struct wandb_run *r)
{
    if (r->root && r->fd >= 0)
        close(r->fd);
    curve_points_fini(&r->points);
    free(r->root);
    free(r->dir);
    free(r->path);
    *r = (struct wandb_run){.fd = -1};
}
