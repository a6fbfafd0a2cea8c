/* Which cluster a node belongs to, as text behind the argument of a greeting: " ~ID.GENERATION.MS.NODE", 16 hex digits
 * and two decimal numbers. A node whose cluster has no id yet, or of a version without lineages, sends none; an older
 * version ignores it, because what it reads of an argument ends before. Pure. */
#ifndef DTD_COMMON_TUNNEL_LINEAGE_H
#define DTD_COMMON_TUNNEL_LINEAGE_H

#include "common/tunnel/tunnel.h"

#define LINEAGE_TEXT_MAX (2 + 16 + 1 + 20 + 1 + 20 + 1 + TUNNEL_BY_MAX)

/* Appends to `argument`, which has room for TUNNEL_ARGUMENT_MAX characters. Without an id, or if it does not fit,
 * nothing is appended. */
void lineage_append(const struct tunnel_lineage *l, char argument[TUNNEL_ARGUMENT_MAX + 1]);
/* Removes it from the end of `argument`. Without one, *ret is zero. */
void lineage_take(char argument[TUNNEL_ARGUMENT_MAX + 1], struct tunnel_lineage *ret);

#endif
