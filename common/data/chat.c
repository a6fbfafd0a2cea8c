/* The published templates are programs in Jinja. Here each is a row: what stands before and behind a text, and which of
 * that is a control token. The text of the other roles is encoded together with what stands before it, as the published
 * templates do. The assistant's is encoded alone, because that is how it comes when the model generates it: behind a
 * complete prompt. Rendering turn by turn to ids, and never to one text, tells exactly which ids are the assistant's.
 */
#include "common/data/chat.h"

#include "common/data/tokenizer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BOS, OPEN, CLOSE, END, CONTROLS }; /* control tokens of a template */

struct chat_row {
    const char *name;
    const char *control[CONTROLS]; /* NULL: the template has no such token */
    bool named;                    /* the name of the role follows `open`; else each role has an `open` of its own */
    const char *before;            /* text between that and the message */
    const char *behind;            /* text behind `end` */
    const char *assistant;         /* the role's name in the template */
    bool trims, system;            /* the message loses white space at both ends; there may be a system turn */
    bool instruct;                 /* [INST] .. [/INST] around the user's text, and nothing around the assistant's */
};

static const struct chat_row rows[] = {
    [CHAT_NONE] = {"none", {NULL}, false, "", "", "", false, false, false},
    [CHAT_LLAMA3] = {"llama3",
                     {"<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"},
                     true,
                     "\n\n",
                     "",
                     "assistant",
                     true,
                     true,
                     false},
    [CHAT_CHATML] =
        {"chatml", {NULL, "<|im_start|>", NULL, "<|im_end|>"}, true, "\n", "\n", "assistant", false, true, false},
    [CHAT_MISTRAL] = {"mistral", {"<s>", NULL, NULL, "</s>"}, false, "", "", "assistant", false, false, true},
    [CHAT_GEMMA] =
        {"gemma", {"<bos>", "<start_of_turn>", NULL, "<end_of_turn>"}, true, "\n", "\n", "model", true, false, false},
    [CHAT_PHI] = {"phi", {NULL, NULL, NULL, "<|end|>"}, false, "\n", "\n", "assistant", false, true, false},
};

static const char *const roles[] = {"system", "user", "assistant"};
/* A pair of prompt and completion is a conversation of two turns. */
static const char *const pair_roles[] = {"", "prompt", "completion"};
/* Phi has a control token for each role. */
static const char *const phi_open[] = {"<|system|>", "<|user|>", "<|assistant|>"};
#define ROLES 3
#define ASSISTANT 2

struct chat {
    const struct chat_row *row;
    const struct tokenizer *tokenizer;
    int32_t control[CONTROLS], open[ROLES]; /* -1: none */
};

const char *chat_name(enum chat_template template)
{
    return rows[template].name;
}

/* ---- control tokens ---- */

static err_t find_control(const struct chat *c, const char *text, int32_t *ret, struct why *why)
{
    size_t want = text ? strlen(text) : 0, len;
    *ret = -1;
    for (int32_t id = 0; text && id < tokenizer_vocab(c->tokenizer) && *ret < 0; id++) {
        const uint8_t *token = tokenizer_token(c->tokenizer, id, &len);
        *ret = len == want && memcmp(token, text, want) == 0 ? id : -1;
    }
    return text && *ret < 0
               ? why_set(why, ERR_INVALID,
                         "data.template: %s needs the token %s, which the tokenizer does not have: use the "
                         "template of the model that the tokenizer belongs to",
                         c->row->name, text)
               : OK;
}

err_t chat_new(enum chat_template template, const struct tokenizer *t, struct chat **ret, struct why *why)
{
    struct chat *c = calloc(1, sizeof(*c));
    if (!c)
        return why_set(why, ERR_NOMEM, "%s", err_text(ERR_NOMEM));
    c->row = &rows[template];
    c->tokenizer = t;
    err_t err = OK;
    for (int i = 0; !err && i < CONTROLS; i++)
        err = find_control(c, c->row->control[i], &c->control[i], why);
    for (int i = 0; !err && i < ROLES; i++) {
        c->open[i] = c->control[OPEN];
        if (template == CHAT_PHI)
            err = find_control(c, phi_open[i], &c->open[i], why);
    }
    if (err) {
        chat_free(c);
        return err;
    }
    *ret = c;
    return OK;
}

void chat_free(struct chat *c)
{
    free(c);
}

/* ---- rendering ---- */

struct render {
    const struct chat *chat;
    struct buf *ids, *weights;
    struct why *why;
};

static bool is_control(const struct chat *c, int32_t id)
{
    bool is = false;
    for (int i = 0; i < CONTROLS; i++)
        is = is || (c->control[i] >= 0 && id == c->control[i]);
    for (int i = 0; i < ROLES; i++)
        is = is || (c->open[i] >= 0 && id == c->open[i]);
    return is;
}

static err_t put_weights(struct render *r, uint8_t weight)
{
    err_t err = OK;
    while (!err && r->weights->len < r->ids->len / sizeof(int32_t))
        err = buf_append(r->weights, &weight, 1);
    return err ? why_set(r->why, err, "%s", err_text(err)) : OK;
}

