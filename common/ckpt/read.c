/* Reads the requested boxes in one pass over the files.
 *
 *   wants x chunks -> jobs (one intersection each), sorted by file and offset
 *   jobs of one chunk -> open its archive; sort the runs of all jobs by offset -> windows -> conversion -> dst
 *
 * Every element of a want must come from exactly one chunk. Chunks are disjoint (checked at open), so it suffices that
 * the volumes of the intersections add up. A chunk whose storage is not row-major is read completely and then gathered;
 * torch keeps the strides of a transposed tensor. */
#include "common/ckpt/blob.h"
#include "common/ckpt/ckpt_priv.h"
#include "common/ckpt/file_reader.h"
#include "common/ckpt/sums.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

struct read_job {
    const struct ckpt_want *want;
    const struct ckpt_tensor *tensor;
    const struct ckpt_chunk *chunk;
    const struct ckpt_file *file;
    struct box part;
};

struct read_jobs {
    struct read_job *v;
    size_t n, cap;
};

/* ---- planning ---- */

static err_t job_add(struct read_jobs *jobs, struct read_job job)
{
    if (jobs->n == jobs->cap) {
        size_t cap = jobs->cap ? jobs->cap * 2 : 64;
        struct read_job *v = realloc(jobs->v, cap * sizeof(*v));
        if (!v)
            return ERR_NOMEM;
        jobs->v = v;
        jobs->cap = cap;
    }
    jobs->v[jobs->n++] = job;
    return OK;
}

static err_t want_check(const struct ckpt *c, const struct ckpt_want *w, const struct ckpt_tensor *t, struct why *why)
{
    if (!t)
        return why_set(why, ERR_NOTFOUND, "%s has no tensor %.200s", c->dir, w->fqn);
    if (t->ndim != w->box.ndim)
        return why_set(why, ERR_INVALID, "%.200s has %d dimensions in %s, not %d", w->fqn, t->ndim, c->dir,
                       w->box.ndim);
    for (int d = 0; d < t->ndim; d++)
        if (w->box.offset[d] < 0 || w->box.size[d] < 0 || w->box.offset[d] > t->shape[d] ||
            w->box.size[d] > t->shape[d] - w->box.offset[d])
            return why_set(why, ERR_INVALID,
                           "%.200s has size %lld in dimension %d in %s; %lld elements from index %lld are requested",
                           w->fqn, (long long)t->shape[d], d, c->dir, (long long)w->box.size[d],
                           (long long)w->box.offset[d]);
    if (!convert_is_possible(t->dtype, w->dtype))
        return why_set(why, ERR_INVALID, "%.200s is %s in %s and cannot be converted to %s", w->fqn,
                       dtype_name(t->dtype), c->dir, dtype_name(w->dtype));
    return OK;
}

static err_t want_plan(const struct ckpt *c, const struct ckpt_want *w, struct read_jobs *jobs, int64_t *needed,
                       struct why *why)
{
    const struct ckpt_tensor *t = ckpt_find(c, w->fqn);
    int64_t missing = box_elements(&w->box);
    err_t err = want_check(c, w, t, why);
    for (int i = 0; !err && missing && i < t->n_chunks; i++) {
        struct read_job job = {.want = w, .tensor = t, .chunk = &t->chunks[i]};
        if (!box_intersect(&w->box, &t->chunks[i].box, &job.part))
            continue;
        job.file = ckpt_file_find(c, job.chunk->file);
        missing -= box_elements(&job.part);
        err = job_add(jobs, job);
    }
    if (err)
        return err;
    if (missing)
        return why_set(why, ERR_CORRUPT, "%s: %lld elements of a box of %.200s are not stored", c->dir,
                       (long long)missing, w->fqn);
    *needed += box_elements(&w->box) * (int64_t)dtype_bytes(t->dtype);
    return OK;
}

static int job_compare(const void *x, const void *y)
{
    const struct read_job *a = x, *b = y;
    if (a->file != b->file)
        return a->file < b->file ? -1 : 1;
    if (a->chunk != b->chunk)
        return a->chunk->offset < b->chunk->offset ? -1 : a->chunk->offset > b->chunk->offset;
    int c = 0;
    for (int d = 0; !c && d < a->part.ndim; d++)
        c = a->part.offset[d] < b->part.offset[d] ? -1 : a->part.offset[d] > b->part.offset[d];
    return c; /* the order of the first elements */
}

/* ---- streaming the runs of one chunk ---- */

