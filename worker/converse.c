/* All turns are one sequence of the engine: what is in the cache stays there, and a turn adds what closes the answer
 * before it, the question, and what opens the answer. Nothing is dropped when the window is full, because a model that
 * has lost the beginning of a conversation answers wrongly without a sign of it: the answer ends, or the question is
 * refused.
 *
 * Rank 0 reads and renders the questions. The other ranks wait at the desk, not in a collective, since a user may think
 * for longer than a collective waits.
 *
 * On a terminal, SIGINT ends the answer that is being written. Rank 0 then requests a token that is greater than all
 * others, so all ranks end the answer after the same token. While a question is typed, SIGINT has its usual effect. */
#include "worker/converse.h"

#include "common/data/source.h"
#include "worker/continue_priv.h"

#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define INTERRUPTED INT64_MAX

struct talk {
    const struct conversation *v;
    struct loop l;
    int64_t turn;
    bool terminal;     /* questions are typed */
    int64_t processed; /* tokens that were given to the model in this turn */
    bool stopped;      /* the last answer ended with the template's own token */
    char *line;        /* the question, of rank 0 */
    size_t len, size;
};

/* ---- the desk ---- */

void converse_desk_init(struct converse_desk *d)
{
    *d = (struct converse_desk){.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};
}

void converse_desk_fini(struct converse_desk *d)
{
    pthread_mutex_destroy(&d->lock);
    pthread_cond_destroy(&d->changed);
    buf_fini(&d->ids);
}

void converse_desk_close(struct converse_desk *d)
{
    pthread_mutex_lock(&d->lock);
    d->closed = true;
    pthread_cond_broadcast(&d->changed);
    pthread_mutex_unlock(&d->lock);
}

/* The other ranks have taken the turn before, because all ranks have agreed on tokens since. */
static err_t desk_publish(struct converse_desk *d, const struct buf *ids)
{
    pthread_mutex_lock(&d->lock);
    d->ids.len = 0;
    err_t err = buf_append(&d->ids, ids->data, ids->len);
    d->turns += err ? 0 : 1;
    pthread_cond_broadcast(&d->changed);
    pthread_mutex_unlock(&d->lock);
    return err;
}

/* *ret_more false: there is no such turn. */
static err_t desk_take(struct converse_desk *d, int64_t turn, struct buf *ids, bool *ret_more)
{
    pthread_mutex_lock(&d->lock);
    while (d->turns <= turn && !d->closed)
        pthread_cond_wait(&d->changed, &d->lock);
    *ret_more = d->turns > turn;
    err_t err = *ret_more ? buf_append(ids, d->ids.data, d->ids.len) : OK;
    pthread_mutex_unlock(&d->lock);
    return err;
}

/* ---- questions: rank 0 ---- */

/* Reads the next line that is not empty; *ret_more false: there is none. */
static err_t read_line(struct talk *t, bool *ret_more, struct why *why)
{
    do {
        if (t->terminal)
            fputs("> ", stderr);
        errno = 0;
        const ssize_t n = getline(&t->line, &t->size, stdin);
        *ret_more = n >= 0;
        if (n < 0 && ferror(stdin))
            return why_set(why, err_from_errno(errno), "cannot read the question: %s", strerror(errno));
        t->len = n > 0 && t->line[n - 1] == '\n' ? (size_t)n - 1 : n > 0 ? (size_t)n : 0;
    } while (*ret_more && !t->len);
    if (!*ret_more && t->terminal)
        fputc('\n', stderr);
    return OK;
}

static err_t read_question(struct talk *t, bool *ret_more, struct why *why)
{
    const char *prompt = t->v->c->ask->prompt;
    if (!prompt)
        return read_line(t, ret_more, why);
    *ret_more = t->turn == 0;
    if (!*ret_more)
        return OK;
    t->line = strdup(prompt);
    t->len = strlen(prompt);
    return t->line ? OK : why_set(why, ERR_NOMEM, "out of memory");
}

