/* dtctl generate: continues a prompt, or answers questions, with the model of a checkpoint. dtctl checks the arguments
 * and finds the step, then executes dt-worker in its own process, so that Ctrl-C and the exit status are the worker's.
 */
#include "client/commands.h"
#include "client/daemon.h"
#include "client/json.h"
#include "common/data/chat.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define MAX_STOPS 16 /* as many as the worker takes */
#define MAX_ARGS (40 + 2 * MAX_STOPS)

struct generate_args {
    struct global *global;
    const char *checkpoint;
    struct buf text; /* of a prompt that was read from a file */
    const char *prompt, *prompts, *tokens, *temperature, *top_k, *top_p, *min_p, *penalty, *seed, *batch, *dtype, *tp,
        *pp;
    const char *stops[MAX_STOPS];
    int n_stops;
    const char *template, *system;
    bool ignore_eos, chat, json;
};

enum {
    KEY_TP = 256,
    KEY_PP,
    KEY_TOP_P,
    KEY_MIN_P,
    KEY_PENALTY,
    KEY_STOP,
    KEY_IGNORE_EOS,
    KEY_PROMPTS,
    KEY_BATCH,
    KEY_DTYPE,
    KEY_CHAT,
    KEY_TEMPLATE,
    KEY_SYSTEM
};

static const struct argp_option options[] = {
    {"prompt", 'p', "TEXT", 0, "Text to continue (default: empty); -: read it from standard input", 0},
    {"file", 'f', "FILE", 0, "Read the text to continue from a file; -: from standard input", 0},
    {"chat", KEY_CHAT, NULL, 0,
     "Answer the text as the user's turn of a conversation; without a text, each line of standard input", 0},
    {"template", KEY_TEMPLATE, "NAME", 0,
     "With --chat: the chat template (llama3, chatml, mistral, gemma or phi; default: the checkpoint's)", 0},
    {"system", KEY_SYSTEM, "TEXT", 0, "With --chat: the system message (default: none)", 0},
    {"tokens", 'n', "N", 0, "Number of tokens to generate (default 100, of an answer 1000)", 0},
    {"temperature", 't', "T", 0, "Sampling temperature; 0: always the most likely token (default 1)", 0},
    {"top-k", 'k', "K", 0, "Sample from the K most likely tokens; 0: from all (default 0)", 0},
    {"top-p", KEY_TOP_P, "P", 0, "Sample from the most likely tokens that have probability P together (default 1)", 0},
    {"min-p", KEY_MIN_P, "P", 0, "Sample from tokens at least P times as likely as the best one (default 0)", 0},
    {"repetition-penalty", KEY_PENALTY, "X", 0, "Make tokens of the text less likely (default 1: no change)", 0},
    {"stop", KEY_STOP, "TEXT", 0, "End the text before TEXT; may be repeated", 0},
    {"ignore-eos", KEY_IGNORE_EOS, NULL, 0, "Go on after a token that ends a text", 0},
    {"prompts", KEY_PROMPTS, "FILE", 0,
     "Continue every line of a file; lines of JSON are strings or objects with a prompt", 0},
    {"batch", KEY_BATCH, "N", 0, "With --prompts: so many at a time (default 8)", 0},
    {"seed", 's', "S", 0, "Seed; the same seed gives the same text (default 1)", 0},
    {"dtype", KEY_DTYPE, "TYPE", 0, "float32 (default) or bfloat16, which needs half of the memory", 0},
    {"tp", KEY_TP, "N", 0, "Split every layer into N parts (default 1)", 0},
    {"pp", KEY_PP, "N", 0, "Split the layers into N stages (default 1)", 0},
    {0}};

static const char *check_integer(struct argp_state *state, const char *option, const char *arg)
{
    int64_t v;
    if (!arg_number(arg, INT64_MAX, &v))
        argp_error(state, "--%s %s: expected a number from 0", option, arg);
    return arg;
}

/* Only the worker can check the upper bound, because it depends on the model. */
static const char *check_degree(struct argp_state *state, const char *option, const char *arg)
{
    int64_t v;
    if (!arg_number(arg, INT32_MAX, &v) || v < 1)
        argp_error(state, "--%s %s: expected a number from 1", option, arg);
    return arg;
}

