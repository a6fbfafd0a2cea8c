/* Numbers as a person writes them, read strictly: the whole text or nothing, no silent wrap, no guessing. Independent
 * of the locale. Pure. */
#ifndef DTD_COMMON_CONF_NUMBER_H
#define DTD_COMMON_CONF_NUMBER_H

#include <stdint.h>

#define NUMBER_TEXT 40 /* room for any printed number */

/* Each returns NULL and writes `ret`, or returns what is wrong ("" when there is nothing to add to "not a number"). */
const char *number_int_parse(const char *text, int64_t *ret);
const char *number_uint_parse(const char *text, uint64_t *ret);
const char *number_double_parse(const char *text, double *ret);
/* The shortest form that number_double_parse reads back to the same bits; finite values only. */
void number_double_print(double value, char ret[NUMBER_TEXT]);

#endif