static err_t put_control(struct render *r, int32_t id, uint8_t weight)
{
    err_t err = id >= 0 ? buf_append(r->ids, &id, sizeof(id)) : OK;
    return err ? why_set(r->why, err, "%s", err_text(err)) : put_weights(r, weight);
}

/* Encodes a text in which no control token may appear. */
static err_t put_text(struct render *r, const char *text, size_t len, uint8_t weight)
{
    const size_t from = r->ids->len / sizeof(int32_t);
    err_t err = len ? tokenizer_encode(r->chat->tokenizer, text, len, r->ids) : OK;
    if (err)
        return why_set(r->why, err, "a message cannot be encoded: %s", err_text(err));
    const int32_t *ids = (const int32_t *)(const void *)r->ids->data;
    for (size_t i = from; i < r->ids->len / sizeof(int32_t); i++) {
        size_t n;
        if (!is_control(r->chat, ids[i]))
            continue;
        const uint8_t *token = tokenizer_token(r->chat->tokenizer, ids[i], &n);
        return why_set(r->why, ERR_INVALID,
                       "a message contains %.*s, a control token of the template %s, which would end or begin a turn: "
                       "remove the row",
                       (int)n, (const char *)token, r->chat->row->name);
    }
    return put_weights(r, weight);
}

static bool is_space(char c)
{
    return c == ' ' || (c >= '\t' && c <= '\r');
}

static void trim(const char **text, size_t *len)
{
    while (*len && is_space(**text)) {
        ++*text;
        --*len;
    }
    while (*len && is_space((*text)[*len - 1]))
        --*len;
}

/* What stands before the message, and for other roles than the assistant the message. */
static err_t put_joined(struct render *r, const char *before, const char *text, size_t len, const char *behind)
{
    struct buf all = {0};
    err_t err = buf_append(&all, before, strlen(before));
    err = err ? err : buf_append(&all, text, len);
    err = err ? err : buf_append(&all, behind, strlen(behind));
    err = err ? why_set(r->why, err, "%s", err_text(err)) : put_text(r, (const char *)all.data, all.len, 0);
    buf_fini(&all);
    return err;
}

static err_t put_instruct(struct render *r, int role, const char *text, size_t len)
{
    if (role != ASSISTANT)
        return put_joined(r, "[INST] ", text, len, " [/INST]");
    err_t err = put_text(r, text, len, 1);
    return err ? err : put_control(r, r->chat->control[END], 1);
}

static err_t put_turn(struct render *r, int role, const char *text, size_t len)
{
    const struct chat *c = r->chat;
    const char *name = !c->row->named ? "" : role == ASSISTANT ? c->row->assistant : roles[role];
    char before[64];
    err_t err = put_control(r, c->open[role], 0);
    if (!err && c->control[CLOSE] >= 0) {
        err = put_text(r, name, strlen(name), 0);
        err = err ? err : put_control(r, c->control[CLOSE], 0);
        name = "";
    }
    snprintf(before, sizeof(before), "%s%s", name, c->row->before);
    if (!err && role != ASSISTANT)
        err = put_joined(r, before, text, len, "");
    if (!err && role == ASSISTANT) {
        err = put_text(r, before, strlen(before), 0);
        err = err ? err : put_text(r, text, len, 1);
    }
    err = err ? err : put_control(r, c->control[END], role == ASSISTANT);
    return err ? err : put_text(r, c->row->behind, strlen(c->row->behind), 0);
}

static err_t find_role(const struct chat *c, const char *name, int *ret, struct why *why)
{
    int i = 0;
    while (i < ROLES && strcmp(roles[i], name) != 0 && strcmp(pair_roles[i], name) != 0)
        i++;
    if (i == ROLES)
        return why_set(why, ERR_INVALID, "the role \"%.40s\" is none of the template %s: it has %suser and assistant",
                       name, c->row->name, c->row->system ? "system, " : "");
    if (i == 0 && !c->row->system)
        return why_set(why, ERR_INVALID,
                       "the template %s has no system turn: put its text before that of the first user's turn",
                       c->row->name);
    *ret = i;
    return OK;
}

err_t chat_render(const struct chat *c, const struct doc_turn *turns, int n, struct buf *ids, struct buf *weights,
                  struct why *why)
{
    struct render r = {c, ids, weights, why};
    bool answers = false;
    err_t err = put_control(&r, c->control[BOS], 0);
    for (int i = 0; !err && i < n; i++) {
        const char *text = turns[i].text;
        size_t len = turns[i].len;
        int role = 0;
        err = find_role(c, turns[i].role, &role, why);
        if (err)
            return err;
        if (c->row->trims)
            trim(&text, &len);
        answers = answers || role == ASSISTANT;
        err = c->row->instruct ? put_instruct(&r, role, text, len) : put_turn(&r, role, text, len);
    }
    if (!err && !answers)
        err = why_set(why, ERR_INVALID, "the conversation has no turn of the assistant, so nothing of it would count");
    return err;
}
