/* Strict number parsing for configuration files: the whole string must be a number, and a value that does not fit is an
 * error. Independent of the locale. Pure. */
#ifndef DTD_COMMON_CONF_NUMBER_H
#define DTD_COMMON_CONF_NUMBER_H

#include <stdint.h>

#define NUMBER_TEXT 40 /* bytes; enough for any printed number */

/* Each writes `ret` and returns NULL, or returns what is wrong ("": it is not a number, and there is no hint to give).
 */
const char *number_int_parse(const char *text, int64_t *ret);
/* The same for an integer with one letter behind it: *ret is multiplied by factors[i] for the letter letters[i].
 * Fractions such as 1.5k are read if the result is whole. */
const char *number_scaled_parse(const char *text, const char *letters, const int64_t *factors, int64_t *ret);
const char *number_uint_parse(const char *text, uint64_t *ret);
const char *number_double_parse(const char *text, double *ret);
/* Writes the shortest form that number_double_parse reads back to the same bits. Finite values only. */
void number_double_print(double value, char ret[NUMBER_TEXT]);

#endif
