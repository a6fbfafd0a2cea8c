/* dtctl data: prepares training data and shows prepared sets, without a daemon. submit prepares data by itself; these
 * commands do it beforehand, and show the result. */
#include "client/commands.h"
#include "client/json.h"

#include "common/base/clock.h"
#include "common/data/data.h"
#include "common/data/tables.h"

#include <inttypes.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct data_args {
    struct global *global;
    char **files, *tokenizer_files[2];
    int n_files, n_tokenizer_files;
    enum tokenizer_kind tokenizer;
    bool lowercase, raw;
    const char *cache, *vocab_from, *format, *field, *label, *bos, *eos;
};

static const struct argp_option cache_option[] = {
    {"cache", 'c', "DIR", 0, "Folder of prepared sets (default: $XDG_CACHE_HOME/dtd/data, else ~/.cache/dtd/data)", 0},
    {0}};

static const struct argp_option prepare_options[] = {
    {"tokenizer", 't', "KIND", 0, "bytes (default), words, split or bpe", 0},
    {"tokenizer-file", 'f', "FILE", 0,
     "bpe only: a tokenizer.json, .model, .tiktoken or tekken.json; or, given twice, vocab.json and merges.txt", 0},
    {"lowercase", 'l', 0, 0, "words: fold A-Z to a-z; split: Python's str.lower()", 0},
    {"raw", 'r', 0, 0, "Take the bytes of files as they are, whatever they contain", 0},
    {"format", 'F', "FORMAT", 0, "Format of the files (data.format; default: auto, by content)", 0},
    {"field", 'k', "KEY", 0, "Key or column of the text in files of documents (data.field)", 0},
    {"label", 'L', "KEY", 0, "Key or column of the class of each text, for models with labels (data.label)", 0},
    {"bos", 'b', "TOKEN", 0, "Token before each document: file (default), none, always, or its text (data.bos)", 0},
    {"eos", 'e', "TOKEN", 0, "Token behind each document: auto (default), file, none, always, or its text (data.eos)",
     0},
    {"vocab-from", 'v', "HASH", 0,
     "words, split and bpe: use the vocabulary of another prepared set (for validation data)", 0},
    {0}};

static error_t parse_cache(int key, char *arg, struct argp_state *state)
{
    struct data_args *a = state->input;
    if (key != 'c')
        return ARGP_ERR_UNKNOWN;
    a->cache = arg;
    return 0;
}

static const struct argp cache_argp = {.options = cache_option, .parser = parse_cache};
static const struct argp_child children[] = {
    {&global_argp, 0, "Options of every command:", 10}, {&cache_argp, 0, NULL, 0}, {0}};

static bool parse_kind(const char *name, enum tokenizer_kind *ret)
{
    static const char *const names[] = {
        [TOKENIZER_BYTES] = "bytes", [TOKENIZER_WORDS] = "words", [TOKENIZER_BPE] = "bpe", [TOKENIZER_SPLIT] = "split"};
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        if (strcmp(names[i], name) == 0) {
            *ret = (enum tokenizer_kind)i;
            return true;
        }
    return false;
}

static void check_kind(const struct data_args *a, struct argp_state *state)
{
    if (!tokenizer_counts_words(a->tokenizer) && a->lowercase)
        argp_error(state, "--lowercase is for --tokenizer words and split");
    if (a->tokenizer == TOKENIZER_BYTES && a->vocab_from)
        argp_error(state, "--vocab-from is for --tokenizer words, split and bpe");
    if (a->tokenizer != TOKENIZER_BPE && a->n_tokenizer_files)
        argp_error(state, "--tokenizer-file is for --tokenizer bpe");
    if (a->tokenizer == TOKENIZER_BPE && !a->n_tokenizer_files == !a->vocab_from)
        argp_error(state, "--tokenizer bpe: give --tokenizer-file (vocab.json and merges.txt, or tokenizer.json) or "
                          "--vocab-from");
}

