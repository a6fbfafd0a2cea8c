/* Messages are those of tensorflow's event.proto and summary.proto and of TensorBoard's plugin hparams; the field
 * numbers below are theirs. The curves of one step are values of one Event.
 *
 * Every call writes with one write, without fsync: the file is a view of metrics that dtd-control has on disk. A write
 * that fails is cut off again, and the file is left. */
#include "common/metrics/tfevents.h"

#include "common/base/clock.h"
#include "common/base/file.h"
#include "common/ckpt/sums.h"
#include "common/metrics/pb.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#define FILE_VERSION "brain.Event:2" /* without it readers have other rules for dropping points */
#define MESSAGE_MAX (64u << 20)      /* of a record that is read; ours have some kilobytes */
#define READ_BYTES ((size_t)1 << 20)

enum { EVENT_WALL = 1, EVENT_STEP, EVENT_VERSION, EVENT_SUMMARY = 5, EVENT_SESSION = 7, EVENT_SOURCE = 10 };
enum { SESSION_STATUS = 1, SESSION_START = 1 };
enum { SUMMARY_VALUE = 1, VALUE_TAG = 1, VALUE_SIMPLE = 2, VALUE_TENSOR = 8, VALUE_METADATA = 9 };
enum { METADATA_PLUGIN = 1, METADATA_CLASS = 4, PLUGIN_NAME = 1, PLUGIN_CONTENT = 2, CLASS_TENSOR = 2 };
enum { TENSOR_TYPE = 1, TENSOR_SHAPE = 2, TENSOR_TEXT = 8, TYPE_FLOAT = 1, TYPE_TEXT = 7, SHAPE_DIM = 2, DIM_SIZE = 1 };
enum { HPARAMS_START = 3, HPARAMS_END = 4, START_SETTING = 1, START_GROUP = 4, START_SECONDS = 5 };
enum { MAP_KEY = 1, MAP_VALUE = 2, HVALUE_NUMBER = 2, HVALUE_TEXT = 3, HVALUE_BOOL = 4 };
enum { END_STATUS = 1, END_SECONDS = 2, END_SUCCESS = 1, END_FAILURE = 2 };

static const char start_tag[] = "_hparams_/session_start_info", end_tag[] = "_hparams_/session_end_info";

/* ---- records ---- */

static uint32_t masked_crc(const void *data, size_t len)
{
    uint32_t crc = sums_crc32c(0, data, len);
    return (crc >> 15 | crc << 17) + 0xa282ead8u;
}

static void put32(uint8_t *p, uint32_t x)
{
    for (int i = 0; i < 4; i++)
        p[i] = (uint8_t)(x >> 8 * i);
}

