/* dt-worker: computes. As a job's worker it is started by the supervisor with its descriptors in place
 * (ARCHITECTURE.md) and does what control commands; by hand it generates text from a checkpoint or tells what the
 * machine has. */
#include "common/base/log.h"
#include "worker/command.h"
#include "worker/generate.h"
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
    KEY_TOKENS,
    KEY_TEMPERATURE,
    KEY_TOP_K,
    KEY_SEED,
    KEY_TP,
    KEY_PP,
    KEY_PROBE,
    KEY_HEALTH,
    KEY_COMMAND
};

const char *argp_program_version = "dt-worker " DTD_VERSION;

static const struct argp_option options[] = {
    {NULL, 0, NULL, 0, "As a job's worker (started by dtd):", 1},
    {"job", KEY_JOB, "ID", 0, "The job", 0},
    {"slot", KEY_SLOT, "K", 0, "Which of the job's workers on this node", 0},
    {"device", KEY_DEVICE, "K", 0, "Which GPU, for a job with run.device cuda (default 0)", 0},
    {"command", KEY_COMMAND, "PROGRAM", 0, "Alone and first: become the program that follows, with its arguments", 0},
    {NULL, 0, NULL, 0, "Text from a checkpoint:", 2},
    {"generate", KEY_GENERATE, "CHECKPOINT", 0, "A step folder", 0},
    {"prompt", KEY_PROMPT, "TEXT", 0, "What to continue (default: nothing)", 0},
    {"tokens", KEY_TOKENS, "N", 0, "How many tokens to make (default 100)", 0},
    {"temperature", KEY_TEMPERATURE, "T", 0, "0: always the likeliest (default 1)", 0},
    {"top-k", KEY_TOP_K, "K", 0, "Choose among the K likeliest (default 0: all)", 0},
    {"seed", KEY_SEED, "S", 0, "The same seed makes the same text (default 1)", 0},
    {"tp", KEY_TP, "N", 0, "Cut every layer in N parts (default 1)", 0},
    {"pp", KEY_PP, "N", 0, "Cut the layers in N stages (default 1)", 0},
    {NULL, 0, NULL, 0, "Facts:", 3},
    {"probe", KEY_PROBE, NULL, 0, "Print what this machine can compute with, as JSON", 0},
    {"health", KEY_HEALTH, NULL, 0, "Print how its GPUs are, without touching them, as JSON", 0},
    {0},
};

struct args {
    const char *job;
    int64_t slot, device;
    bool probe, health;
    struct generate generate;
};

static int64_t whole(struct argp_state *state, const char *option, const char *arg, int64_t max)
{
    char *end;
    errno = 0;
    long long v = strtoll(arg, &end, 10);
    if (errno || end == arg || *end || v < 0 || v > max)
        argp_error(state, "--%s %s: a number from 0 to %lld", option, arg, (long long)max);
    return v;
}

/* Parts of a model. */
static int64_t ways(struct argp_state *state, const char *option, const char *arg)
{
    int64_t v = whole(state, option, arg, GENERATE_MAX_WAYS);
    if (v < 1)
        argp_error(state, "--%s %s: a number from 1 to %d", option, arg, GENERATE_MAX_WAYS);
    return v;
}

static double real(struct argp_state *state, const char *option, const char *arg)
{
    char *end;
    double v = strtod(arg, &end);
    if (end == arg || *end || !(v >= 0.0 && v <= 1000.0))
        argp_error(state, "--%s %s: a number from 0 to 1000", option, arg);
    return v;
}

static void check(const struct args *a, struct argp_state *state)
{
    int modes = (a->job != NULL) + (a->generate.checkpoint != NULL) + a->probe + a->health;
    if (modes != 1)
        argp_error(state, "one of --job, --generate, --probe and --health is needed");
    if (a->job && a->slot < 0)
        argp_error(state, "--job needs --slot");
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
    case KEY_GENERATE:
        a->generate.checkpoint = arg;
        break;
    case KEY_PROMPT:
        a->generate.prompt = arg;
        break;
    case KEY_TOKENS:
        a->generate.tokens = whole(state, "tokens", arg, 1 << 30);
        break;
    case KEY_TEMPERATURE:
        a->generate.temperature = real(state, "temperature", arg);
        break;
    case KEY_TOP_K:
        a->generate.top_k = whole(state, "top-k", arg, INT32_MAX);
        break;
    case KEY_SEED:
        a->generate.seed = (uint64_t)whole(state, "seed", arg, INT64_MAX);
        break;
    case KEY_TP:
        a->generate.tp = ways(state, "tp", arg);
        break;
    case KEY_PP:
        a->generate.pp = ways(state, "pp", arg);
        break;
    case KEY_PROBE:
        a->probe = true;
        break;
    case KEY_HEALTH:
        a->health = true;
        break;
    case KEY_COMMAND:
        argp_error(state, "--command stands first");
        break;
    case ARGP_KEY_END:
        check(a, state);
        break;
    default:
        return ARGP_ERR_UNKNOWN;
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

/* As dtctl: 2 what was asked cannot be done as written, 3 not found, 1 anything else. */
static int complain(err_t err, const struct why *why)
{
    fprintf(stderr, "dt-worker: %s\n", why->text[0] ? why->text : err_text(err));
    return err == ERR_INVALID || err == ERR_UNSUPPORTED ? 2 : err == ERR_NOTFOUND ? 3 : 1;
}

int main(int argc, char **argv)
{
    static const struct argp argp = {
        options, parse, NULL, "Computes for dtd: trains as a job's worker, or continues a prompt.", NULL, NULL, NULL};
    struct args a = {.slot = -1,
                     .generate = {.prompt = "", .tokens = 100, .temperature = 1.0, .seed = 1, .tp = 1, .pp = 1}};
    struct why why = {""};
    if (argc > 1 && strcmp(argv[1], "--command") == 0) /* what follows is the command's own */
        return command_become(argv + 2);
    argp_err_exit_status = 2;
    argp_parse(&argp, argc, argv, 0, NULL, &a);
    if (a.job)
        return serve(&a);
    err_t err = a.probe ? probe_print(&why) : a.health ? probe_health_print(&why) : generate_run(&a.generate, &why);
    return err ? complain(err, &why) : 0;
}
