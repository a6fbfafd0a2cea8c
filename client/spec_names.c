/* Names that newer versions of torchtitan give to the tensors of a llama. A checkpoint that has one of them, and not
 * dtd's, is read by rules of checkpoint.map, which travel with the job, so that every dtd-io reads the same names. A
 * job with rules of the user gets no others: the first rule that fits a name is the only one for it. */
#include "client/spec.h"

#include <stdlib.h>
#include <string.h>

/* Rules of ckpt_rename. The suffixes E, F and D are torchtitan's: experts, width of an expert, width of the model. */
static const struct {
    const char *from, *to;
} aliases[] = {
    {"layers.*.moe.routed_experts.inner_experts.w1_EFD", "layers.*.moe.experts.w1"}, /* since July 2026 */
    {"layers.*.moe.routed_experts.inner_experts.w2_EDF", "layers.*.moe.experts.w2"},
    {"layers.*.moe.routed_experts.inner_experts.w3_EFD", "layers.*.moe.experts.w3"},
    {"layers.*.moe.experts.w1_EFD", "layers.*.moe.experts.w1"}, /* from May to July 2026 */
    {"layers.*.moe.experts.w2_EDF", "layers.*.moe.experts.w2"},
    {"layers.*.moe.experts.w3_EFD", "layers.*.moe.experts.w3"},
    {"layers.*.attention.qkv_linear.", "layers.*.attention."},
    {"lm_head.weight", "output.weight"},
};
/* Only for a model that has such biases: without them spec_ckpt.c names the numbers that would be lost. */
#define BIAS_FROM "layers.*.moe.expert_bias_E"
#define N_ALIASES (sizeof(aliases) / sizeof(aliases[0]))

/* Whether a name begins with a pattern, whose `*` stands for a component. */
static bool begins_with(const char *name, const char *pattern)
{
    for (; *pattern; pattern++)
        if (*pattern == '*')
            name += strcspn(name, ".");
        else if (*name++ != *pattern)
            return false;
    return true;
}

static bool has_name(const struct ckpt *ckpt, const char *pattern)
{
    const struct ckpt_tensor *list;
    int n = ckpt_tensors(ckpt, &list);
    for (int i = 0; i < n; i++)
        if (begins_with(list[i].fqn, pattern))
            return true;
    return false;
}

static err_t rule_add(struct job_spec *job, const char *from, const char *to)
{
    struct job_checkpoint *c = &job->checkpoint;
    char *rule = malloc(strlen(from) + strlen(to) + 2);
    char **more = rule ? realloc(c->map, ((size_t)c->n_map + 1) * sizeof(*more)) : NULL;
    if (!more) {
        free(rule);
        return ERR_NOMEM;
    }
    sprintf(rule, "%s=%s", from, to);
    c->map = more;
    more[c->n_map++] = rule;
    return OK;
}

err_t spec_names_adopt(struct job_spec *job, struct ckpt *ckpt, const char *dir, struct why *why)
{
    err_t err = OK;
    if (job->model.arch != ARCH_LLAMA || job->checkpoint.n_map)
        return OK;
    for (size_t i = 0; !err && i < N_ALIASES; i++)
        if (has_name(ckpt, aliases[i].from))
            err = rule_add(job, aliases[i].from, aliases[i].to);
    if (!err && job->model.expert_bias > 0 && has_name(ckpt, BIAS_FROM))
        err = rule_add(job, BIAS_FROM, "layers.*.moe.expert_bias");
    if (err)
        return why_set(why, err, "%s", err_text(err));
    err = ckpt_rename(ckpt, job->checkpoint.map, job->checkpoint.n_map, why);
    for (int i = 0; !err && i < job->checkpoint.n_map; i++)
        fprintf(stderr, "dtctl: note: %s has names of a newer torchtitan: --map '%s' is used\n", dir,
                job->checkpoint.map[i]);
    return err;
}