static const char *check_real(struct argp_state *state, const char *option, const char *arg)
{
    char *end;
    double v = strtod(arg, &end);
    if (end == arg || *end || !(v >= 0 && v <= 1000))
        argp_error(state, "--%s %s: expected a number from 0 to 1000", option, arg);
    return arg;
}

/* The worker gets the prompt as an argument, which the kernel limits to 128 KiB; a model reads far less. */
#define MAX_PROMPT ((size_t)100 << 10)

static err_t output_read(int fd, size_t most, struct buf *ret)
{
    for (;;) {
        err_t err = buf_reserve(ret, 4096);
        if (err)
            return err;
        ssize_t n = read(fd, ret->data + ret->len, 4096);
        if (n < 0 && errno != EINTR)
            return err_from_errno(errno);
        if (n == 0)
            return OK;
        ret->len += n > 0 ? (size_t)n : 0;
        if (ret->len > most)
            return ERR_LIMIT;
    }
}

static void prompt_read(struct generate_args *a, const char *file, struct argp_state *state)
{
    int fd = strcmp(file, "-") == 0 ? STDIN_FILENO : open(file, O_RDONLY | O_CLOEXEC);
    err_t err = fd < 0 ? err_from_errno(errno) : output_read(fd, MAX_PROMPT, &a->text);
    if (fd > STDIN_FILENO)
        close(fd);
    if (err && err != ERR_LIMIT)
        argp_failure(state, EXIT_NOT_FOUND, 0, "%s: %s", file, err_text(err));
    if (err || memchr(a->text.data, '\0', a->text.len))
        argp_error(state, "%s: a prompt is text of at most 100 KiB", file);
    if (buf_append(&a->text, "", 1))
        argp_failure(state, EXIT_ERROR, 0, "out of memory");
    a->prompt = (const char *)a->text.data;
}

static const char *check_template(struct argp_state *state, const char *option, const char *arg)
{
    enum chat_template template;
    char list[128];
    chat_list(list, sizeof(list));
    if (!chat_find(arg, &template))
        argp_error(state, "--%s %s: expected one of %s", option, arg, list);
    return arg;
}

static const char *check_dtype(struct argp_state *state, const char *option, const char *arg)
{
    const enum dtype type = dtype_parse(arg);
    if (type != DT_F32 && type != DT_BF16)
        argp_error(state, "--%s %s: expected float32 or bfloat16", option, arg);
    return arg;
}

static const char *take_text(struct argp_state *state, const char *option, const char *arg)
{
    (void)state;
    (void)option;
    return arg;
}

/* Options that the worker has too and gets with their value. */
static const struct generate_field {
    int key;
    const char *option;
    const char *(*check)(struct argp_state *state, const char *option, const char *arg);
    size_t offset;
} fields[] = {
#define FIELD(key, option, check, member)                          \
    {                                                              \
        key, option, check, offsetof(struct generate_args, member) \
    }
    FIELD(KEY_PROMPTS, "prompts", take_text, prompts),
    FIELD(KEY_TEMPLATE, "template", check_template, template),
    FIELD(KEY_SYSTEM, "system", take_text, system),
    FIELD('n', "tokens", check_integer, tokens),
    FIELD('t', "temperature", check_real, temperature),
    FIELD('k', "top-k", check_integer, top_k),
    FIELD(KEY_TOP_P, "top-p", check_real, top_p),
    FIELD(KEY_MIN_P, "min-p", check_real, min_p),
    FIELD(KEY_PENALTY, "repetition-penalty", check_real, penalty),
    FIELD('s', "seed", check_integer, seed),
    FIELD(KEY_BATCH, "batch", check_degree, batch),
    FIELD(KEY_DTYPE, "dtype", check_dtype, dtype),
    FIELD(KEY_TP, "tp", check_degree, tp),
    FIELD(KEY_PP, "pp", check_degree, pp),
#undef FIELD
};
#define FIELDS (sizeof(fields) / sizeof(fields[0]))

static const char **field_of(const struct generate_args *a, const struct generate_field *f)
{
    return (const char **)((char *)a + f->offset);
}

