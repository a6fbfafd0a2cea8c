/* The format is that of the content: a compressed file is opened twice, once to look at its first bytes. */
#include "common/data/input.h"

#include <limits.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- open files ---- */

static err_t open_source(const struct input *in, struct input_file *f, struct why *why)
{
    err_t err = file_source_open(in->image ? in->image : in->path, &f->disk, why);
    if (err || !in->image) {
        f->source = f->disk;
        return err;
    }
    return in->containers->image_open(in->image, in->inside, &f->source, why);
}

static void close_source(struct input_file *f)
{
    if (f->source && f->source != f->disk)
        f->source->ops->close(f->source);
    if (f->disk)
        f->disk->ops->close(f->disk);
    f->source = f->disk = NULL;
}

/* Counts what passes. */
static err_t counted_read(struct byte_stream *s, void *ret, size_t cap, size_t *ret_n, struct why *why)
{
    struct input_file *f = (struct input_file *)((char *)s - offsetof(struct input_file, counted));
    err_t err = f->stored->ops->read(f->stored, ret, cap, ret_n, why);
    if (!err)
        f->consumed += (int64_t)*ret_n;
    return err;
}

static const struct byte_stream_ops counted_ops = {counted_read, NULL};

err_t input_file_open(const struct input *in, struct input_file *ret, struct why *why)
{
    struct input_file *f = ret; /* f->counted is inside */
    *f = (struct input_file){.counted = {&counted_ops, in->path}};
    err_t err = open_source(in, f, why);
    if (!err)
        err = stream_of_source(f->source, 0, f->source->size, &f->stored, why);
    if (!err && in->codec)
        err = in->codec->open(&f->counted, &f->stream, why);
    if (err)
        input_file_close(f);
    else if (!in->codec)
        f->stream = &f->counted;
    return err;
}

err_t input_file_same(const struct input *in, const struct input_file *f, struct why *why)
{
    return file_source_same(f->disk, &in->identity, why);
}

void input_file_close(struct input_file *f)
{
    if (f->stream && f->stream != &f->counted)
        f->stream->ops->close(f->stream);
    if (f->stored)
        f->stored->ops->close(f->stored);
    f->stream = f->stored = NULL;
    close_source(f);
}

/* ---- what a file is ---- */

static err_t read_head(const struct input *in, uint8_t head[DOC_HEAD_BYTES], size_t *ret_n, struct why *why)
{
    struct input_file f;
    err_t err = input_file_open(in, &f, why);
    if (err)
        return err;
    err = stream_read_full(f.stream, head, DOC_HEAD_BYTES, ret_n, why);
    input_file_close(&f);
    return err;
}

static err_t find_codec(struct input *in, uint8_t *head, size_t *n, struct why *why)
{
    in->codec = stream_codec_find(head, *n);
    if (!in->codec)
        return OK;
    err_t err = read_head(in, head, n, why);
    if (!err && stream_codec_find(head, *n))
        err = why_set(why, ERR_UNSUPPORTED, "%s: it is compressed twice; decompress it once", in->path);
    return err;
}

static err_t find_format(struct input *in, const struct data_prepare *p, const uint8_t *head, size_t n, struct why *why)
{
    char names[FORMAT_NAMES_BYTES];
    bool automatic = !p->format || !p->format[0] || strcmp(p->format, "auto") == 0;
    in->format = automatic ? format_recognise(p->tables, head, n, in->path) : format_find(p->tables, p->format);
    if (!in->format) {
        format_names(p->tables, names);
        return why_set(why, ERR_INVALID, "data.format: \"%.40s\" is not a format; the formats are %s", p->format,
                       names);
    }
    if (in->format->tokens && in->image)
        return why_set(why, ERR_UNSUPPORTED,
                       "%s: token ids are used where they are, which a file in an image cannot be; unpack it",
                       in->path);
    if ((in->format->docs || in->format->tokens) && in->codec)
        return why_set(why, ERR_UNSUPPORTED, "%s: a %s file inside %s cannot be read; decompress it", in->path,
                       in->format->name, in->codec->name);
    return OK;
}

static err_t identify(struct input *in, struct why *why)
{
    struct input_file f = {0};
    err_t err = open_source(in, &f, why);
    if (!err) {
        file_source_identity(f.disk, &in->identity);
        in->bytes = f.source->size;
    }
    close_source(&f);
    return err;
}

/* A file that exists under the whole name is that file. */
static err_t find_image(struct input *in, const struct data_prepare *p, struct why *why)
{
    char image[PATH_MAX];
    if (!p->containers || access(in->path, F_OK) == 0 || !p->containers->split(in->path, image, &in->inside))
        return OK;
    in->containers = p->containers;
    in->image = strdup(image);
    return in->image ? OK : why_set(why, ERR_NOMEM, "%s", err_text(ERR_NOMEM));
}

/* Takes the file that an index belongs to. */
static err_t find_main(struct input *in, const uint8_t *head, size_t n, struct why *why)
{
    char path[PATH_MAX];
    if (in->image || !token_file_main(in->path, head, n, path))
        return OK;
    free(in->path);
    in->path = strdup(path);
    return in->path ? identify(in, why) : why_set(why, ERR_NOMEM, "%s", err_text(ERR_NOMEM));
}

static err_t find_content(struct input *in, const struct data_prepare *p, struct why *why)
{
    uint8_t head[DOC_HEAD_BYTES];
    size_t n = 0;
    err_t err = read_head(in, head, &n, why);
    if (!err)
        err = find_main(in, head, n, why);
    if (!err)
        err = find_codec(in, head, &n, why);
    return err ? err : find_format(in, p, head, n, why);
}

err_t input_find(const char *path, const struct data_prepare *p, struct input *ret, struct why *why)
{
    struct input in = {.path = strdup(path)};
    err_t err = in.path ? find_image(&in, p, why) : why_set(why, ERR_NOMEM, "%s", err_text(ERR_NOMEM));
    err = err ? err : identify(&in, why);
    if (!err && p->raw)
        in.format = format_find(NULL, "text");
    else if (!err)
        err = find_content(&in, p, why);
    if (err)
        input_fini(&in);
    else
        *ret = in;
    return err;
}

void input_fini(struct input *in)
{
    free(in->path);
    free(in->image);
    in->path = in->image = NULL;
}

/* ---- documents ---- */

err_t input_reader_open(const struct input *in, const struct doc_options *o, struct input_reader *ret, struct why *why)
{
    ret->docs = NULL;
    err_t err = input_file_open(in, &ret->file, why);
    if (err)
        return err;
    err = in->format->docs ? in->format->docs->open(ret->file.source, o, &ret->docs, why)
                           : in->format->open_stream(ret->file.stream, o, &ret->docs, why);
    if (err)
        input_file_close(&ret->file);
    return err;
}

void input_reader_close(struct input_reader *r)
{
    r->docs->ops->close(r->docs);
    input_file_close(&r->file);
}
