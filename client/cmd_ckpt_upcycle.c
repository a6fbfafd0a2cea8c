/* dtctl ckpt upcycle: a model with experts from a dense checkpoint. */
#include "client/commands.h"
#include "client/json.h"
#include "client/spec_args.h"
#include "client/upcycle.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

struct upcycle_args {
    struct global *global;
    const char *from, *to, *sets[SPEC_SETS_MAX];
    int n_sets;
    char experts[40], per_token[48]; /* the overrides that --experts and --experts-per-token stand for */
};

static const struct argp_option options[] = {
    {"experts", 'e', "N", 0, "Number of experts of a layer (model.experts)", 0},
    {"experts-per-token", 'k', "N", 0, "Number of experts that each token uses (model.experts_per_token; default: 2)",
     0},
    {"set", 's', "KEY=VALUE", 0,
     "Override another key of the experts, as model.moe_every, model.router or train.seed for the routers' numbers", 0},
    {0}};

static void set_add(struct upcycle_args *a, const char *set, struct argp_state *state)
{
    if (a->n_sets == SPEC_SETS_MAX)
        argp_error(state, "there are more than %d overrides", SPEC_SETS_MAX);
    a->sets[a->n_sets++] = set;
}

static error_t parse(int key, char *arg, struct argp_state *state)
{
    struct upcycle_args *a = state->input;
    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = a->global;
        return 0;
    case 'e':
        snprintf(a->experts, sizeof(a->experts), "model.experts=%.20s", arg);
        set_add(a, a->experts, state);
        return 0;
    case 'k':
        snprintf(a->per_token, sizeof(a->per_token), "model.experts_per_token=%.20s", arg);
        set_add(a, a->per_token, state);
        return 0;
    case 's':
        set_add(a, arg, state);
        return 0;
    case ARGP_KEY_ARG:
        if (a->to)
            argp_error(state, "expected two arguments");
        *(a->from ? &a->to : &a->from) = arg;
        return 0;
    case ARGP_KEY_END:
        if (!a->to)
            argp_error(state, "which checkpoint or job, and which new folder?");
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static int print_result(const struct global *g, const struct upcycle_done *d)
{
    char number[OUT_NUMBER];
    if (!d->same)
        fprintf(stderr,
                "dtctl: warning: the weights of a token's experts do not have the sum 1, so the first forward is "
                "not that of the dense model; with model.router softmax_topk it is\n");
    if (g->format != OUT_TEXT)
        return command_json(
            g, json_pack("{s:o, s:i, s:I, s:I, s:I, s:I, s:b}", "path", json_of_text(d->path, strlen(d->path)),
                         "tensors", d->tensors, "parameters", (json_int_t)d->params, "bytes", (json_int_t)d->bytes,
                         "experts", (json_int_t)d->experts, "layers", (json_int_t)d->layers, "same_function", d->same));
    printf("%s  %d tensors, %" PRId64 " parameters, %s\n", d->path, d->tensors, d->params, out_bytes(d->bytes, number));
    printf("%" PRId64 " layers have %" PRId64 " experts, each a copy of the layer's feed-forward; routers are random "
           "(train.seed %" PRIu64 "); all else is copied. Train it: dtctl resume %s --steps N\n",
           d->layers, d->experts, d->seed, d->path);
    return EXIT_DONE;
}

int cmd_ckpt_upcycle(struct global *g, int argc, char **argv)
{
    static const struct argp argp = {
        .options = options,
        .parser = parse,
        .children = global_children,
        .args_doc = "CHECKPOINT|JOB FOLDER",
        .doc = "Makes a model with experts from a checkpoint of a dense llama, as step-0 in FOLDER: each expert starts "
               "as a "
               "copy of its layer's feed-forward, routers start random, and all else is copied. model.router is "
               "softmax_topk unless --set changes it: then the first forward is that of the dense model, whatever "
               "the routers choose. A folder of checkpoints means its newest one.\vExample:\n"
               "  dtctl ckpt upcycle checkpoints/dense checkpoints/experts --experts 8 --experts-per-token 2\n"
               "  dtctl resume checkpoints/experts --steps 1000"};
    struct upcycle_args args = {.global = g, .sets = {"model.router=softmax_topk"}, .n_sets = 1};
    struct upcycle_done done;
    struct why why = {0};
    char dir[PATH_MAX];
    command_parse(&argp, argc, argv, &args);
    err_t err = ckpt_step_find(g, args.from, dir, &why);
    const struct upcycle x = {.step_dir = dir, .out = args.to, .sets = args.sets, .n_sets = args.n_sets};
    err = err ? err : upcycle_run(&x, &done, &why);
    return err ? command_fail(err, &why) : print_result(g, &done);
}
