/* Asks control for what `dtctl top` shows. Each call blocks until the answers are there, at most for some seconds. */
#ifndef DTD_CLIENT_TOP_FETCH_H
#define DTD_CLIENT_TOP_FETCH_H

#include "client/top/model.h"

struct top_fetch {
    const char *dir;       /* the state directory */
    struct client *client; /* NULL: not connected */
    char job[32];          /* whose series and events the model has; "": none, or all jobs' events */
    int64_t series_step, saved_step;
    char events_job[32];
    bool has_events;
    uint64_t last_event;
};

/* Fills the model for the screen that its view chooses. When dtd does not answer, `lost` has the reason, and the model
 * keeps its older data. */
void top_fetch(struct top_fetch *f, struct top_model *m);
/* Cancels the selected job; the result is in view.message. */
void top_fetch_cancel(struct top_fetch *f, struct top_model *m, bool save);
void top_fetch_fini(struct top_fetch *f);
void top_model_fini(struct top_model *m);

#endif