static uint32_t get32(const uint8_t *p)
{
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

err_t tf_record(struct buf *b, const void *message, size_t len)
{
    uint8_t head[12], tail[4];
    err_t err = buf_reserve(b, len + TF_RECORD_BYTES);
    put32(head, (uint32_t)len);
    put32(head + 4, (uint32_t)((uint64_t)len >> 32));
    put32(head + 8, masked_crc(head, 8));
    put32(tail, masked_crc(message, len));
    err = err ? err : buf_append(b, head, sizeof(head));
    err = err ? err : buf_append(b, message, len);
    return err ? err : buf_append(b, tail, sizeof(tail));
}

size_t tf_record_read(const void *block, size_t len, const uint8_t **ret, size_t *ret_len, bool *ret_damaged)
{
    const uint8_t *p = block;
    *ret_damaged = false;
    if (len < 12)
        return 0;
    uint64_t n = get32(p) | (uint64_t)get32(p + 4) << 32;
    *ret_damaged = masked_crc(p, 8) != get32(p + 8) || n > MESSAGE_MAX;
    if (*ret_damaged || n + TF_RECORD_BYTES > len)
        return 0;
    *ret_damaged = masked_crc(p + 12, n) != get32(p + 12 + n);
    if (*ret_damaged)
        return 0;
    *ret = p + 12;
    *ret_len = n;
    return n + TF_RECORD_BYTES;
}

/* ---- messages ---- */

/* Puts a message into another one and empties it. */
static err_t nest(struct buf *outer, uint32_t field, struct buf *inner)
{
    err_t err = pb_message(outer, field, inner);
    inner->len = 0;
    return err;
}

/* Appends an Event with one part; `part` is emptied. */
static err_t put_event(struct buf *b, double wall_s, int64_t step, uint32_t field, struct buf *part)
{
    struct buf event = {0};
    err_t err = pb_double(&event, EVENT_WALL, wall_s);
    if (!err && step)
        err = pb_uint(&event, EVENT_STEP, (uint64_t)step);
    err = err ? err : nest(&event, field, part);
    err = err ? err : tf_record(b, event.data, event.len);
    buf_fini(&event);
    return err;
}

/* The first record of every file. */
static err_t put_version(struct buf *b, double wall_s)
{
    struct buf event = {0}, source = {0};
    err_t err = pb_double(&event, EVENT_WALL, wall_s);
    err = err ? err : pb_text(&event, EVENT_VERSION, FILE_VERSION);
    err = err ? err : pb_text(&source, 1, "dtd");
    err = err ? err : nest(&event, EVENT_SOURCE, &source);
    err = err ? err : tf_record(b, event.data, event.len);
    buf_fini(&source);
    buf_fini(&event);
    return err;
}

static err_t put_start(struct buf *b, double wall_s, int64_t step)
{
    struct buf session = {0};
    err_t err = pb_uint(&session, SESSION_STATUS, SESSION_START);
    err = err ? err : put_event(b, wall_s, step, EVENT_SESSION, &session);
    buf_fini(&session);
    return err;
}

static err_t put_row(struct buf *b, const struct metric *m)
{
    struct curve curve[CURVES_MAX];
    struct buf summary = {0}, value = {0};
    int n = curves_of(m, curve);
    err_t err = OK;
    for (int i = 0; !err && i < n; i++) {
        err = pb_text(&value, VALUE_TAG, curve[i].name);
        err = err ? err : pb_float(&value, VALUE_SIMPLE, (float)curve[i].value);
        err = err ? err : nest(&summary, SUMMARY_VALUE, &value);
    }
    err = err ? err : put_event(b, (double)m->wall_ms / 1000, m->step, EVENT_SUMMARY, &summary);
    buf_fini(&value);
    buf_fini(&summary);
    return err;
}

/* Metadata of a plugin, and behind it the Event with the one value. `tensor` and `content` are emptied. */
static err_t put_plugin(struct buf *b, double wall_s, const char *tag, const char *plugin, struct buf *content,
                        struct buf *tensor)
{
    struct buf data = {0}, metadata = {0}, value = {0}, summary = {0};
    err_t err = pb_text(&data, PLUGIN_NAME, plugin);
    if (!err && content->len)
        err = nest(&data, PLUGIN_CONTENT, content);
    err = err ? err : nest(&metadata, METADATA_PLUGIN, &data);
    err = err ? err : pb_uint(&metadata, METADATA_CLASS, CLASS_TENSOR);
    err = err ? err : pb_text(&value, VALUE_TAG, tag);
    err = err ? err : nest(&value, VALUE_TENSOR, tensor);
    err = err ? err : nest(&value, VALUE_METADATA, &metadata);
    err = err ? err : nest(&summary, SUMMARY_VALUE, &value);
    err = err ? err : put_event(b, wall_s, 0, EVENT_SUMMARY, &summary);
    buf_fini(&data);
    buf_fini(&metadata);
    buf_fini(&value);
    buf_fini(&summary);
    return err;
}

/* The value of hparams is in the metadata, beside an empty tensor. */
static err_t put_hparams(struct buf *b, double wall_s, const char *tag, uint32_t field, struct buf *info)
{
    struct buf content = {0}, tensor = {0}, shape = {0}, dim = {0};
    err_t err = nest(&content, field, info);
    err = err ? err : pb_uint(&dim, DIM_SIZE, 0);
    err = err ? err : nest(&shape, SHAPE_DIM, &dim);
    err = err ? err : pb_uint(&tensor, TENSOR_TYPE, TYPE_FLOAT);
    err = err ? err : nest(&tensor, TENSOR_SHAPE, &shape);
    err = err ? err : put_plugin(b, wall_s, tag, "hparams", &content, &tensor);
    buf_fini(&content);
    buf_fini(&tensor);
    buf_fini(&shape);
    buf_fini(&dim);
    return err;
}

static err_t put_setting(struct buf *info, const struct card_setting *s)
{
    struct buf entry = {0}, value = {0};
    err_t err = pb_text(&entry, MAP_KEY, s->key);
    switch (s->kind) {
    case CARD_NUMBER:
        err = err ? err : pb_double(&value, HVALUE_NUMBER, s->number);
        break;
    case CARD_BOOL:
        err = err ? err : pb_uint(&value, HVALUE_BOOL, s->number != 0);
        break;
    case CARD_WORD:
        err = err ? err : pb_text(&value, HVALUE_TEXT, s->text);
        break;
    }
    err = err ? err : nest(&entry, MAP_VALUE, &value);
    err = err ? err : nest(info, START_SETTING, &entry);
    buf_fini(&value);
    buf_fini(&entry);
    return err;
}

/* A text of Markdown in which the job file is a block of code. */
static err_t put_text(struct buf *b, double wall_s, const struct card *card)
{
    struct buf text = {0}, tensor = {0}, none = {0};
    err_t err = buf_printf(&text, "job %s, %s\n\n```yaml\n%s```\n", card->job, card->name, card->file);
    err = err ? err : pb_uint(&tensor, TENSOR_TYPE, TYPE_TEXT);
    err = err ? err : nest(&tensor, TENSOR_SHAPE, &none);
    err = err ? err : nest(&tensor, TENSOR_TEXT, &text);
    err = err ? err : put_plugin(b, wall_s, "job/file", "text", &none, &tensor);
    buf_fini(&text);
    buf_fini(&tensor);
    return err;
}

static err_t put_card(struct buf *b, double wall_s, const struct card *card)
{
    struct buf info = {0};
    err_t err = OK;
    for (int i = 0; !err && i < card->n_setting; i++)
        err = put_setting(&info, &card->setting[i]);
    err = err ? err : pb_text(&info, START_GROUP, card->name);
    err = err ? err : pb_double(&info, START_SECONDS, (double)card->submitted_ms / 1000);
    err = err ? err : put_hparams(b, wall_s, start_tag, HPARAMS_START, &info);
    buf_fini(&info);
    return err ? err : put_text(b, wall_s, card);
}

/* ---- files that are there ---- */

struct tf_event {
    double wall_s;
    int64_t step;
    bool starts, has_curves, has_card, has_end;
};

static bool text_is(const struct pb_field *f, const char *text)
{
    return f->data && f->len == strlen(text) && memcmp(f->data, text, f->len) == 0;
}

static void read_summary(const struct pb_field *summary, struct tf_event *e)
{
    struct pb_reader values = pb_read(summary->data, summary->len);
    struct pb_field value, f;
    while (pb_next(&values, &value)) {
        struct pb_reader r = pb_read(value.data, value.len);
        while (value.field == SUMMARY_VALUE && pb_next(&r, &f)) {
            e->has_curves = e->has_curves || f.field == VALUE_SIMPLE;
            e->has_card = e->has_card || (f.field == VALUE_TAG && text_is(&f, start_tag));
            e->has_end = e->has_end || (f.field == VALUE_TAG && text_is(&f, end_tag));
        }
    }
}

static void read_event(const uint8_t *message, size_t len, struct tf_event *e)
{
    struct pb_reader r = pb_read(message, len);
    struct pb_field f;
    *e = (struct tf_event){0};
    while (pb_next(&r, &f)) {
        if (f.field == EVENT_WALL)
            e->wall_s = f.real;
        else if (f.field == EVENT_STEP)
            e->step = (int64_t)f.whole;
        else if (f.field == EVENT_SUMMARY)
            read_summary(&f, e);
        else if (f.field == EVENT_SESSION)
            e->starts = true;
    }
}

/* Repeats what readers do: a session start drops the points from its step on. */
static err_t take_event(struct tf_run *r, const struct tf_event *e)
{
    r->has_card = r->has_card || e->has_card;
    r->has_end = r->has_end || e->has_end;
    if (e->starts && e->step)
        r->points.n = curve_points_before(&r->points, e->step);
    if (!e->has_curves || !isfinite(e->wall_s))
        return OK;
    return curve_points_add(&r->points,
                            &(struct curve_point){.step = e->step, .wall_ms = (int64_t)llround(e->wall_s * 1000)});
}

/* Takes the whole records of the block; *ret_used: their length. */
static err_t take_records(struct tf_run *r, const uint8_t *block, size_t len, size_t *ret_used, bool *ret_damaged)
{
    const uint8_t *message = NULL;
    size_t used = 0, message_len = 0, n;
    struct tf_event e;
    err_t err = OK;
    while (!err && (n = tf_record_read(block + used, len - used, &message, &message_len, ret_damaged)) > 0) {
        read_event(message, message_len, &e);
        err = take_event(r, &e);
        used += n;
    }
    *ret_used = used;
    return err;
}

/* A file ends, for every reader, at its first damaged record. */
static err_t take_file(struct tf_run *r, int fd)
{
    struct buf b = {0};
    bool damaged = false;
    size_t used;
    err_t err = OK;
    while (!err && !damaged) {
        err = buf_reserve(&b, READ_BYTES);
        ssize_t n = err ? 0 : read(fd, b.data + b.len, READ_BYTES);
        if (n < 0 && errno == EINTR)
            continue;
        if (!err && n < 0)
            err = err_from_errno(errno);
        if (err || n == 0)
            break;
        b.len += (size_t)n;
        err = take_records(r, b.data, b.len, &used, &damaged);
        b.len -= used;
        memmove(b.data, b.data + used, b.len);
    }
    buf_fini(&b);
    return err;
}

static err_t take_path(struct tf_run *r, const char *name, struct why *why)
{
    char path[PATH_MAX];
    const char *digits = strstr(name, "tfevents.");
    long long seconds = digits ? strtoll(digits + strlen("tfevents."), NULL, 10) : 0;
    if (seconds > r->newest_s)
        r->newest_s = seconds;
    if (snprintf(path, sizeof(path), "%s/%s", r->dir, name) >= (int)sizeof(path))
        return why_set(why, ERR_LIMIT, "%s/%s: the path is too long", r->dir, name);
    int fd = file_open_plain(path);
    if (fd < 0)
        return why_set(why, err_from_errno(errno), "%s: %s", path, strerror(errno));
    r->busy = r->busy || (flock(fd, LOCK_SH | LOCK_NB) && errno == EWOULDBLOCK);
    err_t err = take_file(r, fd);
    close(fd);
    return err ? why_set(why, err, "%s: %s", path, err_text(err)) : OK;
}

static int is_event_file(const struct dirent *d)
{
    return strstr(d->d_name, "tfevents") != NULL;
}

err_t tf_run_open(struct tf_run *r, const char *dir, struct why *why)
{
    struct dirent **names = NULL;
    *r = (struct tf_run){.dir = strdup(dir), .fd = -1, .newest_s = -1};
    if (!r->dir)
        return why_set(why, ERR_NOMEM, "out of memory");
    int n = scandir(dir, &names, is_event_file, alphasort);
    if (n < 0 && errno != ENOENT)
        return why_set(why, err_from_errno(errno), "%s: %s", dir, strerror(errno));
    err_t err = OK;
    for (int i = 0; i < n; i++) {
        err = err ? err : take_path(r, names[i]->d_name, why);
        free(names[i]);
    }
    free(names);
    return err;
}

/* ---- the file that is written ---- */

static void leave_file(struct tf_run *r)
{
    if (r->fd >= 0)
        close(r->fd);
    r->fd = -1;
}

/* If the disk is full, the incomplete record is cut off again where that is possible. */
static err_t write_block(struct tf_run *r, const struct buf *b, struct why *why)
{
    struct stat st;
    err_t err = fstat(r->fd, &st) ? err_from_errno(errno) : file_write_all(r->fd, b->data, b->len);
    if (!err)
        return OK;
    why_set(why, err, "%s: %s", r->path, err_text(err));
    if (ftruncate(r->fd, st.st_size))
        why_set(why, err, "%s: %s; the incomplete record at its end was not cut off", r->path, err_text(err));
    leave_file(r);
    return err;
}

/* Readers take the files of a run in the order of their names, so that the seconds never go back. */
static err_t create_file(struct tf_run *r, const struct card *card, struct why *why)
{
    int64_t seconds = clock_wall_ms() / 1000;
    char path[PATH_MAX];
    if (file_make_dirs(r->dir, 0777))
        return why_set(why, err_from_errno(errno), "%s: %s", r->dir, strerror(errno));
    seconds = seconds > r->newest_s ? seconds : r->newest_s + 1;
    if (snprintf(path, sizeof(path), "%s/events.out.tfevents.%010" PRId64 ".%s.%d.0", r->dir, seconds, card->host,
                 (int)getpid()) >= (int)sizeof(path))
        return why_set(why, ERR_LIMIT, "%s: the path is too long", r->dir);
    free(r->path);
    r->path = strdup(path);
    r->fd = r->path ? open(path, O_WRONLY | O_CREAT | O_EXCL | O_APPEND | O_NOFOLLOW | O_CLOEXEC, 0666) : -1;
    if (r->fd < 0)
        return why_set(why, r->path ? err_from_errno(errno) : ERR_NOMEM, "%s: %s", path, strerror(errno));
    if (flock(r->fd, LOCK_EX | LOCK_NB) && errno == EWOULDBLOCK)
        return why_set(why, ERR_BUSY, "%s: another process has locked it", path);
    r->newest_s = seconds;
    return OK;
}

/* Begins a file whose first step is `step`: readers drop this step and later ones. */
static err_t begin_file(struct tf_run *r, const struct card *card, int64_t step, struct buf *b, struct why *why)
{
    bool first = r->newest_s < 0;
    leave_file(r);
    err_t err = create_file(r, card, why);
    if (err)
        return err;
    double now_s = (double)clock_wall_ms() / 1000;
    r->points.n = curve_points_before(&r->points, step);
    err = put_version(b, now_s);
    err = err ? err : put_start(b, now_s, first ? 0 : step);
    if (!err && !r->has_card)
        err = put_card(b, now_s, card);
    r->has_card = true;
    return err ? why_set(why, err, "%s: %s", r->path, err_text(err)) : OK;
}

static err_t add_row(struct tf_run *r, const struct card *card, const struct metric *m, struct buf *b, struct why *why)
{
    size_t at = curve_points_before(&r->points, m->step);
    err_t err = OK;
    if (curve_points_have(&r->points, m))
        return OK;
    if (r->fd < 0 || at < r->points.n)
        err = begin_file(r, card, m->step, b, why);
    if (err)
        return err;
    err = put_row(b, m);
    err = err ? err : curve_points_add(&r->points, &(struct curve_point){.step = m->step, .wall_ms = m->wall_ms});
    return err ? why_set(why, err, "%s: %s", r->path, err_text(err)) : OK;
}

/* Rows before a new file belong to the old one, so that they are written before it is left. */
static err_t flush(struct tf_run *r, struct buf *b, struct why *why)
{
    err_t err = b->len ? write_block(r, b, why) : OK;
    b->len = 0;
    return err;
}

err_t tf_run_add(struct tf_run *r, const struct card *card, const struct metric *rows, size_t n, struct why *why)
{
    struct buf b = {0};
    err_t err = OK;
    for (size_t i = 0; !err && i < n; i++) {
        if (b.len > READ_BYTES || curve_points_before(&r->points, rows[i].step) < r->points.n)
            err = flush(r, &b, why);
        err = err ? err : add_row(r, card, &rows[i], &b, why);
    }
    err = err ? err : flush(r, &b, why);
    if (err)
        leave_file(r);
    buf_fini(&b);
    return err;
}

err_t tf_run_cut(struct tf_run *r, const struct card *card, int64_t step, struct why *why)
{
    struct buf b = {0};
    if (curve_points_before(&r->points, step) == r->points.n)
        return OK;
    err_t err = begin_file(r, card, step, &b, why);
    err = err ? err : flush(r, &b, why);
    buf_fini(&b);
    return err;
}

err_t tf_run_end(struct tf_run *r, const struct card *card, bool success, int64_t wall_ms, struct why *why)
{
    struct buf b = {0}, info = {0};
    err_t err = OK;
    if (r->has_end || !r->points.n)
        return OK;
    if (r->fd < 0)
        err = begin_file(r, card, r->points.point[r->points.n - 1].step + 1, &b, why);
    err = err ? err : pb_uint(&info, END_STATUS, success ? END_SUCCESS : END_FAILURE);
    err = err ? err : pb_double(&info, END_SECONDS, (double)wall_ms / 1000);
    err = err ? err : put_hparams(&b, (double)wall_ms / 1000, end_tag, HPARAMS_END, &info);
    err = err ? err : flush(r, &b, why);
    r->has_end = !err;
    buf_fini(&info);
    buf_fini(&b);
    return err;
}

void tf_run_close(struct tf_run *r)
{
    if (r->dir)
        leave_file(r);
    curve_points_fini(&r->points);
    free(r->dir);
    free(r->path);
    *r = (struct tf_run){.fd = -1};
}
