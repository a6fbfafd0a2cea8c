/* Shared by the two loops over tokens: continue.c continues prompts, and converse.c answers turns of a conversation. */
#ifndef DTD_WORKER_CONTINUE_PRIV_H
#define DTD_WORKER_CONTINUE_PRIV_H

#include "worker/continue.h"
#include "worker/text_stream.h"

#define LOOP_MAX_ENDS 16

enum end_reason { END_LENGTH, END_TOKEN, END_STOP, END_WINDOW, END_INTERRUPTED };

struct sequence {
    int prompt; /* index, or number of the turn; -1: the place is free */
    struct buf ids;
    int64_t base;  /* index of the token at position 0 of the window */
    int64_t known; /* tokens from `base` on that are in the cache */
    int64_t made;  /* tokens of the continuation */
    bool over;
    enum end_reason reason;
    struct text_stream stream;
    struct buf text; /* unless tokens are written as they come: the text so far */
};

/* The result of a prompt that waits until those before it have been written. */
struct result {
    bool ready;
    int64_t made;
    int64_t processed; /* tokens that were given to the model for it; 0: not counted */
    enum end_reason reason;
    struct buf text;
};

struct loop {
    const struct continuation *c;
    struct sequence *places;
    struct engine_run *runs;
    struct sequence **run_of; /* by run */
    struct result *results;   /* by prompt */
    int next, written;        /* the prompt that starts next; that is written next */
    bool streams;             /* tokens are written as they come: a single text that is not JSON */
    int32_t ends[LOOP_MAX_ENDS];
    int n_ends;
    struct choose_room room;
    float *row; /* logits in float32, if the engine's are not */
    struct buf piece;
    bool terminal;     /* standard output is one */
    uint8_t last_byte; /* written to the terminal */
};

NODISCARD err_t loop_init(struct loop *l, const struct continuation *c);
void loop_fini(struct loop *l); /* legal after loop_init has failed */

int64_t loop_count(const struct buf *ids);
const int32_t *loop_ids(const struct buf *ids);
/* Writes the text and empties it; only rank 0 writes. */
NODISCARD err_t loop_write(struct loop *l, struct buf *text, struct why *why);
/* Writes or keeps the text of the sequence that no later token can change. */
NODISCARD err_t loop_show(struct loop *l, struct sequence *s, struct why *why);
/* Appends a line of JSON with prompt, text, tokens and ended; and processed, if it was counted. */
NODISCARD err_t loop_json(const char *prompt, size_t len, const struct result *r, struct buf *ret);
/* Row `at` of the engine's logits in float32; valid until the next call. */
const float *loop_logits(struct loop *l, const void *logits, int64_t stride, int64_t at);
/* Chooses a token, the same on all ranks. `logits` NULL: this rank does not choose; if no rank does, the token is -1.
 * `least`: the token is not below; the same on all ranks, or more on one whose request overrules the choice. */
NODISCARD err_t loop_choose(struct loop *l, const struct sequence *s, const float *logits, int64_t least, int64_t *ret,
                            struct why *why);
/* Appends a chosen token; sets `over` if the text ends with it. */
NODISCARD err_t loop_add(struct loop *l, struct sequence *s, int32_t id, struct why *why);

#endif
