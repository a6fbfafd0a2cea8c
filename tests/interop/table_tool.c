/* table_tool [--field NAME [--label NAME]] FILE|FOLDER..: writes the documents of tables, each as a u8 kind (0 text, 1
 * ids, 2 ids with weights), a u64 row, a u64 length and the bytes, or i32 ids and u8 weights; in the machine's byte
 * order. The label of a document follows it, as kind 4, the row, and the label in place of a length. Each file
 * ends with kind 3 and the sentence of its error, which is empty if there was none, in place of the bytes. */
#include "common/data/arrow.h"
#include "common/data/datasets.h"
#include "common/data/hdf5.h"
#include "common/data/parquet.h"
#include "tests/common/data/source_file.h"

#include <stdio.h>
#include <stdlib.h>

static const struct doc_format *const formats[] = {&parquet_format, &arrow_format, &hdf5_format};

static const struct doc_format *format_of(struct byte_source *in)
{
    uint8_t head[DOC_HEAD_BYTES];
    size_t len = in->size < DOC_HEAD_BYTES ? (size_t)in->size : DOC_HEAD_BYTES;
    if (in->ops->read(in, 0, head, len, NULL))
        return NULL;
    for (size_t i = 0; i < sizeof(formats) / sizeof(formats[0]); i++)
        if (formats[i]->is(head, len, in->name))
            return formats[i];
    return NULL;
}

static void print_head(uint8_t kind, int64_t row, uint64_t n)
{
    fwrite(&kind, sizeof(kind), 1, stdout);
    fwrite(&row, sizeof(row), 1, stdout);
    fwrite(&n, sizeof(n), 1, stdout);
}

static void print_ids(const struct document *d)
{
    print_head(d->weights ? 2 : 1, d->row, (uint64_t)d->n_ids);
    fwrite(d->ids, sizeof(int32_t), (size_t)d->n_ids, stdout);
    if (d->weights)
        fwrite(d->weights, 1, (size_t)d->n_ids, stdout);
}

static void print_document(const struct document *d)
{
    if (d->text) {
        print_head(0, d->row, d->len);
        fwrite(d->text, 1, d->len, stdout);
    } else {
        print_ids(d);
    }
    if (d->labelled)
        print_head(4, d->row, (uint64_t)d->label);
}

static err_t print_documents(struct byte_source *in, const struct doc_options *o, struct why *why)
{
    const struct doc_format *f = format_of(in);
    struct doc_reader *r;
    struct document d;
    bool end = false;
    if (!f)
        return why_set(why, ERR_UNSUPPORTED, "%s: no format", in->name);
    err_t err = f->open(in, o, &r, why);
    if (err)
        return err;
    while (!err && !end) {
        err = r->ops->next(r, &d, &end, why);
        if (!err && !end)
            print_document(&d);
    }
    r->ops->close(r);
    return err;
}

static bool print_file(const char *path, const struct doc_options *o)
{
    struct file_source in;
    struct why why = {0};
    if (!file_source_open(&in, path))
        return false;
    err_t err = print_documents(&in.base, o, &why);
    if (err)
        why_prefix(&why, err, "%s", err_name(err));
    in.base.ops->close(&in.base);
    print_head(3, 0, strlen(why.text));
    fwrite(why.text, 1, strlen(why.text), stdout);
    return true;
}

/* The files of a folder of datasets, one after the other. */
static bool print_folder(const char *dir, const struct doc_options *o)
{
    struct why why = {0};
    char **paths;
    int n;
    bool ok = true;
    err_t err = datasets_files(dir, &paths, &n, &why);
    if (err) {
        why_prefix(&why, err, "%s", err_name(err));
        print_head(3, 0, strlen(why.text));
        fwrite(why.text, 1, strlen(why.text), stdout);
        return true;
    }
    for (int i = 0; i < n; i++) {
        ok = ok && print_file(paths[i], o);
        free(paths[i]);
    }
    free(paths);
    return ok;
}

int main(int argc, char **argv)
{
    struct doc_options o = {0};
    int i = 1;
    if (argc > 2 && strcmp(argv[1], "--field") == 0) {
        o.field = argv[2];
        i = 3;
    }
    if (argc > i + 1 && strcmp(argv[i], "--label") == 0) {
        o.label = argv[i + 1];
        i += 2;
    }
    for (; i < argc; i++)
        if (!(datasets_is_folder(argv[i]) ? print_folder : print_file)(argv[i], &o)) {
            fprintf(stderr, "table_tool: %s cannot be opened\n", argv[i]);
            return 2;
        }
    return 0;
}
