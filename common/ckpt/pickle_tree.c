/* Access to the tree of nodes. Every function accepts the result of any other, including NULL, so a chain of look-ups
 * needs only one check at its end. */
#include "common/ckpt/pickle.h"

#include <string.h>

const char *pickle_text(const struct pickle_node *n)
{
    return n && n->kind == PK_STR && strlen(n->s) == n->len ? n->s : NULL;
}

const struct pickle_node *pickle_item(const struct pickle *p, const struct pickle_node *n, uint32_t k)
{
    if (!n || (n->kind != PK_TUPLE && n->kind != PK_LIST) || k >= n->len)
        return NULL;
    return pickle_node(p, p->items[n->items + k]);
}

const struct pickle_node *pickle_get(const struct pickle *p, const struct pickle_node *n, const char *key)
{
    if (n && n->kind == PK_CALL)
        n = n->c == PICKLE_NIL ? NULL : pickle_node(p, n->c);
    if (!n || n->kind != PK_DICT || n->len > PICKLE_MAX_ATTRS)
        return NULL;
    for (uint32_t k = n->len; k-- > 0;) {
        const char *s = pickle_text(pickle_node(p, p->items[n->items + 2 * k]));
        if (s && strcmp(s, key) == 0)
            return pickle_node(p, p->items[n->items + 2 * k + 1]);
    }
    return NULL;
}

bool pickle_is_call(const struct pickle *p, const struct pickle_node *n, enum pickle_global global)
{
    if (!n || n->kind != PK_CALL)
        return false;
    const struct pickle_node *f = pickle_node(p, n->a);
    return f->kind == PK_GLOBAL && f->global == global;
}

const char *pickle_global_name(const struct pickle *p, const struct pickle_node *n, const char *module)
{
    if (!n || n->kind != PK_GLOBAL)
        return NULL;
    const char *m = pickle_text(pickle_node(p, n->a));
    return m && strcmp(m, module) == 0 ? pickle_text(pickle_node(p, n->b)) : NULL;
}

bool pickle_dims(const struct pickle *p, const struct pickle_node *n, int max, int64_t *ret, int *ret_n)
{
    if (pickle_is_call(p, n, PG_SIZE))
        n = pickle_item(p, pickle_node(p, n->b), 0);
    if (!n || n->kind != PK_TUPLE || n->len > (uint32_t)max)
        return false;
    for (uint32_t i = 0; i < n->len; i++) {
        const struct pickle_node *v = pickle_item(p, n, i);
        if (v->kind != PK_INT || v->i < 0)
            return false;
        ret[i] = v->i;
    }
    *ret_n = (int)n->len;
    return true;
}
