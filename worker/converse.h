/* Answers the turns of a conversation with an open model. Keys and values of the conversation stay in the cache, so a
 * turn computes only its own tokens. Private to worker/generate.c. */
#ifndef DTD_WORKER_CONVERSE_H
#define DTD_WORKER_CONVERSE_H

#include "common/data/chat.h"
#include "worker/continue.h"

#include <pthread.h>

/* Through which rank 0, which reads the questions, gives their tokens to the other ranks. */
struct converse_desk {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    int64_t turns;  /* that have been published */
    struct buf ids; /* of the last one */
    bool closed;
};
void converse_desk_init(struct converse_desk *d);
void converse_desk_fini(struct converse_desk *d);
/* No turn follows, because the conversation has ended or a rank has failed. */
void converse_desk_close(struct converse_desk *d);

/* Of one rank. `c` has no prompts; c->ask->prompt NULL: questions come from standard input, one per line. */
struct conversation {
    const struct continuation *c;
    const struct chat *chat;
    struct converse_desk *desk; /* shared by all ranks */
};
/* Whether the template takes the text of a system turn; NULL: there is none. ERR_INVALID as for chat_ask. */
NODISCARD err_t converse_check_system(const struct chat *c, const char *system, struct why *why);
/* ERR_LIMIT: a question does not fit into the window of the model (of a terminal, another question may follow then). */
NODISCARD err_t converse(const struct conversation *v, struct why *why);

#endif
