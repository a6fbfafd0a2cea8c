/* The loop over tokens. Each place of the batch has a sequence: a prompt and its continuation so far. A round gives the
 * model the tokens of every sequence that are not in the cache yet: first those of the prompt, in pieces if there are
 * many; then the token that was chosen last. A sequence whose tokens are all in the cache gets its next token from the
 * round's logits. A complete sequence leaves its place to the next prompt.
 *
 * When a sequence reaches the window of the model, its first quarter is dropped, and the rest enters the cache anew,
 * because positions have changed. The model then sees at least three quarters of the window, and a token costs on
 * average a few tokens instead of the whole window.
 *
 * Random numbers are counter-based, by prompt and token: the same seed gives the same text on every machine that rounds
 * in the same way, whatever the batch is. */
#include "worker/continue_priv.h"

#include "common/base/file.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Names of the tokens that end a text, of common models. A tokenizer has some of them, as single tokens. */
static const char *const end_names[] = {"<|endoftext|>", "</s>",       "<eos>",   "<|end_of_text|>", "<|eot_id|>",
                                        "<|im_end|>",    "<|eom_id|>", "<|end|>", "<end_of_turn>",   "<|return|>"};

static const char *const end_reasons[] = {"length", "end", "stop", "window", "interrupted"};

int64_t loop_count(const struct buf *ids)
{
    return (int64_t)(ids->len / sizeof(int32_t));
}

const int32_t *loop_ids(const struct buf *ids)
{
    return (const int32_t *)(const void *)ids->data;
}

/* ---- output ---- */

/* On a terminal, control characters of the text are shown as '?': a model that was trained on logs or on hostile text
 * may write escape sequences, which would move the cursor, set the title or answer for the user. */
static void make_safe(uint8_t *text, size_t n, uint8_t before)
{
    if (n && before == 0xc2 && text[0] >= 0x80 && text[0] < 0xa0) /* two tokens make one control character */
        text[0] = '?';
    for (size_t i = 0; i < n; i++) {
        bool c1 = text[i] == 0xc2 && i + 1 < n && text[i + 1] >= 0x80 && text[i + 1] < 0xa0; /* in UTF-8 */
        if (c1)
            text[i + 1] = '?';
        if (c1 || (text[i] < 0x20 && text[i] != '\n' && text[i] != '\t') || text[i] == 0x7f)
            text[i] = '?';
    }
}

err_t loop_write(struct loop *l, struct buf *text, struct why *why)
{
    if (l->terminal && text->len) {
        make_safe(text->data, text->len, l->last_byte);
        l->last_byte = text->data[text->len - 1];
    }
    err_t err = l->c->rank == 0 && text->len ? file_write_all(STDOUT_FILENO, text->data, text->len) : OK;
    text->len = 0;
    return err ? why_set(why, err, "cannot write the text: %s", err_text(err)) : OK;
}

/* JSON is UTF-8, a prompt may be anything. */
static err_t legal_text(const char *text, size_t len, struct buf *ret)
{
    struct text_stream s;
    text_stream_init(&s, NULL, 0);
    err_t err = text_stream_add(&s, text, len);
    err = err ? err : text_stream_end(&s);
    err = err ? err : text_stream_take(&s, ret);
    text_stream_fini(&s);
    return err;
}

static json_t *json_of(const struct buf *text)
{
    return json_stringn(text->len ? (const char *)text->data : "", text->len);
}

err_t loop_json(const char *prompt, size_t len, const struct result *r, struct buf *ret)
{
    struct buf legal = {0};
    err_t err = legal_text(prompt, len, &legal);
    json_t *v = err ? NULL
                    : json_pack("{s:o, s:o, s:I, s:s}", "prompt", json_of(&legal), "text", json_of(&r->text), "tokens",
                                (json_int_t)r->made, "ended", end_reasons[r->reason]);
    if (v && r->processed && json_object_set_new(v, "processed", json_integer((json_int_t)r->processed)))
        err = ERR_NOMEM;
    char *line = v && !err ? json_dumps(v, JSON_COMPACT) : NULL;
    err = line ? buf_printf(ret, "%s\n", line) : ERR_NOMEM;
    free(line);
    json_decref(v);
    buf_fini(&legal);
    return err;
}

