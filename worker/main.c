/* dt-worker: runs the computations of a job. The supervisor starts it as a job's worker with open descriptors
 * (ARCHITECTURE.md), and it executes the commands of control. A user can run it to generate text from a checkpoint or
 * to print the machine's processors and GPUs. */
#include "common/base/log.h"
#include "common/base/output.h"
#include "worker/command.h"
#include "worker/generate.h"
#include "worker/measure.h"
#include "worker/probe.h"
#include "worker/train.h"

#include <argp.h>
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

enum { FD_TICKET = 3, FD_SEGMENT = 4, FD_ARENA = 5 };
enum {
    KEY_JOB = 256,
    KEY_SLOT,
    KEY_DEVICE,
    KEY_GENERATE,
    KEY_PROMPT,
    KEY_CHAT,
    KEY_TEMPLATE,
    KEY_SYSTEM,
    KEY_TOKENS,
    KEY_TEMPERATURE,
    KEY_TOP_K,
    KEY_TOP_P,
    KEY_MIN_P,
    KEY_PENALTY,
    KEY_STOP,
    KEY_IGNORE_EOS,
    KEY_PROMPTS,
    KEY_BATCH,
    KEY_JSON,
    KEY_SEED,
    KEY_TP,
    KEY_PP,
    KEY_DTYPE,
    KEY_PROBE,
    KEY_HEALTH,
    KEY_MEASURE,
    KEY_BRIEF,
    KEY_FOLDER,
    KEY_COMMAND
};

const char *argp_program_version = "dt-worker " DTD_VERSION;

static const struct argp_option options[] = {
    {NULL, 0, NULL, 0, "As a job's worker (started by dtd):", 1},
    {"job", KEY_JOB, "ID", 0, "The job", 0},
    {"slot", KEY_SLOT, "K", 0, "Number of the worker among the job's workers on this node", 0},
    {"device", KEY_DEVICE, "K", 0, "Index of the GPU, for a job with run.device cuda (default 0)", 0},
    {"command", KEY_COMMAND, "PROGRAM", 0, "Execute the program with its arguments; must be the first option", 0},
    {NULL, 0, NULL, 0, "Generate text from a checkpoint:", 2},
    {"generate", KEY_GENERATE, "CHECKPOINT", 0, "Step folder of the checkpoint", 0},
    {"prompt", KEY_PROMPT, "TEXT", 0, "Text to continue (default: empty)", 0},
    {"chat", KEY_CHAT, NULL, 0, "Answer the prompt, or each line of standard input, as a turn of a conversation", 0},
    {"template", KEY_TEMPLATE, "NAME", 0, "With --chat: the chat template (default: the checkpoint's)", 0},
    {"system", KEY_SYSTEM, "TEXT", 0, "With --chat: the system message", 0},
    {"tokens", KEY_TOKENS, "N", 0, "Number of tokens to generate (default 100, of an answer 1000)", 0},
    {"temperature", KEY_TEMPERATURE, "T", 0, "0: always choose the most likely token (default 1)", 0},
    {"top-k", KEY_TOP_K, "K", 0, "Choose among the K most likely tokens (default 0: all)", 0},
    {"top-p", KEY_TOP_P, "P", 0, "Choose among the most likely tokens that have probability P together (default 1)", 0},
    {"min-p", KEY_MIN_P, "P", 0, "Choose among tokens at least P times as likely as the best (default 0)", 0},
    {"repetition-penalty", KEY_PENALTY, "X", 0, "Make tokens of the text less likely (default 1: no change)", 0},
    {"stop", KEY_STOP, "TEXT", 0, "End the text before TEXT; may be repeated", 0},
    {"ignore-eos", KEY_IGNORE_EOS, NULL, 0, "Go on after a token that ends a text", 0},
    {"prompts", KEY_PROMPTS, "FILE", 0, "Continue every line of FILE, or the prompt of every line of JSON", 0},
    {"batch", KEY_BATCH, "N", 0, "Prompts at a time (default 8)", 0},
    {"json", KEY_JSON, NULL, 0, "Print a line of JSON for each prompt", 0},
    {"seed", KEY_SEED, "S", 0, "Seed of the random numbers; the same seed gives the same text (default 1)", 0},
    {"dtype", KEY_DTYPE, "TYPE", 0, "float32 (default) or bfloat16", 0},
    {"tp", KEY_TP, "N", 0, "Degree of tensor parallelism (default 1)", 0},
    {"pp", KEY_PP, "N", 0, "Number of pipeline stages (default 1)", 0},
    {NULL, 0, NULL, 0, "Inspect this machine:", 3},
    {"probe", KEY_PROBE, NULL, 0, "Print processors, memory and GPUs as JSON", 0},
    {"health", KEY_HEALTH, NULL, 0, "Print the health of the GPUs as JSON, without using them", 0},
    {"measure", KEY_MEASURE, NULL, 0, "Measure the processors, and print lines of JSON (dtctl plan --calibrate)", 0},
    {"brief", KEY_BRIEF, NULL, 0, "With --measure: only rates, without the table of times", 0},
    {"folder", KEY_FOLDER, "DIR", 0, "With --measure: the folder whose storage is measured (default: the current one)",
     0},
    {0},
};

