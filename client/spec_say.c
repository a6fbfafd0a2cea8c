/* The plan of a job, for people and for scripts. */
#include "client/json.h"
#include "client/spec.h"

#include <inttypes.h>
#include <string.h>

static const char *const space_names[SPACE_COUNT] = {[SPACE_PARAM] = "parameters",
                                                     [SPACE_OPT] = "optimizer",
                                                     [SPACE_GRAD] = "gradients",
                                                     [SPACE_WORK] = "activations",
                                                     [SPACE_HOST] = "host"};

static void memory_print(const struct spec_facts *f)
{
    char a[OUT_NUMBER], b[OUT_NUMBER], c[OUT_NUMBER];
    if (f->memory.device_bytes)
        printf("  GPU memory %s per worker\n", out_bytes(f->memory.device_bytes, a));
    printf("  Memory     %s per worker, %s in all; %s free on this node\n", out_bytes(f->memory.host_bytes, a),
           out_bytes(f->memory.host_bytes * f->workers, b), out_bytes(f->node_bytes, c));
    for (int s = 0; s < SPACE_COUNT; s++)
        if (f->memory.bytes[s])
            printf("    %-12s %10s\n", space_names[s], out_bytes(f->memory.bytes[s], a));
    printf("    %-12s %10s\n", "snapshot", out_bytes(f->memory.arena_bytes, a));
}

/* "rank 0: 3, rank 1: 3, ranks 2-3: 2" */
static void shares_print(const struct spec_facts *f)
{
    for (int first = 0, last; first < f->workers; first = last + 1) {
        for (last = first; last + 1 < f->workers && f->micros[last + 1] == f->micros[first];)
            last++;
        if (first == last)
            printf("%srank %d: %d", first ? ", " : "", first, f->micros[first]);
        else
            printf("%sranks %d-%d: %d each", first ? ", " : "", first, last, f->micros[first]);
    }
    putchar('\n');
}

void spec_facts_print(const struct job_spec *job, const struct spec_facts *f)
{
    char a[OUT_NUMBER], b[OUT_NUMBER];
    printf("job %s can run: %s parameters, %" PRId64 " steps of %" PRId64 " tokens, %d worker%s\n", job->name,
           out_count((double)f->params, a), job->train.steps, job->train.global_batch * job->train.seq, f->workers,
           f->workers == 1 ? "" : "s");
    printf("  Data       %" PRId64 " tokens, %" PRId64 " samples of %" PRId64 "; vocabulary %" PRId64 " of %" PRId64
           " rows\n",
           f->train_tokens, f->train_samples, job->train.seq, f->vocab, job->model.vocab);
    if (f->valid_tokens)
        printf("  Validation %" PRId64 " tokens, %" PRId64 " samples\n", f->valid_tokens, f->valid_samples);
    printf("  Passes     %.2f over the data\n",
           (double)(job->train.steps * job->train.global_batch) / (double)f->train_samples);
    printf("  Compute    %s FLOP a token, %s a step\n", out_count(f->flops_per_token, a),
           out_count(f->flops_per_token * (double)(job->train.global_batch * job->train.seq), b));
    printf("  Step       %d microbatches: ", f->n_micros);
    shares_print(f);
    memory_print(f);
    printf("  Checkpoint every %" PRId64 " steps in %s\n", job->checkpoint.every, job->checkpoint.dir);
}

json_t *spec_facts_json(const struct job_spec *job, const struct spec_facts *f)
{
    json_t *micros = json_array(), *memory = json_object();
    for (int rank = 0; rank < f->workers; rank++)
        json_array_append_new(micros, json_integer(f->micros[rank]));
    for (int s = 0; s < SPACE_COUNT; s++)
        json_object_set_new(memory, space_names[s], json_integer(f->memory.bytes[s]));
    json_object_set_new(memory, "snapshot", json_integer(f->memory.arena_bytes));
    json_object_set_new(memory, "device", json_integer(f->memory.device_bytes));
    json_object_set_new(memory, "node", json_integer(f->memory.host_bytes));
    json_object_set_new(memory, "total", json_integer(f->memory.total_bytes));
    return json_pack("{s:s, s:I, s:I, s:I, s:I, s:f, s:I, s:I, s:I, s:I, s:I, s:i, s:o, s:o, s:o}", "name", job->name,
                     "parameters", (json_int_t)f->params, "steps", (json_int_t)job->train.steps, "tokens_per_step",
                     (json_int_t)job->train.global_batch * (json_int_t)job->train.seq, "vocab", (json_int_t)f->vocab,
                     "flops_per_token", f->flops_per_token, "train_tokens", (json_int_t)f->train_tokens,
                     "train_samples", (json_int_t)f->train_samples, "valid_tokens", (json_int_t)f->valid_tokens,
                     "valid_samples", (json_int_t)f->valid_samples, "node_bytes", (json_int_t)f->node_bytes, "workers",
                     f->workers, "microbatches", micros, "memory_per_worker", memory, "checkpoint_dir",
                     json_of_text(job->checkpoint.dir, strlen(job->checkpoint.dir)));
}