struct run_stream {
    struct extent_reader *reader;
    const struct copy_run *runs;
    size_t n, i; /* i: the run in progress */
    enum dtype from;
    /* CRC-32 of the payload, computed while it is read, if all of it is read. */
    bool check;
    uint64_t crc_at, crc_end;
    uint32_t crc;
};

static uint64_t run_end(const struct run_stream *s, const struct copy_run *r)
{
    return r->at + r->elements * dtype_bytes(s->from);
}

/* End of a window that starts at the current run and contains no extent without requested bytes. */
static uint64_t reach(const struct run_stream *s)
{
    uint64_t grain = extent_reader_grain(s->reader), end = run_end(s, &s->runs[s->i]);
    for (size_t k = s->i + 1; k < s->n && s->runs[k].at <= (end + grain - 1) / grain * grain; k++)
        if (run_end(s, &s->runs[k]) > end)
            end = run_end(s, &s->runs[k]);
    return end;
}

static err_t stream_load(struct run_stream *s, uint64_t at, struct why *why)
{
    struct extent_reader *r = s->reader;
    bool there = at >= r->at && at - r->at < r->len;
    err_t err = there ? OK : extent_reader_load(r, at, reach(s), why);
    uint64_t end = r->at + r->len < s->crc_end ? r->at + r->len : s->crc_end;
    if (err || !s->check || s->crc_at >= end || s->crc_at < r->at)
        return err;
    s->crc = sums_crc32(s->crc, r->window + (s->crc_at - r->at), (size_t)(end - s->crc_at));
    s->crc_at = end;
    return OK;
}

/* An element may lie across two windows; `carry` then holds its first bytes. */
static err_t run_copy(struct run_stream *s, struct why *why)
{
    const struct copy_run *run = &s->runs[s->i];
    size_t size = dtype_bytes(s->from), out = dtype_bytes(run->to), held = 0;
    uint8_t carry[8], *dst = run->dst;
    for (uint64_t at = run->at, end = run_end(s, run); at < end;) {
        err_t err = stream_load(s, at, why);
        if (err)
            return err;
        const uint8_t *p = s->reader->window + (at - s->reader->at);
        uint64_t left = s->reader->at + s->reader->len - at;
        size_t have = (size_t)(left < end - at ? left : end - at), used = 0;
        if (held || have < size) {
            used = size - held < have ? size - held : have;
            memcpy(carry + held, p, used);
            held += used;
            if (held == size) {
                convert(dst, run->to, carry, s->from, 1);
                dst += out;
                held = 0;
            }
        } else {
            used = have / size * size;
            convert(dst, run->to, p, s->from, used / size);
            dst += used / size * out;
        }
        at += used;
    }
    return OK;
}

static int run_compare(const void *x, const void *y)
{
    const struct copy_run *a = x, *b = y;
    return a->at < b->at ? -1 : a->at > b->at;
}

/* Whether the runs cover every byte of the payload, so that its CRC-32 can be checked. */
static bool covers(const struct run_stream *s, const struct blob_tensor *t, uint64_t start)
{
    uint64_t end = start;
    for (size_t i = 0; i < s->n; i++) {
        if (s->runs[i].at > end)
            return false;
        end = run_end(s, &s->runs[i]) > end ? run_end(s, &s->runs[i]) : end;
    }
    return end == start + t->payload_bytes;
}

static err_t runs_stream(struct extent_reader *r, struct copy_runs *runs, const struct blob_tensor *t, uint64_t start,
                         struct why *why)
{
    if (!runs->n)
        return OK;
    qsort(runs->v, runs->n, sizeof(*runs->v), run_compare);
    struct run_stream s = {.reader = r,
                           .runs = runs->v,
                           .n = runs->n,
                           .from = t->dtype,
                           .crc_at = start,
                           .crc_end = start + t->payload_bytes};
    s.check = !r->file->sums && t->crc && covers(&s, t, start);
    err_t err = OK;
    for (; s.i < s.n && !err; s.i++)
        err = run_copy(&s, why);
    if (!err && s.check && s.crc_at == s.crc_end && s.crc != t->crc)
        err = why_set(why, ERR_CORRUPT, "bytes %llu to %llu do not match the archive's CRC-32; use another checkpoint",
                      (unsigned long long)start, (unsigned long long)s.crc_end);
    return err;
}

/* ---- one chunk ---- */

