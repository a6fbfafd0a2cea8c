/* Shared by regex.c and regex_parse.c. */
#ifndef DTD_COMMON_DATA_REGEX_PRIV_H
#define DTD_COMMON_DATA_REGEX_PRIV_H

#include "common/data/regex.h"
#include "common/data/unicode.h"

#define REGEX_MAX_SETS 250    /* a class is a byte, and PCRE2 may need a few values */
#define REGEX_SET_UNIT 0x100u /* in struct regex_program: unit 0x100 + n is set n; smaller ones are PCRE2's syntax */

struct regex_program {
    struct buf units;                /* uint16_t */
    struct buf sets[REGEX_MAX_SETS]; /* struct unicode_range, ascending, disjoint, not adjacent */
    int n_sets;
};
void regex_program_fini(struct regex_program *p);
NODISCARD err_t regex_parse(const char *pattern, size_t len, enum regex_syntax syntax, struct regex_program *ret,
                            struct why *why);

#endif