struct args {
    const char *job;
    int64_t slot, device;
    bool probe, health, measure, brief;
    const char *folder;
    struct generate generate;
};

static int64_t whole(struct argp_state *state, const char *option, const char *arg, int64_t max)
{
    char *end;
    errno = 0;
    long long v = strtoll(arg, &end, 10);
    if (errno || end == arg || *end || v < 0 || v > max)
        argp_error(state, "--%s %s: expected a number from 0 to %lld", option, arg, (long long)max);
    return v;
}

static int64_t positive(struct argp_state *state, const char *option, const char *arg, int max)
{
    int64_t v = whole(state, option, arg, max);
    if (v < 1)
        argp_error(state, "--%s %s: expected a number from 1 to %d", option, arg, max);
    return v;
}

static double real(struct argp_state *state, const char *option, const char *arg, int max)
{
    char *end;
    double v = strtod(arg, &end);
    if (end == arg || *end || !(v >= 0.0 && v <= max))
        argp_error(state, "--%s %s: expected a number from 0 to %d", option, arg, max);
    return v;
}

static enum dtype compute_type(struct argp_state *state, const char *arg)
{
    const enum dtype type = dtype_parse(arg);
    if (type != DT_F32 && type != DT_BF16)
        argp_error(state, "--dtype %s: expected float32 or bfloat16", arg);
    return type;
}

static void add_stop(struct generate *g, const char *arg, struct argp_state *state)
{
    if (!*arg || g->n_stops == GENERATE_MAX_STOPS)
        argp_error(state, "--stop '%s': expected at most %d texts, none of them empty", arg, GENERATE_MAX_STOPS);
    g->stops[g->n_stops++] = arg;
}

static void check_generate(const struct generate *g, struct argp_state *state)
{
    if (g->prompts && g->prompt && *g->prompt)
        argp_error(state, "use either --prompt or --prompts");
    if (!g->chat && (g->template || g->system))
        argp_error(state, "--%s needs --chat", g->template ? "template" : "system");
    if (g->chat && (g->prompts || g->ignore_eos))
        argp_error(state, "use either --chat or --%s", g->prompts ? "prompts" : "ignore-eos");
}

static void check(const struct args *a, struct argp_state *state)
{
    int modes = (a->job != NULL) + (a->generate.checkpoint != NULL) + a->probe + a->health + a->measure;
    if (modes != 1)
        argp_error(state, "use exactly one of --job, --generate, --probe, --health and --measure");
    if ((a->brief || a->folder) && !a->measure)
        argp_error(state, "--%s needs --measure", a->brief ? "brief" : "folder");
    if (a->job && a->slot < 0)
        argp_error(state, "--job needs --slot");
    check_generate(&a->generate, state);
}

/* How tokens are drawn; false: the option is another. */
static bool parse_rule(struct generate *g, int key, const char *arg, struct argp_state *state)
{
    switch (key) {
    case KEY_TEMPERATURE:
        g->rule.temperature = real(state, "temperature", arg, 1000);
        break;
    case KEY_TOP_K:
        g->rule.top_k = whole(state, "top-k", arg, INT32_MAX);
        break;
    case KEY_TOP_P:
        g->rule.top_p = real(state, "top-p", arg, 1);
        break;
    case KEY_MIN_P:
        g->rule.min_p = real(state, "min-p", arg, 1);
        break;
    case KEY_PENALTY:
        g->rule.penalty = real(state, "repetition-penalty", arg, 100);
        break;
    case KEY_SEED:
        g->rule.seed = (uint64_t)whole(state, "seed", arg, INT64_MAX);
        break;
    default:
        return false;
    }
    return true;
}