static bool is_row_major(const struct blob_tensor *t)
{
    int64_t stride = 1;
    for (int d = t->ndim - 1; d >= 0; d--) {
        if (t->size[d] > 1 && t->stride[d] != stride)
            return false;
        stride *= t->size[d];
    }
    return true;
}

static err_t direct_read(struct extent_reader *r, const struct read_job *jobs, size_t n, const struct blob_tensor *t,
                         uint64_t start, struct why *why)
{
    struct copy_runs runs = {0};
    err_t err = OK;
    for (size_t i = 0; i < n && !err; i++)
        err = runs_add(&runs, &jobs[i].part, &jobs[i].chunk->box, start + (uint64_t)t->first * dtype_bytes(t->dtype),
                       t->dtype, &jobs[i].want->box, jobs[i].want->dst, jobs[i].want->dtype);
    if (!err)
        err = runs_stream(r, &runs, t, start, why);
    free(runs.v);
    return err;
}

/* Copies element by element along the last dimension of the part. */
static void row_gather(const struct read_job *job, const struct blob_tensor *t, const uint8_t *storage,
                       const int64_t *at)
{
    const struct box *chunk = &job->chunk->box, *want = &job->want->box;
    size_t size = dtype_bytes(t->dtype), out = dtype_bytes(job->want->dtype);
    int last = t->ndim - 1;
    int64_t from = 0, to = 0;
    for (int d = 0; d < t->ndim; d++) {
        from += (at[d] - chunk->offset[d]) * t->stride[d];
        to = to * want->size[d] + (at[d] - want->offset[d]);
    }
    for (int64_t k = 0; k < job->part.size[last]; k++)
        convert((uint8_t *)job->want->dst + (size_t)(to + k) * out, job->want->dtype,
                storage + (size_t)(from + k * t->stride[last]) * size, t->dtype, 1);
}

static void strided_gather(const struct read_job *job, const struct blob_tensor *t, const uint8_t *storage)
{
    int64_t at[BOX_MAX_DIMS];
    memcpy(at, job->part.offset, sizeof(at));
    for (int d = 0; d >= 0;) {
        row_gather(job, t, storage, at);
        for (d = t->ndim - 2; d >= 0; d--) {
            if (++at[d] < job->part.offset[d] + job->part.size[d])
                break;
            at[d] = job->part.offset[d];
        }
    }
}

static err_t strided_read(struct extent_reader *r, const struct read_job *jobs, size_t n, const struct blob_tensor *t,
                          uint64_t start, struct why *why)
{
    assert(dtype_bytes(t->dtype)); /* blob_read rejects other types */
    size_t size = dtype_bytes(t->dtype), elements = (size_t)t->payload_bytes / size;
    uint8_t *storage = malloc(elements * size + 1);
    if (!storage)
        return why_set(why, ERR_NOMEM, "out of memory for a transposed tensor of %zu bytes", elements * size);
    struct copy_run run = {start, elements, storage, t->dtype};
    struct copy_runs runs = {&run, 1, 1};
    err_t err = runs_stream(r, &runs, t, start, why);
    for (size_t i = 0; i < n && !err; i++)
        strided_gather(&jobs[i], t, storage + (size_t)t->first * size);
    free(storage);
    return err;
}

/* The archive must agree with .metadata about the chunk. */
static err_t blob_check(const struct read_job *job, const struct blob_tensor *t, struct why *why)
{
    bool same = t->dtype == job->tensor->dtype && t->ndim == job->chunk->box.ndim;
    for (int d = 0; same && d < t->ndim; d++)
        same = t->size[d] == job->chunk->box.size[d];
    return same ? OK : why_set(why, ERR_CORRUPT, "shape or type in the archive differs from .metadata");
}

static err_t chunk_read(const struct ckpt *c, struct extent_reader *r, const struct read_job *jobs, size_t n,
                        struct why *why)
{
    const struct ckpt_chunk *k = jobs[0].chunk;
    struct blob_source src;
    struct blob_tensor t;
    err_t err = extent_reader_open(r, jobs[0].file, why);
    if (err)
        return err;
    blob_source_init(&src, r, (uint64_t)k->offset, (uint64_t)k->length);
    err = blob_tensor_read(&src.zip, c->has_manifest, &t, why);
    if (!err)
        err = blob_check(&jobs[0], &t, why);
    uint64_t start = (uint64_t)k->offset + (err ? 0 : t.payload);
    if (!err)
        err = is_row_major(&t) ? direct_read(r, jobs, n, &t, start, why) : strided_read(r, jobs, n, &t, start, why);
    return err ? why_prefix(why, err, "tensor %.200s in %s at byte %lld", jobs[0].want->fqn, k->file,
                            (long long)k->offset)
               : OK;
}

