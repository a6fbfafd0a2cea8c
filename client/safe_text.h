/* Text of users and other programs (names, reasons, log lines) as a terminal may show it. Pure functions; one thread.
 */
#ifndef DTD_CLIENT_SAFE_TEXT_H
#define DTD_CLIENT_SAFE_TEXT_H

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>

#define SAFE_TEXT_ALL INT_MAX

/* Copies `text` without anything that moves the cursor, changes colours or the order of writing: control characters,
 * bytes that are no UTF-8 and characters that a terminal cannot print become '?', invisible ones are left out, a tab or
 * a newline becomes a space. At most `columns` columns; a cut text ends with "~". `utf8` false: everything beyond ASCII
 * becomes '?', one per column. A text that does not fit into `size` bytes is cut there. Returns the columns. */
int safe_text(const char *text, int columns, bool utf8, char *ret, size_t size);
/* The columns of a text that safe_text made. */
int safe_text_width(const char *text);

#endif