static error_t parse_field(struct generate_args *a, int key, const char *arg, struct argp_state *state)
{
    for (size_t i = 0; i < FIELDS; i++)
        if (fields[i].key == key) {
            *field_of(a, &fields[i]) = fields[i].check(state, fields[i].option, arg);
            return 0;
        }
    return ARGP_ERR_UNKNOWN;
}

static void check_chat(const struct generate_args *a, struct argp_state *state)
{
    if (a->prompts && a->prompt && *a->prompt)
        argp_error(state, "use either --prompt, --file or --prompts");
    if (!a->chat && (a->template || a->system))
        argp_error(state, "--%s needs --chat", a->template ? "template" : "system");
    if (a->chat && (a->prompts || a->ignore_eos))
        argp_error(state, "use either --chat or --%s", a->prompts ? "prompts" : "ignore-eos");
}

static error_t parse(int key, char *arg, struct argp_state *state)
{
    struct generate_args *a = state->input;
    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = a->global;
        return 0;
    case 'p':
        a->prompt = arg;
        if (strcmp(arg, "-") == 0)
            prompt_read(a, arg, state);
        return 0;
    case 'f':
        prompt_read(a, arg, state);
        return 0;
    case KEY_STOP:
        if (!*arg || a->n_stops == MAX_STOPS)
            argp_error(state, "--stop '%s': expected at most %d texts, none of them empty", arg, MAX_STOPS);
        a->stops[a->n_stops++] = arg;
        return 0;
    case KEY_IGNORE_EOS:
        a->ignore_eos = true;
        return 0;
    case KEY_CHAT:
        a->chat = true;
        return 0;
    case ARGP_KEY_ARG:
        if (a->checkpoint)
            argp_error(state, "one checkpoint at a time");
        a->checkpoint = arg;
        return 0;
    case ARGP_KEY_NO_ARGS:
        argp_error(state, "which checkpoint or job?");
        return 0;
    case ARGP_KEY_END:
        check_chat(a, state);
        return 0;
    default:
        return parse_field(a, key, arg, state);
    }
}

/* Executes the worker. Returns only after an error, with its exit code. */
static int worker_exec(const struct generate_args *args, const char *step_dir)
{
    const char *argv[MAX_ARGS] = {"dt-worker", "--generate", step_dir};
    char program[PATH_MAX], names[FIELDS][24];
    struct why why = {0};
    int n = 3;
    err_t err = daemon_program("dt-worker", program, sizeof(program), &why);
    if (err)
        return command_fail(err, &why);
    if (args->prompt && !args->prompts) {
        argv[n++] = "--prompt";
        argv[n++] = args->prompt;
    }
    for (size_t i = 0; i < FIELDS; i++) {
        const char *value = *field_of(args, &fields[i]);
        if (!value)
            continue;
        snprintf(names[i], sizeof(names[i]), "--%s", fields[i].option);
        argv[n++] = names[i];
        argv[n++] = value;
    }
    for (int i = 0; i < args->n_stops; i++) {
        argv[n++] = "--stop";
        argv[n++] = args->stops[i];
    }
    if (args->chat)
        argv[n++] = "--chat";
    if (args->ignore_eos)
        argv[n++] = "--ignore-eos";
    if (args->json)
        argv[n++] = "--json";
    signal(SIGPIPE, SIG_DFL);
    execv(program, (char **)argv);
    return command_complain(EXIT_ERROR, "%s: %s", program, strerror(errno));
}

/* ---- JSON: the worker is a child process, which prints an object in a line for each text ---- */

struct generate_results {
    struct global *global;
    const char *step_dir;
    json_t *list; /* NULL: each object is printed as soon as it comes */
};

/* Adds the checkpoint to the object. */
static int result_take(const struct generate_results *r, const char *line, size_t len)
{
    json_t *one = json_loadb(line, len, 0, NULL);
    if (!one)
        return command_complain(EXIT_ERROR, "the output of dt-worker is not JSON");
    if (json_object_set_new(one, "checkpoint", json_of_text(r->step_dir, strlen(r->step_dir))) ||
        (r->list && json_array_append(r->list, one))) {
        json_decref(one);
        return command_fail(ERR_NOMEM, NULL);
    }
    if (!r->list)
        return command_json(r->global, one);
    json_decref(one);
    return 0;
}

