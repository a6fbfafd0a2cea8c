/* dtctl data tokenize: shows how a tokenizer cuts a text. Wrong ids train without an error, so a user should be able to
 * look at them. */
#include "client/commands.h"
#include "client/json.h"

#include "common/base/file.h"
#include "common/data/data.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>
#include <unistd.h>

#define MAX_TEXT ((size_t)16 << 20) /* a table of more tokens is of no use */

struct tokenize_args {
    struct global *global;
    char *files[2];
    int n_files;
    const char *text;
    bool special;
};

struct tokens {
    struct buf text, ids, spans;
};

static const struct argp_option options[] = {
    {"tokenizer-file", 'f', "FILE", 0,
     "A tokenizer.json, .model, .tiktoken or tekken.json; or, given twice, vocab.json and merges.txt", 0},
    {"special", 's', 0, 0, "With the tokens that the tokenizer's post-processor puts before and behind a text", 0},
    {0}};

static error_t parse(int key, char *arg, struct argp_state *state)
{
    struct tokenize_args *a = state->input;
    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = a->global;
        return 0;
    case 'f':
        if (a->n_files == 2)
            argp_error(state, "--tokenizer-file: at most two files, vocab.json and merges.txt");
        a->files[a->n_files++] = arg;
        return 0;
    case 's':
        a->special = true;
        return 0;
    case ARGP_KEY_ARG:
        if (a->text)
            argp_error(state, "one text at a time");
        a->text = arg;
        return 0;
    case ARGP_KEY_END:
        if (!a->n_files)
            argp_error(state, "which tokenizer? Give --tokenizer-file");
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static err_t input_read(struct buf *ret)
{
    for (;;) {
        err_t err = buf_reserve(ret, 1 << 16);
        if (err)
            return err;
        ssize_t n = read(STDIN_FILENO, ret->data + ret->len, 1 << 16);
        if (n < 0 && errno != EINTR)
            return err_from_errno(errno);
        if (n == 0)
            return OK;
        ret->len += n > 0 ? (size_t)n : 0;
        if (ret->len > MAX_TEXT)
            return ERR_LIMIT;
    }
}

static err_t text_read(const char *file, struct buf *ret, struct why *why)
{
    bool input = !file || strcmp(file, "-") == 0;
    err_t err = input ? input_read(ret) : file_read(file, MAX_TEXT, ret);
    return err ? why_set(why, err, "%s: %s", input ? "standard input" : file,
                         err == ERR_LIMIT ? "more than 16 MiB of text" : err_text(err))
               : OK;
}

/* The text of a token in quotes, so that white space is visible. */
static err_t piece_print(const uint8_t *p, size_t n, struct buf *ret)
{
    err_t err = buf_printf(ret, "\"");
    for (size_t i = 0; !err && i < n; i++)
        if (p[i] == '\n' || p[i] == '\t' || p[i] == '\r')
            err = buf_printf(ret, "\\%c", p[i] == '\n' ? 'n' : p[i] == '\t' ? 't' : 'r');
        else if (p[i] == '"' || p[i] == '\\')
            err = buf_printf(ret, "\\%c", p[i]);
        else if (p[i] < ' ' || p[i] == 0x7f)
            err = buf_printf(ret, "\\x%02x", p[i]);
        else
            err = buf_append(ret, &p[i], 1);
    return err ? err : buf_printf(ret, "\"");
}

/* A token that ends within a character is printed with its bytes. */
static err_t piece_text(const struct buf *piece, struct buf *ret)
{
    json_t *valid = json_stringn((const char *)piece->data, piece->len);
    err_t err = OK;
    ret->len = 0;
    if (valid || !piece->len) {
        err = piece_print(piece->data, piece->len, ret);
    } else {
        for (size_t i = 0; !err && i < piece->len; i++)
            err = buf_printf(ret, "<0x%02X>", piece->data[i]);
    }
    json_decref(valid);
    return err ? err : buf_append(ret, "", 1);
}

static int print_table(const struct tokenizer *t, const struct tokens *x)
{
    static const struct out_column columns[] = {
        {"TOKEN", true, 0}, {"ID", true, 0}, {"FROM", true, 0}, {"TO", true, 0}, {"PIECE", false, 0}};
    const int32_t *ids = (const int32_t *)(const void *)x->ids.data;
    const struct tokenizer_span *spans = (const struct tokenizer_span *)(const void *)x->spans.data;
    struct buf piece = {0}, text = {0};
    struct out_table table;
    err_t err = OK;
    out_table_init(&table, columns, sizeof(columns) / sizeof(columns[0]));
    for (size_t i = 0; !err && i < x->ids.len / sizeof(*ids); i++) {
        int r = out_table_row(&table);
        piece.len = 0;
        err = tokenizer_decode(t, ids[i], &piece);
        err = err ? err : piece_text(&piece, &text);
        out_table_set(&table, r, 0, "%zu", i);
        out_table_set(&table, r, 1, "%" PRId32, ids[i]);
        out_table_set(&table, r, 2, "%" PRIu32, spans[i].from);
        out_table_set(&table, r, 3, "%" PRIu32, spans[i].to);
        out_table_set(&table, r, 4, "%s", err ? "" : (const char *)text.data);
    }
    if (!err)
        out_table_print(&table, stdout, -1);
    out_table_fini(&table);
    buf_fini(&piece);
    buf_fini(&text);
    return err ? command_fail(err, NULL) : EXIT_DONE;
}

static int print_json(const struct global *g, const struct tokenizer *t, const struct tokens *x)
{
    const int32_t *ids = (const int32_t *)(const void *)x->ids.data;
    const struct tokenizer_span *spans = (const struct tokenizer_span *)(const void *)x->spans.data;
    json_t *list = json_array();
    struct buf piece = {0};
    err_t err = list ? OK : ERR_NOMEM;
    for (size_t i = 0; !err && i < x->ids.len / sizeof(*ids); i++) {
        piece.len = 0;
        err = tokenizer_decode(t, ids[i], &piece);
        if (!err &&
            json_array_append_new(list, json_pack("{s:i, s:o, s:I, s:I}", "id", (int)ids[i], "piece",
                                                  json_of_text(piece.data ? (const char *)piece.data : "", piece.len),
                                                  "from", (json_int_t)spans[i].from, "to", (json_int_t)spans[i].to)))
            err = ERR_NOMEM;
    }
    buf_fini(&piece);
    if (!err)
        return command_json(g, json_pack("{s:I, s:o}", "vocab", (json_int_t)tokenizer_vocab(t), "tokens", list));
    json_decref(list);
    return command_fail(err, NULL);
}

static int tokenize(struct tokenize_args *a)
{
    struct tokenizer *t = NULL;
    struct tokens x = {{0}, {0}, {0}};
    struct why why = {0};
    err_t err = tokenizer_bpe_files(a->files, a->n_files, &t, &why);
    err = err ? err : text_read(a->text, &x.text, &why);
    err = err ? err
              : tokenizer_explain(t, x.text.data ? x.text.data : (const uint8_t *)"", x.text.len, a->special, &x.ids,
                                  &x.spans, &why);
    int code = err                             ? command_fail(err, &why)
               : a->global->format == OUT_TEXT ? print_table(t, &x)
                                               : print_json(a->global, t, &x);
    tokenizer_free(t);
    buf_fini(&x.text);
    buf_fini(&x.ids);
    buf_fini(&x.spans);
    return code;
}

int data_tokenize(struct global *g, int argc, char **argv)
{
    static const struct argp argp = {
        .options = options,
        .parser = parse,
        .children = global_children,
        .args_doc = "[FILE]",
        .doc = "Shows the tokens of a text file, or of standard input: the ids, the bytes of the text that each token "
               "covers, and what it prints. A token that ends within a character shows its bytes. With -o json, "
               "prints an object with vocab and tokens, a list of objects with id, piece, from and to."
               "\vExample:\n  echo 'Hello world' | dtctl data tokenize -f llama/tokenizer.json --special"};
    struct tokenize_args args = {.global = g};
    command_parse(&argp, argc, argv, &args);
    return tokenize(&args);
}