/* `system` NULL: the conversation has no such turn, or has begun. */
static err_t render(const struct chat *c, const char *system, const char *text, size_t len, bool begins,
                    struct buf *ids, struct why *why)
{
    const struct doc_turn turns[] = {
        {.role = "system", .text = system ? system : "", .len = system ? strlen(system) : 0},
        {.role = "user", .text = text, .len = len}};
    return chat_ask(c, turns + !system, 2 - !system, begins, ids, why);
}

err_t converse_check_system(const struct chat *c, const char *system, struct why *why)
{
    struct buf ids = {0};
    err_t err = render(c, system, "", 0, true, &ids, why);
    buf_fini(&ids);
    return err ? why_prefix(why, err, "--system") : OK;
}

/* Appends the tokens of this turn. */
static err_t render_turn(const struct talk *t, struct buf *ids, struct why *why)
{
    const bool begins = t->turn == 0;
    err_t err = begins ? OK : chat_close(t->v->chat, t->stopped, ids, why);
    return err ? err : render(t->v->chat, begins ? t->v->c->ask->system : NULL, t->line, t->len, begins, ids, why);
}

/* There must be room for a token of the answer. */
static err_t check_room(const struct talk *t, const struct buf *ids, struct why *why)
{
    const int64_t seq = t->v->c->engine->eval.seq, before = loop_count(&t->l.places[0].ids), n = loop_count(ids);
    if (before + n < seq)
        return OK;
    return why_set(why, ERR_LIMIT,
                   "the question has %" PRId64 " tokens, which do not fit behind the %" PRId64
                   " of the conversation into the window of %" PRId64
                   " tokens (train.seq). Ask with fewer words, or start another conversation",
                   n, before, seq);
}

/* On a terminal a question that is refused is followed by another one. */
static err_t next_question(struct talk *t, struct buf *ids, bool *ret_more, struct why *why)
{
    for (;;) {
        ids->len = 0;
        err_t err = read_question(t, ret_more, why);
        if (err || !*ret_more)
            return err;
        err = render_turn(t, ids, why);
        err = err ? err : check_room(t, ids, why);
        if (!err)
            return OK;
        if (!t->terminal || (err != ERR_LIMIT && err != ERR_INVALID))
            return err;
        fprintf(stderr, "dt-worker: %s\n", why->text);
        *why = (struct why){""};
    }
}

/* Appends the tokens of the next turn to the conversation, on all ranks. */
static err_t take_turn(struct talk *t, bool *ret_more, struct why *why)
{
    struct converse_desk *d = t->v->desk;
    struct buf *to = &t->l.places[0].ids, ids = {0};
    err_t err = OK;
    if (t->v->c->rank > 0) {
        err = desk_take(d, t->turn, to, ret_more);
        return err ? why_set(why, err, "out of memory") : OK;
    }
    err = next_question(t, &ids, ret_more, why);
    if (!err && *ret_more && (desk_publish(d, &ids) || buf_append(to, ids.data, ids.len)))
        err = why_set(why, ERR_NOMEM, "out of memory");
    buf_fini(&ids);
    return err;
}

/* ---- answers ---- */

static _Atomic int interrupted;

static void on_interrupt(int signal_number)
{
    (void)signal_number;
    atomic_store(&interrupted, 1);
}

/* A call of the model with the tokens that are not in the cache yet, and the choice of a token after the last one. */
static err_t answer_round(struct talk *t, struct sequence *s, struct why *why)
{
    struct loop *l = &t->l;
    const int64_t left = loop_count(&s->ids) - s->known, room = l->c->engine->eval.max_samples;
    const int64_t take = left < room ? left : room;
    const struct engine_run run = {0, s->known, take, loop_ids(&s->ids) + s->known};
    const void *logits;
    int64_t stride, id;
    err_t err = engine_decode(l->c->engine, &run, 1, &logits, &stride, why);
    s->known += take;
    t->processed += take;
    if (!err)
        err = loop_choose(l, s, take == left ? loop_logits(l, logits, stride, 0) : NULL,
                          atomic_load(&interrupted) ? INTERRUPTED : -1, &id, why);
    if (err || id < 0)
        return err;
    if (id == INTERRUPTED) {
        s->over = true;
        s->reason = END_INTERRUPTED;
        return OK;
    }
    err = loop_add(l, s, (int32_t)id, why);
    if (!err && !s->over && loop_count(&s->ids) >= l->c->engine->eval.seq) {
        s->over = true;
        s->reason = END_WINDOW;
    }
    return err;
}

