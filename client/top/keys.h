/* What a key of `dtctl top` does: a pure function of the model. */
#ifndef DTD_CLIENT_TOP_KEYS_H
#define DTD_CLIENT_TOP_KEYS_H

#include "client/top/model.h"

/* Keys that are no characters. */
enum top_key { TOP_KEY_UP = 0x1000, TOP_KEY_DOWN, TOP_KEY_PAGE_UP, TOP_KEY_PAGE_DOWN, TOP_KEY_HOME, TOP_KEY_END };
enum { TOP_KEY_ENTER = '\n', TOP_KEY_ESC = 27, TOP_KEY_BACKSPACE = 127 };

/* What the caller has to do. */
enum top_action {
    TOP_DRAW,        /* nothing but to draw again */
    TOP_FETCH,       /* another screen: ask control at once */
    TOP_CANCEL_JOB,  /* view.job */
    TOP_SAVE_CANCEL, /* the same, with a checkpoint */
    TOP_QUIT
};

/* `page`: rows of a page. */
enum top_action top_key(struct top_model *m, int key, int page);

#endif
