/* The terminal of `dtctl top`, by ncurses: shows a screen and reads keys. However the process ends, the terminal is as
 * it was before. One thread, one terminal. */
#ifndef DTD_CLIENT_TOP_TERMINAL_H
#define DTD_CLIENT_TOP_TERMINAL_H

#include "client/top/glyphs.h"
#include "common/base/err.h"

/* ERR_INVALID: the terminal's type is unknown or it cannot move its cursor. */
NODISCARD err_t terminal_start(struct why *why);
void terminal_stop(void); /* may be called at any time */
void terminal_size(int *ret_rows, int *ret_columns);
bool terminal_is_utf8(void);
void terminal_show(const struct glyphs *c);
/* The next key that was pressed (keys.h), 0 after a change of the size; -1: none. */
int terminal_key(void);

/* SIGINT, SIGTERM, SIGHUP and SIGQUIT: the number of the one that has arrived, else 0. `terminal_catch` has to be
 * called again after a call of control, which takes SIGINT for itself. */
void terminal_catch(void);
int terminal_signal(void);

#endif
