/* dtctl data show: the sources of a prepared set, and a few documents as text. A wrong key, a doubled token or a mask
 * that is shifted trains without an error, so a user should look at what the model will see. */
#include "client/commands.h"
#include "client/json.h"

#include "common/data/data.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define SHOWN_TOKENS 128 /* of a document: some lines of a terminal */
#define MAX_SAMPLES 1000

struct show_args {
    struct global *global;
    const char *cache, *hash;
    long samples;
};

/* A part of a document. */
struct shown {
    struct data_document document;
    int64_t n; /* tokens that are shown */
    int32_t ids[SHOWN_TOKENS];
    uint8_t weights[SHOWN_TOKENS];
    int32_t label; /* -1: none */
    struct buf text;
};

static const struct argp_option options[] = {
    {"samples", 'n', "N", 0, "Number of documents to show, at equal distances (default 3)", 0},
    {"cache", 'c', "DIR", 0, "Folder of prepared sets (default: $XDG_CACHE_HOME/dtd/data, else ~/.cache/dtd/data)", 0},
    {0}};

static error_t parse(int key, char *arg, struct argp_state *state)
{
    struct show_args *a = state->input;
    char *end;
    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = a->global;
        return 0;
    case 'n':
        a->samples = strtol(arg, &end, 10);
        if (!*arg || *end || a->samples < 0 || a->samples > MAX_SAMPLES)
            argp_error(state, "--samples %s: write a number from 0 to %d", arg, MAX_SAMPLES);
        return 0;
    case 'c':
        a->cache = arg;
        return 0;
    case ARGP_KEY_ARG:
        if (a->hash)
            argp_error(state, "one hash at a time");
        a->hash = arg;
        return 0;
    case ARGP_KEY_END:
        if (!a->hash)
            argp_error(state, "which set? Give its hash");
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

/* ---- a document ---- */

/* The document that contains token `at`; of a set without documents, the tokens from there on. */
static err_t load(const struct data_set *d, int64_t at, struct shown *s)
{
    err_t err = data_document(d, at, &s->document);
    if (!err && !data_documents(d))
        s->document.begin = at;
    int64_t n = s->document.end - s->document.begin;
    s->n = n < SHOWN_TOKENS ? n : SHOWN_TOKENS;
    err = err ? err : data_copy(d, s->document.begin, s->n, s->ids);
    err = err ? err : data_weights(d, s->document.begin, s->n, s->weights);
    s->text.len = 0;
    const int64_t text = data_labels(d) && s->n == n ? n - 1 : s->n; /* the last token is the label */
    s->label = -1;
    if (!err && data_labels(d))
        err = data_copy(d, s->document.end - 1, 1, &s->label);
    for (int64_t i = 0; !err && i < text; i++)
        err = tokenizer_decode(data_tokenizer(d), s->ids[i], &s->text);
    return err;
}

/* Calls `each` with `samples` documents. */
static err_t each_sample(const struct data_set *d, long samples, err_t (*each)(void *arg, const struct shown *s),
                         void *arg)
{
    struct shown s = {.n = 0};
    int64_t last = -1;
    err_t err = OK;
    for (long i = 0; !err && i < samples; i++) {
        err = load(d, (int64_t)((double)data_tokens(d) * (double)i / (double)samples), &s);
        if (!err && s.document.begin != last)
            err = each(arg, &s);
        last = s.document.begin;
    }
    buf_fini(&s.text);
    return err;
}

/* ---- text ---- */

static void print_sources(const struct data_set *d)
{
    static const struct out_column columns[] = {
        {"DOCUMENTS", true, 0}, {"TOKENS", true, 0}, {"SIZE", true, 0}, {"FORMAT", false, 0}, {"FILE", false, 0}};
    struct out_table table;
    if (!data_sources(d))
        return;
    out_table_init(&table, columns, sizeof(columns) / sizeof(columns[0]));
    for (int i = 0; i < data_sources(d); i++) {
        struct data_source s = data_source(d, i);
        char size[OUT_NUMBER];
        int r = out_table_row(&table);
        if (s.documents)
            out_table_set(&table, r, 0, "%" PRId64, s.documents);
        if (s.tokens)
            out_table_set(&table, r, 1, "%" PRId64, s.tokens);
        out_table_set(&table, r, 2, "%s", out_bytes(s.bytes, size));
        out_table_set(&table, r, 3, "%s", s.format);
        out_table_set(&table, r, 4, "%s", s.path);
    }
    printf("\n");
    out_table_print(&table, stdout, -1);
    out_table_fini(&table);
}

/* Control characters would change the terminal; a line's end begins a new line below the first. */
static void print_text(const struct buf *text)
{
    printf("  ");
    for (size_t i = 0; i < text->len; i++) {
        uint8_t c = text->data[i];
        if (c == '\n')
            printf("\n  ");
        else if (c == '\t')
            putchar(c);
        else if (c < ' ' || c == 0x7f)
            printf("\\x%02x", c);
        else
            putchar(c);
    }
    printf("\n");
}

static err_t print_sample(void *arg, const struct shown *s)
{
    const struct data_set *d = arg;
    int64_t counted = 0, n = s->document.end - s->document.begin;
    for (int64_t i = 0; i < s->n; i++)
        counted += s->weights[i];
    if (data_documents(d))
        printf("\ndocument %" PRId64 ", %" PRId64 " tokens", s->document.number, n);
    else
        printf("\ntokens from %" PRId64, s->document.begin);
    if (s->n < n)
        printf(", the first %" PRId64, s->n);
    if (s->label >= 0)
        printf(" with the label, which is %d", s->label);
    if (data_weighted(d))
        printf(" (%" PRId64 " in the loss)", counted);
    printf(":\n");
    print_text(&s->text);
    return OK;
}

static err_t show_text(const struct data_set *d, const struct show_args *a)
{
    printf("%s  %" PRId64 " tokens, vocabulary %" PRId64, a->hash, data_tokens(d), data_vocab(d));
    if (data_documents(d))
        printf(", %" PRId64 " documents", data_documents(d));
    if (data_labels(d))
        printf(", %" PRId64 " labels", data_labels(d));
    printf("%s\n", data_weighted(d) ? ", with a loss mask" : "");
    print_sources(d);
    return each_sample(d, a->samples, print_sample, (void *)d);
}

/* ---- JSON ---- */

static json_t *json_of_sources(const struct data_set *d)
{
    json_t *list = json_array();
    for (int i = 0; list && i < data_sources(d); i++) {
        struct data_source s = data_source(d, i);
        json_array_append_new(list, json_pack("{s:s, s:s, s:I, s:I, s:I}", "file", s.path, "format", s.format, "bytes",
                                              (json_int_t)s.bytes, "documents", (json_int_t)s.documents, "tokens",
                                              (json_int_t)s.tokens));
    }
    return list;
}

static err_t add_sample(void *arg, const struct shown *s)
{
    json_t *ids = json_array(), *weights = json_array();
    for (int64_t i = 0; i < s->n; i++) {
        json_array_append_new(ids, json_integer(s->ids[i]));
        json_array_append_new(weights, json_integer(s->weights[i]));
    }
    json_t *sample =
        json_pack("{s:I, s:I, s:I, s:o, s:o, s:o}", "document", (json_int_t)s->document.number, "begin",
                  (json_int_t)s->document.begin, "end", (json_int_t)s->document.end, "ids", ids, "weights", weights,
                  "text", json_of_text(s->text.data ? (const char *)s->text.data : "", s->text.len));
    if (sample && s->label >= 0)
        json_object_set_new(sample, "label", json_integer(s->label));
    return json_array_append_new(arg, sample) ? ERR_NOMEM : OK;
}

static err_t show_json(const struct data_set *d, const struct show_args *a, int *ret_code)
{
    json_t *samples = json_array();
    err_t err = each_sample(d, a->samples, add_sample, samples);
    if (err) {
        json_decref(samples);
        return err;
    }
    *ret_code = command_json(a->global, json_pack("{s:s, s:I, s:I, s:I, s:b, s:o, s:o}", "hash", a->hash, "tokens",
                                                  (json_int_t)data_tokens(d), "vocab", (json_int_t)data_vocab(d),
                                                  "documents", (json_int_t)data_documents(d), "weighted",
                                                  data_weighted(d), "sources", json_of_sources(d), "samples", samples));
    return OK;
}

int data_show(struct global *g, int argc, char **argv)
{
    static const struct argp argp = {
        .options = options,
        .parser = parse,
        .children = global_children,
        .args_doc = "HASH",
        .doc = "Shows a prepared set: the files it was made from, the number of documents and tokens, and the first "
               "tokens of some documents as text. With -o json, a sample also has its ids, and their weights in the "
               "loss."
               "\vExample:\n  dtctl data show $(dtctl data prepare chats.jsonl -o json | jq -r .hash) -n 10"};
    struct show_args args = {.global = g, .samples = 3};
    struct data_set *set;
    struct why why = {0};
    int code = EXIT_DONE;
    command_parse(&argp, argc, argv, &args);
    err_t err = data_open(args.cache, args.hash, &set, &why);
    if (err)
        return command_fail(err, &why);
    err = g->format == OUT_TEXT ? show_text(set, &args) : show_json(set, &args, &code);
    data_close(set);
    return err ? command_fail(err, NULL) : code;
}
