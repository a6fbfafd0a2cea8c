/* dtctl ckpt export, dtctl ckpt import: conversion to and from Hugging Face models. */
#include "client/commands.h"
#include "client/hf.h"
#include "client/json.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

struct hf_args {
    struct global *global;
    const char *from, *to, *complaint;
    enum dtype dtype;
    int64_t shard_bytes;
};

enum { KEY_SHARD = 256 };

static const struct argp_option export_options[] = {
    {"format", 'f', "FORMAT", 0, "safetensors (the only one, and the default)", 0},
    {"dtype", 't', "TYPE", 0, "float32, bfloat16 or float16 (default: that of the imported model, else float32)", 0},
    {"shard-bytes", KEY_SHARD, "N", 0, "Largest size of a file (default: 5 GiB)", 0},
    {0}};
static const struct argp_option import_options[] = {
    {"format", 'f', "FORMAT", 0, "safetensors (the only one, and the default)", 0}, {0}};

static void parse_dtype(struct hf_args *a, const char *arg, struct argp_state *state)
{
    a->dtype = dtype_parse(arg);
    if (a->dtype != DT_F32 && a->dtype != DT_BF16 && a->dtype != DT_F16)
        argp_error(state, "--dtype %s: the types are float32, bfloat16 and float16", arg);
}

static error_t parse(int key, char *arg, struct argp_state *state)
{
    struct hf_args *a = state->input;
    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = a->global;
        return 0;
    case 'f':
        if (strcmp(arg, "safetensors") != 0)
            argp_error(state, "--format %s: the only format is safetensors", arg);
        return 0;
    case 't':
        parse_dtype(a, arg, state);
        return 0;
    case KEY_SHARD:
        if (!arg_number(arg, INT64_MAX, &a->shard_bytes) || a->shard_bytes < 1)
            argp_error(state, "--shard-bytes %s: expected a number of bytes", arg);
        return 0;
    case ARGP_KEY_ARG:
        if (a->to)
            argp_error(state, "expected two arguments");
        *(a->from ? &a->to : &a->from) = arg;
        return 0;
    case ARGP_KEY_END:
        if (!a->to)
            argp_error(state, "%s", a->complaint);
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static json_t *warnings_json(const struct hf_done *d)
{
    json_t *list = json_array();
    for (int i = 0; list && i < d->n_warnings; i++)
        json_array_append_new(list, json_of_text(d->warnings[i], strlen(d->warnings[i])));
    return list;
}

static int print_result(const struct global *g, const struct hf_done *d)
{
    char number[OUT_NUMBER];
    const char *dtype = d->dtype != DT_NONE ? dtype_name(d->dtype) : NULL;
    for (int i = 0; i < d->n_warnings; i++)
        fprintf(stderr, "dtctl: warning: %s\n", d->warnings[i]);
    if (g->format != OUT_TEXT)
        return command_json(g, json_pack("{s:o, s:i, s:I, s:I, s:i, s:s*, s:o}", "path",
                                         json_of_text(d->path, strlen(d->path)), "tensors", d->tensors, "parameters",
                                         (json_int_t)d->params, "bytes", (json_int_t)d->bytes, "files", d->files,
                                         "dtype", dtype, "warnings", warnings_json(d)));
    printf("%s  %d tensors, %" PRId64 " parameters%s%s, %s in %d file%s\n", d->path, d->tensors, d->params,
           dtype ? " in " : "", dtype ? dtype : "", out_bytes(d->bytes, number), d->files, d->files == 1 ? "" : "s");
    return EXIT_DONE;
}

int cmd_ckpt_export(struct global *g, int argc, char **argv)
{
    static const struct argp argp = {
        .options = export_options,
        .parser = parse,
        .children = global_children,
        .args_doc = "CHECKPOINT|JOB DIR",
        .doc = "Writes a checkpoint's parameters as a Hugging Face model: model.safetensors (or several files with an "
               "index), config.json, and the tokenizer's files. Of an imported model, also its generation_config.json, "
               "chat template and the keys of config.json that training does not change. DIR must be empty or not "
               "exist. A folder of checkpoints "
               "means its newest one.\vExample:\n  dtctl ckpt export checkpoints/first-job my-model --dtype bfloat16"};
    struct hf_args args = {.global = g,
                           .dtype = DT_NONE,
                           .shard_bytes = HF_SHARD_BYTES,
                           .complaint = "which checkpoint or job, and which folder to write?"};
    struct hf_done done;
    struct why why = {0};
    char dir[PATH_MAX];
    command_parse(&argp, argc, argv, &args);
    err_t err = ckpt_step_find(g, args.from, dir, &why);
    const struct hf_export x = {.step_dir = dir, .dir = args.to, .dtype = args.dtype, .shard_bytes = args.shard_bytes};
    err = err ? err : hf_export(&x, &done, &why);
    return err ? command_fail(err, &why) : print_result(g, &done);
}

int cmd_ckpt_import(struct global *g, int argc, char **argv)
{
    static const struct argp argp = {
        .options = import_options,
        .parser = parse,
        .children = global_children,
        .args_doc = "DIR JOB.yaml|FOLDER",
        .doc = "Makes a checkpoint step-0 from a Hugging Face model (gpt2, llama and its relatives, such as mistral, "
               "qwen3, phi3, gemma2 and olmo2, and mixtral, qwen2_moe, qwen3_moe and olmoe). With a job file, the "
               "checkpoint is written into its checkpoint.dir, and `dtctl resume` trains it. With FOLDER, it is "
               "written there, with a "
               "job file made from config.json, for `dtctl generate` or `dtctl resume --set data.train=...`."
               "\vExamples:\n  dtctl ckpt import gpt2 finetune.yaml && dtctl resume checkpoints/finetune\n"
               "  dtctl ckpt import gpt2 imported && dtctl generate imported --prompt 'Hello'"};
    struct hf_args args = {.global = g, .complaint = "which model folder, and which job file or new folder?"};
    struct hf_done done;
    struct why why = {0};
    struct stat st;
    command_parse(&argp, argc, argv, &args);
    size_t n = strlen(args.to);
    bool yaml = (n > 5 && strcmp(args.to + n - 5, ".yaml") == 0) || (n > 4 && strcmp(args.to + n - 4, ".yml") == 0);
    bool job = yaml || (!stat(args.to, &st) && S_ISREG(st.st_mode));
    const struct hf_import x = {.dir = args.from, .job = job ? args.to : NULL, .out = job ? NULL : args.to};
    err_t err = hf_import(&x, &done, &why);
    return err ? command_fail(err, &why) : print_result(g, &done);
}
