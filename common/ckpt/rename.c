/* Other names for the tensors of an open checkpoint: training wrappers and other programs save the same tensors with
 * prefixes. Only the index in memory changes. */
#include "common/ckpt/ckpt_priv.h"

#include <stdlib.h>
#include <string.h>

#define MOMENTS "optimizer.state." /* a parameter's name follows */

/* A rule that fits a name: name[keep ..] begins with FROM, whose `*` stands for name[star .. star + star_len). */
struct match {
    size_t keep, from; /* lengths */
    size_t star, star_len;
};

/* Whether name[keep ..] begins with rule[0 .. len). A `*` stands for one component: what is before the next dot. */
static bool rule_fits(const char *rule, size_t len, const char *name, size_t keep, struct match *ret)
{
    struct match m = {.keep = keep};
    size_t at = keep;
    for (size_t i = 0; i < len; i++) {
        if (rule[i] != '*') {
            if (name[at++] != rule[i])
                return false;
            continue;
        }
        m.star = at;
        m.star_len = strcspn(name + at, ".");
        if (!m.star_len)
            return false;
        at += m.star_len;
    }
    m.from = at - keep;
    *ret = m;
    return true;
}

/* The name after the rule; NULL: no memory. */
static char *name_replace(const char *name, const struct match *m, const char *to)
{
    char *ret = malloc(strlen(name) + strlen(to) + m->star_len + 1);
    const size_t before = strcspn(to, "*");
    if (!ret)
        return NULL;
    memcpy(ret, name, m->keep);
    memcpy(ret + m->keep, to, before);
    size_t n = m->keep + before;
    if (to[before]) {
        memcpy(ret + n, name + m->star, m->star_len);
        strcpy(ret + n + m->star_len, to + before + 1);
    } else {
        ret[n] = '\0';
    }
    strcat(ret, name + m->keep + m->from);
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
        size_t from = (size_t)(to - 1 - rules[i]), keep = strlen(MOMENTS);
        struct match m;
        if (!rule_fits(rules[i], from, *name, 0, &m) &&
            (strncmp(*name, MOMENTS, keep) != 0 || !rule_fits(rules[i], from, *name, keep, &m)))
            continue;
        char *next = name_replace(*name, &m, to);
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
        m->tensors[i].fqn = (char *)(uintptr_t)name; /* never freed: it points into the strings of `meta` or `kept` */
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