static int results_read(const struct generate_results *r, int fd)
{
    FILE *f = fdopen(fd, "r");
    char *line = NULL;
    size_t size = 0;
    ssize_t n;
    int code = f ? 0 : command_complain(EXIT_ERROR, "the output of dt-worker: %s", strerror(errno));
    while (!code && (n = getline(&line, &size, f)) > 0)
        code = result_take(r, line, (size_t)n);
    free(line);
    if (f)
        fclose(f);
    else
        close(fd);
    return code;
}

/* Of a conversation on a terminal, Ctrl-C is the worker's: it may end only an answer. */
static int worker_wait(pid_t pid)
{
    int status = 0;
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
        ;
    if (WIFSIGNALED(status) && WTERMSIG(status) == SIGINT) {
        signal(SIGINT, SIG_DFL);
        raise(SIGINT);
    }
    return WIFEXITED(status) ? WEXITSTATUS(status) : EXIT_ERROR;
}

static int worker_read(const struct generate_args *args, const struct generate_results *r)
{
    int fds[2];
    if (pipe2(fds, O_CLOEXEC))
        return command_complain(EXIT_ERROR, "pipe: %s", strerror(errno));
    pid_t pid = fork();
    if (pid == 0) {
        dup2(fds[1], STDOUT_FILENO);
        _exit(worker_exec(args, r->step_dir));
    }
    close(fds[1]);
    if (pid < 0) {
        close(fds[0]);
        return command_complain(EXIT_ERROR, "fork: %s", strerror(errno));
    }
    if (args->chat)
        signal(SIGINT, SIG_IGN);
    const int code = results_read(r, fds[0]), worker = worker_wait(pid);
    return worker ? worker : code;
}

/* One prompt gives an object, several an array, or with jsonl a line each as it comes. If it fails there is no output,
 * except for the answers before the turn of a conversation that failed. */
static int generate_json(struct generate_args *args, const char *step_dir)
{
    const bool conversation = args->chat && !args->prompt, several = args->prompts || conversation;
    struct generate_results r = {args->global, step_dir, args->global->format == OUT_JSON ? json_array() : NULL};
    if (args->global->format == OUT_JSON && !r.list)
        return command_fail(ERR_NOMEM, NULL);
    args->json = true;
    int code = worker_read(args, &r);
    json_t *all = several ? r.list : json_array_get(r.list, 0);
    if (all && (!code || (conversation && json_array_size(r.list)))) {
        const int printed = command_json(args->global, json_incref(all));
        code = code ? code : printed;
    }
    json_decref(r.list);
    return code;
}

int cmd_generate(struct global *g, int argc, char **argv)
{
    static const struct argp argp = {
        .options = options,
        .parser = parse,
        .children = global_children,
        .args_doc = "CHECKPOINT|JOB",
        .doc =
            "Continues a prompt with the model of a checkpoint: a step folder, or the newest one of a folder of "
            "checkpoints or of a job; with --chat, answers it, or without a prompt each line of standard input, as "
            "the turns of a conversation (on a terminal, Ctrl-C ends an answer, and Ctrl-D the conversation). Only a "
            "job's number needs a daemon. The parts of a split model (--tp, --pp) are "
            "threads, each with its share of the parameters and of the cores; the text is the same except for "
            "rounding. A text ends after --tokens, at a token that ends a text (<|endoftext|>, </s> and others that "
            "the "
            "tokenizer has), or before a --stop. With -o json, prints an object with checkpoint, prompt, text (the "
            "prompt included), tokens and ended (length, end or stop); with --prompts an array of them. With --chat, "
            "text is the answer."
            "\vExample:\n  dtctl generate checkpoints/first-job --prompt \"This License\" --tokens 300 --temperature "
            "0.8\n  dtctl generate checkpoints/tuned --chat --system \"Answer briefly.\""};
    struct generate_args args = {.global = g};
    struct why why = {0};
    char step[PATH_MAX];
    command_parse(&argp, argc, argv, &args);
    err_t err = ckpt_step_find(g, args.checkpoint, step, &why);
    if (err)
        return command_fail(err, &why);
    return g->format == OUT_TEXT ? worker_exec(&args, step) : generate_json(&args, step);
}
