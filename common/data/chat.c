/* The published templates are programs in Jinja. Here each is a row: what stands before and behind a text, and which of
 * that is a control token. The text of the other roles is encoded together with what stands before it, as the published
 * templates do. The assistant's is encoded alone, because that is how it comes when the model generates it: behind a
 * complete prompt. Because turns are rendered one by one to ids, and never to one text, the ids of the assistant are
 * known exactly. */
#include "common/data/chat.h"

#include "common/data/tokenizer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BOS, OPEN, CLOSE, END, CONTROLS }; /* control tokens of a template */

struct chat_row {
    const char *name;
    const char *control[CONTROLS];  /* NULL: the template has no such token */
    bool named;                     /* the name of the role follows `open`; else each role has an `open` of its own */
    const char *before;             /* text between that and the message */
    const char *behind;             /* text behind `end` */
    const char *assistant;          /* the role's name in the template */
    bool trims, system;             /* the message loses white space at both ends; there may be a system turn */
    bool instruct;                  /* [INST] .. [/INST] around the user's text, and nothing around the assistant's */
    const char *marks[2], *foreign; /* a published template has all marks, and not what is foreign; NULL: nothing */
};

static const struct chat_row rows[] = {
    [CHAT_NONE] = {"none", {NULL}, false, "", "", "", false, false, false, {NULL}, NULL},
    [CHAT_LLAMA3] = {"llama3",
                     {"<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"},
                     true,
                     "\n\n",
                     "",
                     "assistant",
                     true,
                     true,
                     false,
                     {"<|start_header_id|>", "<|eot_id|>"},
                     NULL},
    /* <|im_sep|>: Phi 4, without a line break behind the role */
    [CHAT_CHATML] = {"chatml",
                     {NULL, "<|im_start|>", NULL, "<|im_end|>"},
                     true,
                     "\n",
                     "\n",
                     "assistant",
                     false,
                     true,
                     false,
                     {"<|im_start|>", "<|im_end|>"},
                     "<|im_sep|>"},
    /* <<SYS>>: Llama 2. Without the space before [/INST]: later models of Mistral */
    [CHAT_MISTRAL] = {"mistral",
                      {"<s>", NULL, NULL, "</s>"},
                      false,
                      "",
                      "",
                      "assistant",
                      false,
                      false,
                      true,
                      {"[INST] ", " [/INST]"},
                      "<<SYS>>"},
    [CHAT_GEMMA] = {"gemma",
                    {"<bos>", "<start_of_turn>", NULL, "<end_of_turn>"},
                    true,
                    "\n",
                    "\n",
                    "model",
                    true,
                    false,
                    false,
                    {"<start_of_turn>", "<end_of_turn>"},
                    NULL},
    /* Phi 4 mini composes <|user|> from the role, without a line break behind it */
    [CHAT_PHI] = {"phi",
                  {NULL, NULL, NULL, "<|end|>"},
                  false,
                  "\n",
                  "\n",
                  "assistant",
                  false,
                  true,
                  false,
                  {"<|user|>", "<|end|>"},
                  NULL},
};
#define TEMPLATES (int)(sizeof(rows) / sizeof(rows[0]))

static const char *const roles[] = {"system", "user", "assistant"};
/* A pair of prompt and completion is a conversation of two turns. */
static const char *const pair_roles[] = {"", "prompt", "completion"};
/* Phi has a control token for each role. */
static const char *const phi_open[] = {"<|system|>", "<|user|>", "<|assistant|>"};
#define ROLES 3
#define ASSISTANT 2
static const char *const instruct[] = {"[INST]", "[/INST]"};

struct chat {
    const struct chat_row *row;
    const struct tokenizer *tokenizer;
    int32_t control[CONTROLS], open[ROLES]; /* -1: none */
    int32_t instruct[2];                    /* -1: not a token of the tokenizer, but text */
};

const char *chat_name(enum chat_template template)
{
    return rows[template].name;
}

bool chat_find(const char *name, enum chat_template *ret)
{
    int i = CHAT_NONE + 1;
    while (i < TEMPLATES && strcmp(rows[i].name, name) != 0)
        i++;
    if (i == TEMPLATES)
        return false;
    *ret = (enum chat_template)i;
    return true;
}

