/* A YAML document as a tree that remembers its lines. Only the plain part of YAML that a person writes in a
 * configuration is taken: maps, lists and scalars. Anchors, aliases, tags and second documents are refused, and size,
 * depth and number of nodes are bounded, so that a hostile document costs no more than its length. The caller owns the
 * tree. */
#ifndef DTD_COMMON_CONF_TREE_H
#define DTD_COMMON_CONF_TREE_H

#include "common/base/err.h"

#include <stdbool.h>
#include <stddef.h>

#define TREE_MAX_BYTES (8u << 20)
#define TREE_MAX_DEPTH 16
#define TREE_MAX_NODES 262144
#define TREE_MAX_KEYS 1024 /* of one map: duplicates are looked for one against all */

enum tree_kind { TREE_SCALAR, TREE_LIST, TREE_MAP };

struct tree_node {
    enum tree_kind kind;
    int line;   /* 1-based */
    bool plain; /* a scalar without quotes: only such a one can be a number, a bool or nothing at all */
    char *key;  /* in a map; NULL elsewhere */
    char *text; /* of a scalar, without NULs inside */
    struct tree_node *first, *next; /* children, in the order of the document */
};

/* What is wrong and in which line (0: no particular one). */
struct tree_error {
    int line;
    char text[256];
};

/* ERR_INVALID or ERR_LIMIT with `ret_error` filled in; an empty document is a plain scalar without text. */
NODISCARD err_t tree_parse(const char *text, size_t len, struct tree_node **ret, struct tree_error *ret_error);
void tree_free(struct tree_node *node);
/* Nothing was written: "key:", "~" or "null". */
bool tree_is_null(const struct tree_node *node);

#endif
