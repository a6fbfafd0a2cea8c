/* One file per rank, for profiles that are too large for one. For Perfetto (from version 58), perfetto_manifest.json
 * states that the files share one time axis, and the node of each file; their times are aligned already, so all offsets
 * are 0. The tar is in the ustar form that tar(1) and Perfetto read. */
#include "client/profile/profile.h"

#include "common/base/file.h"

#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#include <zlib.h>

#define BLOCK 512 /* of a tar */
#define MANIFEST "perfetto_manifest.json"

/* Where files go: a folder, or a tar. */
struct archive {
    const char *dir; /* NULL: the tar */
    FILE *tar;
};

static void file_name(int rank, char ret[32])
{
    snprintf(ret, 32, "rank-%03d.json.gz", rank);
}

static json_t *manifest_file(const struct profile *p, int rank)
{
    char name[32], first[32];
    file_name(rank, name);
    file_name(0, first);
    json_t *f = json_pack("{s:s}", "path", name);
    if (f && p->node && p->node[rank] && p->node[rank][0])
        json_object_set_new(f, "machine", json_pack("{s:s}", "name", p->node[rank]));
    if (f && rank)
        json_object_set_new(f, "clocks", json_pack("{s:{s:s}, s:i}", "sync_to", "file", first, "offset_ns", 0));
    return f;
}

static err_t manifest(const struct profile *p, struct buf *ret)
{
    json_t *files = json_array();
    for (int k = 0; files && k < p->n; k++)
        json_array_append_new(files, manifest_file(p, k));
    json_t *all = json_pack("{s:{s:i, s:o}}", "perfetto_manifest", "version", 1, "files", files);
    char *text = all ? json_dumps(all, JSON_INDENT(1)) : NULL;
    err_t err = text ? buf_printf(ret, "%s\n", text) : ERR_NOMEM;
    free(text);
    json_decref(all);
    return err;
}

static err_t gzip_pack(const struct buf *text, struct buf *ret)
{
    z_stream z = {0};
    if (deflateInit2(&z, 1, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY) != Z_OK)
        return ERR_NOMEM;
    const size_t bound = deflateBound(&z, text->len);
    err_t err = buf_reserve(ret, bound);
    if (!err) {
        z.next_in = text->data;
        z.avail_in = (unsigned)text->len;
        z.next_out = ret->data + ret->len;
        z.avail_out = (unsigned)bound;
        err = deflate(&z, Z_FINISH) == Z_STREAM_END ? OK : ERR_INTERNAL;
        ret->len += bound - z.avail_out;
    }
    deflateEnd(&z);
    return err;
}

static void octal(char *field, size_t size, uint64_t value)
{
    field[size - 1] = '\0';
    for (size_t i = size - 1; i > 0; i--, value >>= 3)
        field[i - 1] = (char)('0' + (value & 7));
}

static err_t put_tar(FILE *tar, const char *name, const struct buf *data)
{
    static const char zeros[BLOCK];
    char head[BLOCK] = {0};
    unsigned sum = 0;
    snprintf(head, 100, "%s", name);
    octal(head + 100, 8, 0644);
    octal(head + 108, 8, 0);
    octal(head + 116, 8, 0);
    octal(head + 124, 12, data->len);
    octal(head + 136, 12, (uint64_t)time(NULL));
    memset(head + 148, ' ', 8); /* the sum counts its own field as spaces */
    head[156] = '0';
    snprintf(head + 257, 6, "ustar");
    head[263] = head[264] = '0'; /* version */
    for (int i = 0; i < BLOCK; i++)
        sum += (unsigned char)head[i];
    octal(head + 148, 7, sum);
    const size_t rest = (BLOCK - data->len % BLOCK) % BLOCK;
    fwrite(head, 1, BLOCK, tar);
    fwrite(data->data, 1, data->len, tar);
    fwrite(zeros, 1, rest, tar);
    return ferror(tar) ? err_from_errno(errno ? errno : EIO) : OK;
}

static err_t put_file(const struct archive *a, const char *name, const struct buf *data)
{
    char path[PATH_MAX];
    if (!a->dir)
        return put_tar(a->tar, name, data);
    const int n = snprintf(path, sizeof(path), "%s/%s", a->dir, name);
    return n < 0 || (size_t)n >= sizeof(path) ? ERR_LIMIT : file_replace(path, data->data, data->len, 0644);
}

static err_t put_rank_file(const struct archive *a, const struct profile *p, int rank, struct trace_facts *facts,
                           struct why *why)
{
    struct trace_facts one = {0};
    struct buf text = {0}, packed = {0};
    char name[32];
    file_name(rank, name);
    err_t err = trace_rank(p, rank, &text, &one, why);
    err = err ? err : gzip_pack(&text, &packed);
    err = err ? err : put_file(a, name, &packed);
    buf_fini(&text);
    buf_fini(&packed);
    facts->slices += one.slices;
    facts->flows += one.flows;
    facts->files++;
    return err;
}

static err_t put_all(const struct archive *a, const struct profile *p, struct trace_facts *ret, struct why *why)
{
    struct trace_facts facts = {0};
    struct buf text = {0};
    err_t err = manifest(p, &text);
    err = err ? err : put_file(a, MANIFEST, &text);
    for (int k = 0; !err && k < p->n; k++)
        err = put_rank_file(a, p, k, &facts, why);
    buf_fini(&text);
    if (!err)
        *ret = facts;
    return err;
}

static err_t not_written(const char *path, err_t err, struct why *why)
{
    return err ? why_set(why, err, "%s could not be written: %s; name another place with --to", path, err_text(err))
               : OK;
}

err_t trace_write_dir(const struct profile *p, const char *dir, struct trace_facts *ret, struct why *why)
{
    const struct archive a = {.dir = dir};
    err_t err = file_make_dirs(dir, 0755);
    return not_written(dir, err ? err : put_all(&a, p, ret, why), why);
}

static err_t write_tar(const struct profile *p, const char *path, struct trace_facts *ret, struct why *why)
{
    static const char end[2 * BLOCK];
    const struct archive a = {.tar = fopen(path, "we")};
    if (!a.tar)
        return err_from_errno(errno);
    err_t err = put_all(&a, p, ret, why);
    if (!err && fwrite(end, 1, sizeof(end), a.tar) != sizeof(end))
        err = err_from_errno(errno);
    if (fclose(a.tar) && !err)
        err = err_from_errno(errno);
    return err;
}

err_t trace_write_tar(const struct profile *p, const char *path, struct trace_facts *ret, struct why *why)
{
    char part[PATH_MAX];
    const int n = snprintf(part, sizeof(part), "%s.part", path);
    if (n < 0 || (size_t)n >= sizeof(part))
        return not_written(path, ERR_LIMIT, why);
    err_t err = write_tar(p, part, ret, why);
    if (!err && rename(part, path))
        err = err_from_errno(errno);
    if (err)
        (void)unlink(part);
    return not_written(path, err, why);
}