void chat_list(char *ret, size_t size)
{
    size_t n = 0;
    for (int i = CHAT_NONE + 1; i < TEMPLATES && n < size; i++)
        n += (size_t)snprintf(ret + n, size - n, "%s%s", n ? ", " : "", rows[i].name);
}

enum chat_template chat_recognize(const char *jinja)
{
    int found = CHAT_NONE, n = 0;
    for (int i = CHAT_NONE + 1; i < TEMPLATES; i++) {
        const struct chat_row *r = &rows[i];
        if (!strstr(jinja, r->marks[0]) || !strstr(jinja, r->marks[1]) || (r->foreign && strstr(jinja, r->foreign)))
            continue;
        found = i;
        n++;
    }
    return n == 1 ? (enum chat_template)found : CHAT_NONE;
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
                         "the chat template %s needs the token %s, which the tokenizer does not have: use the "
                         "template of the model that the tokenizer belongs to (data.template, or --template)",
                         c->row->name, text)
               : OK;
}

/* [INST] is a token only of some tokenizers. */
static err_t find_instruct(struct chat *c, struct why *why)
{
    err_t err = OK;
    for (int i = 0; !err && i < 2; i++) {
        struct buf ids = {0};
        c->instruct[i] = -1;
        if (c->row->instruct)
            err = tokenizer_encode(c->tokenizer, instruct[i], strlen(instruct[i]), &ids);
        if (!err && ids.len == sizeof(int32_t))
            memcpy(&c->instruct[i], ids.data, sizeof(int32_t));
        buf_fini(&ids);
    }
    return err ? why_set(why, err, "%s", err_text(err)) : OK;
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
    err = err ? err : find_instruct(c, why);
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
    struct buf *ids, *weights; /* weights NULL: a question */
    struct why *why;
};

static bool is_control(const struct chat *c, int32_t id)
{
    bool is = false;
    for (int i = 0; i < CONTROLS; i++)
        is = is || (c->control[i] >= 0 && id == c->control[i]);
    for (int i = 0; i < ROLES; i++)
        is = is || (c->open[i] >= 0 && id == c->open[i]);
    for (int i = 0; i < 2; i++)
        is = is || (c->instruct[i] >= 0 && id == c->instruct[i]);
    return is;
}

static err_t put_weights(struct render *r, uint8_t weight)
{
    err_t err = OK;
    while (!err && r->weights && r->weights->len < r->ids->len / sizeof(int32_t))
        err = buf_append(r->weights, &weight, 1);
    return err ? why_set(r->why, err, "%s", err_text(err)) : OK;
}

static err_t put_control(struct render *r, int32_t id, uint8_t weight)
{
    err_t err = id >= 0 ? buf_append(r->ids, &id, sizeof(id)) : OK;
    return err ? why_set(r->why, err, "%s", err_text(err)) : put_weights(r, weight);
}

/* Encodes a text in which no control token may appear. That of a question is encoded plain, and fails only if the file
 * of the tokenizer does not mark the token as special. */
static err_t put_text(struct render *r, const char *text, size_t len, uint8_t weight)
{
    const size_t from = r->ids->len / sizeof(int32_t);
    const struct tokenizer *t = r->chat->tokenizer;
    err_t err = !len         ? OK
                : r->weights ? tokenizer_encode(t, text, len, r->ids)
                             : tokenizer_encode_plain(t, text, len, r->ids);
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
                       "remove %s",
                       (int)n, (const char *)token, r->chat->row->name, r->weights ? "the row" : "it");
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

/* Without a token for it, [INST] of the template and [INST] of a message are the same text. */
static err_t refuse_forged(struct render *r, const char *text, size_t len)
{
    for (int i = 0; i < 2; i++)
        if (len && memmem(text, len, instruct[i], strlen(instruct[i])))
            return why_set(r->why, ERR_INVALID,
                           "a message contains %s, which would begin or end a turn of the template %s: remove it",
                           instruct[i], r->chat->row->name);
    return OK;
}

