/* A YAML document as a tree with line numbers. Only the part of YAML that configuration files need is accepted: maps,
 * lists and scalars. Anchors, aliases, tags and a second document are errors. Size, depth and number of nodes are
 * bounded, so the cost of a hostile document is proportional to its length. The caller owns the tree. */
#ifndef DTD_COMMON_CONF_TREE_H
#define DTD_COMMON_CONF_TREE_H

#include "common/base/err.h"

#include <stdbool.h>
#include <stddef.h>

#define TREE_MAX_BYTES (8u << 20)
#define TREE_MAX_DEPTH 16
#define TREE_MAX_NODES 262144
#define TREE_MAX_KEYS 1024 /* in one map: the search for duplicates compares each key with all others */

enum tree_kind { TREE_SCALAR, TREE_LIST, TREE_MAP };

struct tree_node {
    enum tree_kind kind;
    int line;                       /* 1-based */
    bool plain;                     /* a scalar without quotes; only plain scalars can be numbers, bools or null */
    char *key;                      /* in a map; NULL elsewhere */
    char *text;                     /* of a scalar; contains no NUL */
    struct tree_node *first, *next; /* children, in the order of the document */
};

/* What is wrong, and the line (0: no particular line). */
struct tree_error {
    int line;
    char text[256];
};

/* ERR_INVALID or ERR_LIMIT, and `ret_error` is set. An empty document gives a plain scalar with an empty text. */
NODISCARD err_t tree_parse(const char *text, size_t len, struct tree_node **ret, struct tree_error *ret_error);
void tree_free(struct tree_node *node);
/* True if the value is missing: "key:", "~" or "null". */
bool tree_is_null(const struct tree_node *node);

#endif