/* A streamed text has been written but for the end of its line. */
static err_t result_lines(const struct loop *l, int prompt, struct buf *ret)
{
    const char *text = l->c->prompts[prompt];
    if (l->c->ask->json)
        return loop_json(text, strlen(text), &l->results[prompt], ret);
    err_t err = buf_append(ret, l->results[prompt].text.data, l->results[prompt].text.len);
    return err ? err : buf_append(ret, "\n", 1);
}

/* Writes the results of prompts that are complete, in the order of the prompts. */
static err_t write_results(struct loop *l, struct why *why)
{
    err_t err = OK;
    for (; !err && l->written < l->c->n && l->results[l->written].ready; l->written++) {
        struct result *r = &l->results[l->written];
        struct buf line = {0};
        err = result_lines(l, l->written, &line);
        err = err ? why_set(why, err, "out of memory") : loop_write(l, &line, why);
        buf_fini(&line);
        buf_fini(&r->text);
    }
    return err;
}

err_t loop_show(struct loop *l, struct sequence *s, struct why *why)
{
    struct buf *to = l->streams ? &l->piece : &s->text;
    err_t err = text_stream_take(&s->stream, to);
    if (err)
        return why_set(why, err, "out of memory");
    return l->streams ? loop_write(l, to, why) : OK;
}

/* ---- sequences ---- */

/* The text of a result includes the prompt. */
static err_t start(struct loop *l, struct sequence *s, struct why *why)
{
    const struct continuation *c = l->c;
    const char *prompt = c->prompts[l->next];
    *s = (struct sequence){.prompt = l->next};
    text_stream_init(&s->stream, NULL, 0); /* a stop in the prompt is none */
    err_t err = buf_append(&s->ids, c->ids[l->next].data, c->ids[l->next].len);
    err = err ? err : text_stream_add(&s->stream, prompt, strlen(prompt));
    err = err ? err : text_stream_end(&s->stream);
    if (!err && c->words && prompt[0])
        err = text_stream_add(&s->stream, " ", 1);
    l->next++;
    err = err ? why_set(why, err, "out of memory") : loop_show(l, s, why);
    text_stream_fini(&s->stream);
    text_stream_init(&s->stream, c->ask->stops, c->ask->n_stops);
    const int64_t n = loop_count(&s->ids), seq = c->engine->eval.seq;
    s->base = n > seq ? n - seq : 0;
    s->over = c->ask->tokens == 0;
    return err;
}

static err_t finish(struct loop *l, struct sequence *s, struct why *why)
{
    struct result *r = &l->results[s->prompt];
    err_t err = text_stream_end(&s->stream);
    err = err ? why_set(why, err, "out of memory") : loop_show(l, s, why);
    r->ready = true;
    r->made = s->made;
    r->reason = s->reason;
    r->text = s->text;
    s->text = (struct buf){0};
    text_stream_fini(&s->stream);
    buf_fini(&s->ids);
    s->prompt = -1;
    return err ? err : write_results(l, why);
}

/* Gives free places to prompts that wait. A continuation of no tokens is complete at once. */
static err_t fill_places(struct loop *l, struct why *why)
{
    err_t err = OK;
    for (int i = 0; !err && i < l->c->ask->batch; i++)
        while (!err && l->places[i].prompt < 0 && l->next < l->c->n) {
            err = start(l, &l->places[i], why);
            if (!err && l->places[i].over)
                err = finish(l, &l->places[i], why);
        }
    return err;
}

static int64_t quarter(int64_t seq)
{
    return seq / 4 > 0 ? seq / 4 : 1;
}