/* The template's own token stays in the conversation; another one that ends a text does not belong there. */
static void drop_end(struct talk *t, struct sequence *s)
{
    const int64_t n = loop_count(&s->ids);
    const bool ended = s->reason == END_TOKEN && n > 0;
    t->stopped = ended && loop_ids(&s->ids)[n - 1] == chat_stop(t->v->chat);
    if (ended && !t->stopped)
        s->ids.len -= sizeof(int32_t);
}

/* Reports an answer that was cut. */
static void explain_end(const struct talk *t, const struct sequence *s)
{
    if (s->reason == END_LENGTH)
        fprintf(stderr, "dt-worker: the answer was cut after %" PRId64 " tokens; --tokens allows more\n", s->made);
    if (s->reason == END_WINDOW)
        fprintf(stderr,
                "dt-worker: the answer was cut, because the conversation fills the window of %" PRId64
                " tokens (train.seq). Start another conversation\n",
                t->v->c->engine->eval.seq);
}

static err_t finish_answer(struct talk *t, struct sequence *s, struct why *why)
{
    const struct continuation *c = t->v->c;
    const struct result r = {.made = s->made, .processed = t->processed, .reason = s->reason, .text = s->text};
    struct buf line = {0};
    err_t err = OK;
    if (c->rank == 0)
        err = c->ask->json ? loop_json(t->line, t->len, &r, &line) : buf_append(&line, "\n", 1);
    err = err ? why_set(why, err, "out of memory") : loop_write(&t->l, &line, why);
    if (!err && c->rank == 0 && !c->ask->json)
        explain_end(t, s);
    buf_fini(&line);
    drop_end(t, s);
    return err;
}

static err_t answer(struct talk *t, struct why *why)
{
    const struct continuation *c = t->v->c;
    struct sequence *s = &t->l.places[0];
    err_t err = OK;
    s->prompt = (int)t->turn;
    s->made = 0;
    t->processed = 0;
    s->over = c->ask->tokens == 0;
    s->reason = END_LENGTH;
    s->text.len = 0;
    text_stream_init(&s->stream, c->ask->stops, c->ask->n_stops);
    while (!err && !s->over)
        err = answer_round(t, s, why);
    if (!err && text_stream_end(&s->stream))
        err = why_set(why, ERR_NOMEM, "out of memory");
    err = err ? err : loop_show(&t->l, s, why);
    text_stream_fini(&s->stream);
    s->stream = (struct text_stream){0};
    return err ? err : finish_answer(t, s, why);
}

static err_t answer_interruptible(struct talk *t, struct why *why)
{
    struct sigaction action = {.sa_handler = on_interrupt, .sa_flags = SA_RESTART}, before;
    if (!t->terminal || t->v->c->rank > 0)
        return answer(t, why);
    atomic_store(&interrupted, 0);
    sigaction(SIGINT, &action, &before);
    err_t err = answer(t, why);
    sigaction(SIGINT, &before, NULL);
    atomic_store(&interrupted, 0);
    return err;
}

/* ---- the conversation ---- */

err_t converse(const struct conversation *v, struct why *why)
{
    const struct continuation *c = v->c;
    struct talk t = {.v = v, .terminal = !c->ask->prompt && isatty(STDIN_FILENO)};
    bool more = true;
    err_t err = loop_init(&t.l, c);
    if (err)
        why_set(why, err, "out of memory");
    if (!err) {
        t.l.places[0].prompt = 0;
        t.l.ends[t.l.n_ends++] = chat_stop(v->chat);
    }
    for (; !err && more; t.turn++) {
        err = take_turn(&t, &more, why);
        if (!err && more)
            err = answer_interruptible(&t, why);
    }
    converse_desk_close(v->desk);
    free(t.line);
    loop_fini(&t.l);
    return err;
}