static err_t put_instruct_user(struct render *r, const char *text, size_t len)
{
    const int32_t *ids = r->chat->instruct;
    if (ids[0] < 0 || ids[1] < 0) {
        err_t err = r->weights ? OK : refuse_forged(r, text, len);
        return err ? err : put_joined(r, "[INST] ", text, len, " [/INST]");
    }
    err_t err = put_control(r, ids[0], 0);
    err = err ? err : put_joined(r, " ", text, len, " ");
    return err ? err : put_control(r, ids[1], 0);
}

static err_t put_instruct(struct render *r, int role, const char *text, size_t len)
{
    if (role != ASSISTANT)
        return put_instruct_user(r, text, len);
    err_t err = put_text(r, text, len, 1);
    return err ? err : put_control(r, r->chat->control[END], 1);
}

#define BEFORE 64 /* bytes of the text before a message: a role's name and a few characters */

/* The control tokens before a message; what text stands between them and the message goes to `before`. */
static err_t put_head(struct render *r, int role, char before[BEFORE])
{
    const struct chat *c = r->chat;
    const char *name = !c->row->named ? "" : role == ASSISTANT ? c->row->assistant : roles[role];
    err_t err = put_control(r, c->open[role], 0);
    if (!err && c->control[CLOSE] >= 0) {
        err = put_text(r, name, strlen(name), 0);
        err = err ? err : put_control(r, c->control[CLOSE], 0);
        name = "";
    }
    snprintf(before, BEFORE, "%s%s", name, c->row->before);
    return err;
}

/* What stands before a message of the assistant. */
static err_t put_opening(struct render *r)
{
    char before[BEFORE];
    if (r->chat->row->instruct)
        return OK;
    err_t err = put_head(r, ASSISTANT, before);
    return err ? err : put_text(r, before, strlen(before), 0);
}

static err_t put_turn(struct render *r, int role, const char *text, size_t len)
{
    const struct chat *c = r->chat;
    char before[BEFORE];
    err_t err = role == ASSISTANT ? put_opening(r) : put_head(r, role, before);
    if (!err)
        err = role == ASSISTANT ? put_text(r, text, len, 1) : put_joined(r, before, text, len, "");
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

/* ret_answers: whether one of the turns is the assistant's. */
static err_t put_turns(struct render *r, const struct doc_turn *turns, int n, bool *ret_answers)
{
    const struct chat *c = r->chat;
    err_t err = OK;
    *ret_answers = false;
    for (int i = 0; !err && i < n; i++) {
        const char *text = turns[i].text;
        size_t len = turns[i].len;
        int role = 0;
        err = find_role(c, turns[i].role, &role, r->why);
        if (err)
            return err;
        if (c->row->trims)
            trim(&text, &len);
        *ret_answers = *ret_answers || role == ASSISTANT;
        err = c->row->instruct ? put_instruct(r, role, text, len) : put_turn(r, role, text, len);
    }
    return err;
}

err_t chat_render(const struct chat *c, const struct doc_turn *turns, int n, struct buf *ids, struct buf *weights,
                  struct why *why)
{
    struct render r = {c, ids, weights, why};
    bool answers;
    err_t err = put_control(&r, c->control[BOS], 0);
    err = err ? err : put_turns(&r, turns, n, &answers);
    if (!err && !answers)
        err = why_set(why, ERR_INVALID, "the conversation has no turn of the assistant, so nothing of it would count");
    return err;
}

err_t chat_ask(const struct chat *c, const struct doc_turn *turns, int n, bool begins, struct buf *ids, struct why *why)
{
    struct render r = {c, ids, NULL, why};
    bool answers;
    err_t err = begins ? put_control(&r, c->control[BOS], 0) : OK;
    err = err ? err : put_turns(&r, turns, n, &answers);
    return err ? err : put_opening(&r);
}

int32_t chat_stop(const struct chat *c)
{
    return c->control[END];
}

err_t chat_close(const struct chat *c, bool stopped, struct buf *ids, struct why *why)
{
    struct render r = {c, ids, NULL, why};
    err_t err = stopped ? OK : put_control(&r, c->control[END], 0);
    return err ? err : put_text(&r, c->row->behind, strlen(c->row->behind), 0);
}
