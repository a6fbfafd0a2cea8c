/* Files of token ids. The first byte is the format, the next two the size of the first of two files (ids, index). What
 * opens has consistent sizes: every id and every document that it announces can be read. */
#include "common/data/token_file.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static char dir[64];

static void require(bool true_)
{
    if (!true_)
        abort();
}

static void write_file(const char *name, const void *data, size_t len, char path[128])
{
    snprintf(path, 128, "%s/%s", dir, name);
    FILE *f = fopen(path, "w");
    require(f && fwrite(data, 1, len, f) == len && !fclose(f));
}

static void check_all(const struct token_file *f)
{
    int32_t *ids = malloc((size_t)f->tokens * sizeof(*ids));
    int64_t begin = 0;
    require(f->tokens > 0 && ids);
    token_types[f->type].widen(f->ids.data + f->offset, f->tokens, ids);
    for (int64_t i = 0; i < f->n_ends; i++) {
        require(f->end(f, i) >= begin && f->end(f, i) <= f->tokens);
        begin = f->end(f, i);
    }
    require(!f->n_ends || begin == f->tokens);
    for (int64_t i = 0; f->losses.path && i < f->tokens; i++)
        require(f->losses.data[i] <= 1);
    free(ids);
}

static void remove_dir(void)
{
    rmdir(dir);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char *const names[TOKEN_FORMATS][2] = {
        {"x.bin", "x.idx"}, {"x.bin"}, {"x.ds", "x.ds.index"}, {"x.npy"}};
    char paths[2][128], main_path[PATH_MAX];
    struct token_file f;
    struct why why = {""};
    if (!dir[0]) {
        snprintf(dir, sizeof(dir), "/tmp/dtd-fuzz-tokens-XXXXXX");
        require(mkdtemp(dir) && !atexit(remove_dir));
    }
    if (size < 3)
        return 0;
    int format = data[0] % TOKEN_FORMATS;
    size_t first = data[1] | (size_t)data[2] << 8, rest = size - 3;
    first = first < rest ? first : rest;
    write_file(names[format][0] ? names[format][0] : "x", data + 3, first, paths[0]);
    write_file(names[format][1] ? names[format][1] : "y", data + 3 + first, rest - first, paths[1]);
    token_formats[format].is(data + 3, first, paths[0]);
    token_file_main(paths[1], data + 3 + first, rest - first, main_path);
    err_t err = token_file_open(&token_formats[format], paths[0], &f, &why);
    require(!err || why.text[0]);
    if (!err) {
        check_all(&f);
        token_file_close(&f);
    }
    unlink(paths[0]);
    unlink(paths[1]);
    return 0;
}