/* Drops the first quarter of a window that is full. */
static void make_room(struct loop *l, struct sequence *s)
{
    const int64_t seq = l->c->engine->eval.seq;
    if (loop_count(&s->ids) - s->base <= seq)
        return;
    while (loop_count(&s->ids) - s->base > seq)
        s->base += quarter(seq);
    s->known = 0;
}

static void warn_of_window(const struct continuation *c)
{
    const int64_t seq = c->engine->eval.seq;
    int64_t most = 0;
    for (int i = 0; i < c->n; i++)
        most = loop_count(&c->ids[i]) > most ? loop_count(&c->ids[i]) : most;
    if (most + c->ask->tokens > seq && c->rank == 0)
        fprintf(stderr,
                "dt-worker: %" PRId64 " tokens are more than the window of %" PRId64
                " (train.seq): beyond it the model sees only the last %" PRId64 " to %" PRId64 " tokens\n",
                most + c->ask->tokens, seq, seq - quarter(seq), seq);
}

/* ---- rounds ---- */

/* The runs of a round, in the order of the places; returns their number. A place that gets no room, because others have
 * long prompts, waits for the next round. */
static int plan_round(struct loop *l)
{
    int64_t room = l->c->engine->eval.max_samples;
    int n = 0;
    for (int i = 0; i < l->c->ask->batch && room > 0; i++) {
        struct sequence *s = &l->places[i];
        if (s->prompt < 0)
            continue;
        make_room(l, s);
        int64_t left = loop_count(&s->ids) - s->base - s->known, take = left < room ? left : room;
        l->runs[n] = (struct engine_run){i, s->known, take, loop_ids(&s->ids) + s->base + s->known};
        l->run_of[n++] = s;
        s->known += take;
        room -= take;
    }
    return n;
}

static bool is_end(const struct loop *l, int32_t id)
{
    for (int i = 0; i < l->n_ends; i++)
        if (l->ends[i] == id)
            return true;
    return false;
}

/* A bfloat16 is the upper half of a float32. */
const float *loop_logits(struct loop *l, const void *logits, int64_t stride, int64_t at)
{
    if (!logits || l->c->engine->eval.dtype == DT_F32)
        return logits ? (const float *)logits + at * stride : NULL;
    const uint16_t *from = (const uint16_t *)logits + at * stride;
    for (int64_t i = 0; i < l->c->vocab; i++) {
        const uint32_t bits = (uint32_t)from[i] << 16;
        memcpy(&l->row[i], &bits, sizeof(bits));
    }
    return l->row;
}

err_t loop_choose(struct loop *l, const struct sequence *s, const float *logits, int64_t least, int64_t *ret,
                  struct why *why)
{
    const uint64_t position = (uint64_t)s->prompt << 32 | (uint64_t)s->made;
    int64_t id =
        logits ? choose_token(&l->c->ask->rule, logits, loop_ids(&s->ids), loop_count(&s->ids), position, &l->room)
               : -1;
    id = id > least ? id : least;
    err_t err = l->c->all ? comm_agree(l->c->all, &id, REDUCE_MAX) : OK;
    *ret = id;
    return err ? why_set(why, err, "the ranks cannot agree on a token: %s", comm_why(l->c->comm)) : OK;
}

err_t loop_add(struct loop *l, struct sequence *s, int32_t id, struct why *why)
{
    const int64_t max = l->c->ask->tokens;
    struct buf text = {0};
    err_t err = buf_append(&s->ids, &id, sizeof(id));
    s->made++;
    s->over = is_end(l, id) || s->made == max;
    s->reason = is_end(l, id) ? END_TOKEN : END_LENGTH;
    if (!err && s->reason != END_TOKEN) {
        err = tokenizer_decode(l->c->tokenizer, id, &text);
        err = err ? err : text_stream_add(&s->stream, text.data, text.len);
    }
    buf_fini(&text);
    if (s->stream.stopped) {
        s->over = true;
        s->reason = END_STOP;
    }
    return err ? why_set(why, err, "cannot decode token %d: %s", (int)id, err_text(err)) : loop_show(l, s, why);
}