static bool parse_generate(struct generate *g, int key, const char *arg, struct argp_state *state)
{
    switch (key) {
    case KEY_GENERATE:
        g->checkpoint = arg;
        break;
    case KEY_PROMPT:
        g->prompt = arg;
        break;
    case KEY_CHAT:
        g->chat = true;
        break;
    case KEY_TEMPLATE:
        g->template = arg;
        break;
    case KEY_SYSTEM:
        g->system = arg;
        break;
    case KEY_TOKENS:
        g->tokens = whole(state, "tokens", arg, 1 << 30);
        break;
    case KEY_STOP:
        add_stop(g, arg, state);
        break;
    case KEY_IGNORE_EOS:
        g->ignore_eos = true;
        break;
    case KEY_PROMPTS:
        g->prompts = arg;
        break;
    case KEY_BATCH:
        g->batch = positive(state, "batch", arg, GENERATE_MAX_BATCH);
        break;
    case KEY_JSON:
        g->json = true;
        break;
    case KEY_DTYPE:
        g->dtype = compute_type(state, arg);
        break;
    case KEY_TP:
        g->tp = positive(state, "tp", arg, GENERATE_MAX_WAYS);
        break;
    case KEY_PP:
        g->pp = positive(state, "pp", arg, GENERATE_MAX_WAYS);
        break;
    default:
        return parse_rule(g, key, arg, state);
    }
    return true;
}

static error_t parse(int key, char *arg, struct argp_state *state)
{
    struct args *a = state->input;
    switch (key) {
    case KEY_JOB:
        a->job = arg;
        break;
    case KEY_SLOT:
        a->slot = whole(state, "slot", arg, 1 << 16);
        break;
    case KEY_DEVICE:
        a->device = whole(state, "device", arg, 1 << 10);
        break;
    case KEY_PROBE:
        a->probe = true;
        break;
    case KEY_HEALTH:
        a->health = true;
        break;
    case KEY_MEASURE:
        a->measure = true;
        return 0;
    case KEY_BRIEF:
        a->brief = true;
        break;
    case KEY_FOLDER:
        a->folder = arg;
        break;
    case KEY_COMMAND:
        argp_error(state, "--command must be the first option");
        break;
    case ARGP_KEY_END:
        check(a, state);
        break;
    default:
        return parse_generate(&a->generate, key, arg, state) ? 0 : ARGP_ERR_UNKNOWN;
    }
    return 0;
}

static int serve(const struct args *a)
{
    struct train_config train = {
        .job = a->job, .segment_fd = FD_SEGMENT, .arena_fd = FD_ARENA, .device = (int)a->device};
    struct link_config config = {.job = a->job, .slot = (int)a->slot};
    struct why why = {""};
    log_init("dt-worker");
    err_t err = ticket_read(FD_TICKET, &config.ticket, &why);
    if (err) {
        log_error("no ticket descriptor=%d why=\"%s\"", FD_TICKET, why.text);
        return 1;
    }
    signal(SIGPIPE, SIG_IGN);
    err = link_start(&config, &train.link);
    if (err)
        return 1;
    err = train_serve(&train);
    link_stop(train.link);
    return err ? 1 : 0;
}

/* Prints the error and returns the exit status, as dtctl does: 2 invalid request, 3 not found, 1 any other error. */
static int complain(err_t err, const struct why *why)
{
    fprintf(stderr, "dt-worker: %s\n", why->text[0] ? why->text : err_text(err));
    return err == ERR_INVALID || err == ERR_UNSUPPORTED ? 2 : err == ERR_NOTFOUND ? 3 : 1;
}

int main(int argc, char **argv)
{
    static const struct argp argp = {options, parse, NULL, "Trains as the worker of a dtd job, or continues a prompt.",
                                     NULL,    NULL,  NULL};
    struct args a = {
        .slot = -1,
        .generate = {
            .tokens = -1, .rule = {.temperature = 1.0, .seed = 1}, .batch = 8, .dtype = DT_F32, .tp = 1, .pp = 1}};
    struct why why = {""};
    if (argc > 1 && strcmp(argv[1], "--command") == 0) /* the remaining arguments belong to the program */
        return command_become(argv + 2);
    output_check_at_exit("dt-worker");
    argp_err_exit_status = 2;
    argp_parse(&argp, argc, argv, 0, NULL, &a);
    if (a.job)
        return serve(&a);
    err_t err = a.probe     ? probe_print(&why)
                : a.health  ? probe_health_print(&why)
                : a.measure ? measure_print(a.brief, a.folder ? a.folder : ".", &why)
                            : generate_run(&a.generate, &why);
    return err ? complain(err, &why) : 0;
}