/* ---- reading ahead ---- */

/* Row-major index of an element, in the box. */
static uint64_t element_in(const struct box *b, const int64_t *at)
{
    uint64_t i = 0;
    for (int d = 0; d < b->ndim; d++)
        i = i * (uint64_t)b->size[d] + (uint64_t)(at[d] - b->offset[d]);
    return i;
}

/* Whether the part leaves out so much between its first and its last element that whole extents of the chunk are not
 * needed. */
static bool has_holes(const struct read_job *j, uint64_t element_bytes)
{
    uint64_t inner = element_bytes;
    for (int d = j->part.ndim - 1; d > 0; d--) {
        if ((uint64_t)(j->chunk->box.size[d] - j->part.size[d]) * inner >= CKPT_EXTENT_BYTES)
            return true;
        inner *= (uint64_t)j->chunk->box.size[d];
    }
    return false;
}

/* The bytes of a job, without opening the archive: its header and the end of it are `over` bytes. */
static struct file_range job_range(const struct read_job *j)
{
    const struct ckpt_chunk *k = j->chunk;
    uint64_t size = dtype_bytes(j->tensor->dtype), bytes = (uint64_t)box_elements(&k->box) * size;
    uint64_t over = (uint64_t)k->length > bytes ? (uint64_t)k->length - bytes : 0, start = (uint64_t)k->offset;
    if (has_holes(j, size))
        return (struct file_range){j->file, start, start + over};
    int64_t last[BOX_MAX_DIMS] = {0};
    for (int d = 0; d < j->part.ndim; d++)
        last[d] = j->part.offset[d] + j->part.size[d] - 1;
    return (struct file_range){j->file, start + element_in(&k->box, j->part.offset) * size,
                               start + over + (element_in(&k->box, last) + 1) * size};
}

/* A range for each job, and one for the header of its chunk if that lies elsewhere. They are sorted as the jobs. */
static size_t ranges_of(const struct read_jobs *jobs, struct file_range *ret)
{
    size_t n = 0;
    for (size_t i = 0; i < jobs->n; i++) {
        const struct read_job *j = &jobs->v[i];
        bool first = !i || j[-1].chunk != j->chunk;
        if (first)
            ret[n++] = (struct file_range){j->file, (uint64_t)j->chunk->offset, (uint64_t)j->chunk->offset + 1};
        ret[n++] = job_range(j);
    }
    return n;
}

static err_t jobs_run(const struct ckpt *c, const struct read_jobs *jobs, int64_t *bytes_read, struct why *why)
{
    struct extent_reader r;
    struct file_range *ranges = calloc(2 * jobs->n, sizeof(*ranges));
    extent_reader_init(&r, c->dir, c->claims);
    err_t err = ranges ? extent_reader_expect(&r, ranges, ranges_of(jobs, ranges)) : ERR_NOMEM;
    for (size_t i = 0, j; i < jobs->n && !err; i = j) {
        for (j = i + 1; j < jobs->n && jobs->v[j].chunk == jobs->v[i].chunk;)
            j++;
        err = chunk_read(c, &r, jobs->v + i, j - i, why);
    }
    *bytes_read = extent_reader_bytes(&r);
    extent_reader_fini(&r);
    free(ranges);
    return err;
}

err_t ckpt_read(struct ckpt *c, const struct ckpt_want *wants, int n, struct ckpt_read_stats *ret_stats,
                struct why *why)
{
    struct why local;
    struct read_jobs jobs = {0};
    struct ckpt_read_stats stats = {0};
    why = why ? why : &local;
    why->text[0] = '\0';
    err_t err = OK;
    for (int i = 0; i < n && !err; i++)
        err = want_plan(c, &wants[i], &jobs, &stats.bytes_needed, why);
    if (!err && jobs.n) {
        qsort(jobs.v, jobs.n, sizeof(*jobs.v), job_compare);
        err = jobs_run(c, &jobs, &stats.bytes_read, why);
    }
    free(jobs.v);
    if (err && !why->text[0])
        why_set(why, err, "%s: %s", c->dir, err_text(err));
    if (!err && ret_stats)
        *ret_stats = stats;
    return err;
}