static error_t parse(int key, char *arg, struct argp_state *state)
{
    struct data_args *a = state->input;
    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = a->global;
        state->child_inputs[1] = a;
        return 0;
    case 't':
        if (!parse_kind(arg, &a->tokenizer))
            argp_error(state, "--tokenizer %s: the tokenizers are bytes, words, split and bpe", arg);
        return 0;
    case 'f':
        if (a->n_tokenizer_files == 2)
            argp_error(state, "--tokenizer-file: at most two files, vocab.json and merges.txt");
        a->tokenizer_files[a->n_tokenizer_files++] = arg;
        return 0;
    case 'l':
        a->lowercase = true;
        return 0;
    case 'r':
        a->raw = true;
        return 0;
    case 'v':
        a->vocab_from = arg;
        return 0;
    case 'F':
        a->format = arg;
        return 0;
    case 'k':
        a->field = arg;
        return 0;
    case 'L':
        a->label = arg;
        return 0;
    case 'b':
        a->bos = arg;
        return 0;
    case 'e':
        a->eos = arg;
        return 0;
    case ARGP_KEY_ARGS:
        a->files = state->argv + state->next;
        a->n_files = state->argc - state->next;
        state->next = state->argc;
        return 0;
    case ARGP_KEY_NO_ARGS:
        argp_error(state, "nothing to read: give an argument");
        return 0;
    case ARGP_KEY_END:
        check_kind(a, state);
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static int print_set(const struct global *g, const char *cache, const char *hash)
{
    struct data_set *set;
    struct why why = {0};
    err_t err = data_open(cache, hash, &set, &why);
    if (err)
        return command_fail(err, &why);
    int64_t tokens = data_tokens(set), vocab = data_vocab(set);
    data_close(set);
    if (g->format != OUT_TEXT)
        return command_json(
            g, json_pack("{s:s, s:I, s:I}", "hash", hash, "tokens", (json_int_t)tokens, "vocab", (json_int_t)vocab));
    printf("%s  %" PRId64 " tokens, vocabulary %" PRId64 "\n", hash, tokens, vocab);
    return EXIT_DONE;
}

struct preparing {
    struct out_progress line;
    int64_t begin_ms;
};

static void on_progress(int64_t done, int64_t total, void *arg)
{
    struct preparing *p = arg;
    char line[160], a[OUT_NUMBER], b[OUT_NUMBER], rate[OUT_NUMBER], left[OUT_NUMBER];
    int64_t now = clock_mono_ms();
    if (!out_progress_due(&p->line, now))
        return;
    double seconds = (double)(now - p->begin_ms) / 1e3, speed = seconds > 0 ? (double)done / seconds : 0;
    snprintf(line, sizeof(line), "preparing  %.0f%%  %s of %s  %s/s  %s left",
             total > 0 ? 100.0 * (double)done / (double)total : 0, out_bytes(done, a), out_bytes(total, b),
             out_bytes((int64_t)speed, rate), out_duration(speed > 0 ? (double)(total - done) / speed : -1, left));
    out_progress_draw(&p->line, now, line);
}

static void on_report(const char *sentence, void *arg)
{
    struct preparing *p = arg;
    out_progress_clear(&p->line);
    fprintf(stderr, "dtctl: %s\n", sentence);
}

static volatile sig_atomic_t stop;

static void on_stop(int signum)
{
    stop = signum;
}

/* The second signal ends the program at once; what was saved remains then, too. */
static void catch_stop(void)
{
    const struct sigaction action = {.sa_handler = on_stop, .sa_flags = SA_RESETHAND};
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
}

static void on_warning(const char *text, void *arg)
{
    struct preparing *p = arg;
    out_progress_clear(&p->line);
    fprintf(stderr, "dtctl: warning: %s\n", text);
}

static int prepare(struct data_args *args)
{
    struct preparing progress = {.begin_ms = clock_mono_ms()};
    struct why why = {0};
    char cwd[PATH_MAX], repeated[PATH_MAX], hash[65], **paths;
    int n;
    if (!getcwd(cwd, sizeof(cwd)))
        return command_complain(EXIT_ERROR, "the current folder does not exist any more");
    err_t err = data_resolve(cwd, args->files, args->n_files, &table_containers, &paths, &n, repeated, &why);
    if (err)
        return command_fail(err, &why);
    if (repeated[0])
        fprintf(stderr, "dtctl: warning: %s is named more than once; it is read once\n", repeated);
    out_progress_init(&progress.line, stderr);
    const struct data_prepare p = {.files = paths,
                                   .n_files = n,
                                   .tokenizer = args->tokenizer,
                                   .lowercase = args->lowercase,
                                   .raw = args->raw,
                                   .format = args->format,
                                   .tables = table_rows,
                                   .containers = &table_containers,
                                   .field = args->field,
                                   .label = args->label,
                                   .bos = args->bos,
                                   .eos = args->eos,
                                   .tokenizer_files = args->tokenizer_files,
                                   .n_tokenizer_files = args->n_tokenizer_files,
                                   .vocab_from = args->vocab_from,
                                   .cache = args->cache,
                                   .progress = on_progress,
                                   .report = on_report,
                                   .warn = on_warning,
                                   .stop = &stop,
                                   .arg = &progress};
    catch_stop();
    err = data_prepare(&p, hash, &why);
    out_progress_clear(&progress.line);
    data_paths_free(paths, n);
    if (err == ERR_CANCELED)
        return command_complain(EXIT_INTERRUPTED, "%s", why.text);
    return err ? command_fail(err, &why) : print_set(args->global, args->cache, hash);
}

static int data_prepare_run(struct global *g, int argc, char **argv)
{
    static const struct argp argp = {
        .options = prepare_options,
        .parser = parse,
        .children = children,
        .args_doc = "FILE...",
        .doc =
            "Converts text and documents to token shards, and names files of token ids. The hash of content and "
            "tokenizer is the name of the set; a set that exists is not prepared again, and a "
            "run that was interrupted is continued by the same command. `dtctl submit` prepares its data by itself."
            "\vExamples:\n  dtctl data prepare book.txt\n  dtctl data prepare 'wiki/*.txt' --tokenizer words "
            "--lowercase\n  dtctl data prepare book.txt --tokenizer bpe --tokenizer-file vocab.json --tokenizer-file "
            "merges.txt"};
    struct data_args args = {.global = g, .tokenizer = TOKENIZER_BYTES};
    command_parse(&argp, argc, argv, &args);
    return prepare(&args);
}

static int data_info(struct global *g, int argc, char **argv)
{
    static const struct argp argp = {
        .parser = parse,
        .children = children,
        .args_doc = "HASH",
        .doc = "Opens and checks a prepared set, and shows its size."
               "\vExample:\n  dtctl data info $(dtctl data prepare a.txt -o json | jq -r .hash)"};
    struct data_args args = {.global = g, .tokenizer = TOKENIZER_BYTES};
    command_parse(&argp, argc, argv, &args);
    if (args.n_files != 1)
        return command_complain(EXIT_REFUSED, "data info: one hash at a time");
    return print_set(g, args.cache, args.files[0]);
}

static const struct command table[] = {
    {"prepare", "convert text to token shards", data_prepare_run},
    {"info", "show a prepared set", data_info},
    {"show", "show the sources and samples of a prepared set", data_show},
    {"tokenize", "show the tokens of a text", data_tokenize},
};

int cmd_data(struct global *g, int argc, char **argv)
{
    return command_group(table, sizeof(table) / sizeof(table[0]), argv[0], g, argc, argv);
}
