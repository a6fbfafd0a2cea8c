/* A file of the user: its compression and its format, and its content as a stream or as documents. For common/data
 * only. */
#ifndef DTD_COMMON_DATA_INPUT_H
#define DTD_COMMON_DATA_INPUT_H

#include "common/data/data.h"
#include "common/data/file_source.h"
#include "common/data/formats.h"

struct input {
    char *path;                       /* owned; another one than was named if that is an index beside the file */
    const struct stream_codec *codec; /* NULL: not compressed */
    const struct format_row *format;
    char *image;        /* owned; NULL: the file is not in an image */
    const char *inside; /* its path in the image: the end of `path` */
    const struct data_containers *containers;
    int64_t bytes;
    struct file_identity identity; /* of the image, if the file is in one */
};

/* Uses `format`, `tables`, `containers` and `raw` of p; raw: the bytes as they are, text and not compressed. */
NODISCARD err_t input_find(const char *path, const struct data_prepare *p, struct input *ret, struct why *why);

void input_fini(struct input *in);

/* An open file. `in` stays valid. */
struct input_file {
    struct byte_source *source, *disk;   /* the file, and the one on the disk: the image, or the same */
    struct byte_stream *stored, *stream; /* the file's bytes, and its content; equal without compression */
    int64_t consumed;                    /* bytes of the file that were read, for progress */
    struct byte_stream counted;
};
NODISCARD err_t input_file_open(const struct input *in, struct input_file *ret, struct why *why);
/* ERR_AGAIN: the file has changed since input_find. */
NODISCARD err_t input_file_same(const struct input *in, const struct input_file *f, struct why *why);
void input_file_close(struct input_file *f);

/* The documents of a file of the kind INPUT_DOCUMENTS. */
struct input_reader {
    struct input_file file;
    struct doc_reader *docs;
};
NODISCARD err_t input_reader_open(const struct input *in, const struct doc_options *o, struct input_reader *ret,
                                  struct why *why);
void input_reader_close(struct input_reader *r);

#endif
