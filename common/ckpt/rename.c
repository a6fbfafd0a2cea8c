/* Other names for the tensors of an open checkpoint: training wrappers and other programs save the same tensors with
 * prefixes. Only the index in memory changes. */
#include "common/ckpt/ckpt_priv.h"

#include <stdlib.h>
#include <string.h>

#define MOMENTS "optimizer.state." /* a parameter's name follows */

/* Replaces a prefix; NULL: no memory. */
static char *prefix_replace(const char *name, size_t keep, size_t from, const char *to)
{
    char *ret = malloc(strlen(name) + strlen(to) + 1);
    if (!ret)
        return NULL;
    memcpy(ret, name, keep);
    strcpy(ret + keep, to);
    strcat(ret, name + keep + from);
    return ret;
}

/* The checkpoint owns the string from then on. */
static err_t string_keep(struct ckpt *c, char *text)
{
    char **more = text ? realloc(c->kept, ((size_t)c->n_kept + 1) * sizeof(*more)) : NULL;
    if (!more) {
        free(text);
        return ERR_NOMEM;
    }
    c->kept = more;
    more[c->n_kept++] = text;
    return OK;
}

/* Applies the first rule that fits to *name. */
static err_t name_map(struct ckpt *c, const char **name, char *const *rules, int n)
{
    for (int i = 0; i < n; i++) {
        const char *to = strchr(rules[i], '=') + 1;
        size_t from = (size_t)(to - 1 - rules[i]);
        size_t keep = strncmp(*name, rules[i], from) == 0 ? 0 : strlen(MOMENTS);
        if (keep && (strncmp(*name, MOMENTS, keep) != 0 || strncmp(*name + keep, rules[i], from) != 0))
            continue;
        char *next = prefix_replace(*name, keep, from, to);
        err_t err = string_keep(c, next);
        if (!err)
            *name = next;
        return err;
    }
    return OK;
}

static int tensor_compare(const void *a, const void *b)
{
    return strcmp(((const struct ckpt_tensor *)a)->fqn, ((const struct ckpt_tensor *)b)->fqn);
}

static int leaf_compare(const void *a, const void *b)
{
    return strcmp(((const struct meta_leaf *)a)->fqn, ((const struct meta_leaf *)b)->fqn);
}

err_t ckpt_rename(struct ckpt *c, char *const *rules, int n, struct why *why)
{
    struct meta *m = &c->meta;
    err_t err = OK;
    for (int i = 0; n && !err && i < m->n_tensors; i++) {
        const char *name = m->tensors[i].fqn;
        err = name_map(c, &name, rules, n);
        m->tensors[i].fqn =
            (char *)(uintptr_t)name; /* nobody frees it: it points into the strings of `meta` or `kept` */
    }
    for (int i = 0; n && !err && i < m->n_leaves; i++)
        err = name_map(c, &m->leaves[i].fqn, rules, n);
    if (err)
        return why_set(why, err, "%s", err_text(err));
    if (m->n_tensors)
        qsort(m->tensors, (size_t)m->n_tensors, sizeof(*m->tensors), tensor_compare);
    if (m->n_leaves)
        qsort(m->leaves, (size_t)m->n_leaves, sizeof(*m->leaves), leaf_compare);
    for (int i = 1; i < m->n_tensors; i++)
        if (strcmp(m->tensors[i - 1].fqn, m->tensors[i].fqn) == 0)
            return why_set(why, ERR_INVALID, "%s: after the renaming two tensors have the name %.200s", c->dir,
                           m->tensors[i].fqn);
    return OK;
}