static err_t end_round(struct loop *l, int n, const void *logits, int64_t stride, struct why *why)
{
    err_t err = OK;
    for (int i = 0; !err && i < n; i++) {
        struct sequence *s = l->run_of[i];
        int64_t id;
        if (s->base + s->known < loop_count(&s->ids)) /* more of its prompt follows */
            continue;
        err = loop_choose(l, s, loop_logits(l, logits, stride, i), -1, &id, why);
        err = err ? err : loop_add(l, s, (int32_t)id, why);
        if (!err && s->over)
            err = finish(l, s, why);
    }
    return err;
}

static err_t run_rounds(struct loop *l, struct why *why)
{
    err_t err = fill_places(l, why);
    while (!err && l->written < l->c->n) {
        const void *logits;
        int64_t stride;
        const int n = plan_round(l);
        err = engine_decode(l->c->engine, l->runs, n, &logits, &stride, why);
        err = err ? err : end_round(l, n, logits, stride, why);
        err = err ? err : fill_places(l, why);
    }
    return err;
}

/* ---- the loop ---- */

/* A tokenizer of words or bytes has no token that ends a text: <eos> of words ends a line. */
static err_t find_ends(struct loop *l)
{
    const struct continuation *c = l->c;
    struct buf ids = {0};
    err_t err = OK;
    for (size_t i = 0; !err && i < sizeof(end_names) / sizeof(end_names[0]) && !c->words && !c->ask->ignore_eos; i++) {
        ids.len = 0;
        err = tokenizer_encode(c->tokenizer, end_names[i], strlen(end_names[i]), &ids);
        if (!err && loop_count(&ids) == 1)
            l->ends[l->n_ends++] = *loop_ids(&ids);
    }
    buf_fini(&ids);
    return err;
}

_Static_assert(sizeof(end_names) / sizeof(end_names[0]) < LOOP_MAX_ENDS, "room for all ends");

err_t loop_init(struct loop *l, const struct continuation *c)
{
    const size_t places = (size_t)c->ask->batch;
    *l = (struct loop){.c = c,
                       .places = calloc(places, sizeof(*l->places)),
                       .runs = calloc(places, sizeof(*l->runs)),
                       .run_of = calloc(places, sizeof(struct sequence *)),
                       .results = calloc((size_t)c->n, sizeof(*l->results)),
                       .row = calloc((size_t)c->vocab, sizeof(*l->row)),
                       .streams = c->n == 1 && !c->ask->json,
                       .terminal = isatty(STDOUT_FILENO)};
    for (size_t i = 0; l->places && i < places; i++)
        l->places[i].prompt = -1;
    if (!l->places || !l->runs || !l->run_of || !l->results || !l->row)
        return ERR_NOMEM;
    err_t err = choose_room_init(&l->room, c->vocab);
    return err ? err : find_ends(l);
}

void loop_fini(struct loop *l)
{
    for (int64_t i = 0; l->places && i < l->c->ask->batch; i++)
        if (l->places[i].prompt >= 0) {
            text_stream_fini(&l->places[i].stream);
            buf_fini(&l->places[i].ids);
            buf_fini(&l->places[i].text);
        }
    for (int i = 0; l->results && i < l->c->n; i++)
        buf_fini(&l->results[i].text);
    free(l->places);
    free(l->runs);
    free(l->run_of);
    free(l->results);
    free(l->row);
    choose_room_fini(&l->room);
    buf_fini(&l->piece);
}

err_t continue_prompts(const struct continuation *c, struct why *why)
{
    struct loop l;
    err_t err = loop_init(&l, c);
    warn_of_window(c);
    err = err ? why_set(why, err, "out of memory") : run_rounds(&l, why);
    loop_fini(&l);
    return err;
}
