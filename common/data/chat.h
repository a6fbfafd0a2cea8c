/* Conversations as tokens, by the chat templates of well-known models: for training, where only the assistant's turns
 * count in the loss, with the token that ends them; and for a question, where the assistant's turn is open at the end.
 * A template is immutable; any number of threads may use it. */
#ifndef DTD_COMMON_DATA_CHAT_H
#define DTD_COMMON_DATA_CHAT_H

#include "common/base/buf.h"
#include "common/conf/job.h"
#include "common/data/source.h"

struct tokenizer;
struct chat;

const char *chat_name(enum chat_template template);
/* False: no template has this name. "none" is no template. */
bool chat_find(const char *name, enum chat_template *ret);
/* The names of all templates, separated by commas. */
void chat_list(char *ret, size_t size);
/* The template that a published one, a program in Jinja, amounts to; CHAT_NONE: it is none of them. Decided from the
 * control tokens that stand in the program, so tools and default system messages of the program are not considered. */
enum chat_template chat_recognize(const char *jinja);
/* ERR_INVALID: the tokenizer lacks a token of the template; the sentence names it. `t` stays valid until chat_free. */
NODISCARD err_t chat_new(enum chat_template template, const struct tokenizer *t, struct chat **ret, struct why *why);
void chat_free(struct chat *c);
/* Appends int32 ids and one byte for each: 1 if its prediction counts. The first token is BOS, once, where the template
 * has one. ERR_INVALID: a role that the template does not know; a text that contains a control token of the template,
 * which would forge a turn; no turn of the assistant, so that nothing would count. */
NODISCARD err_t chat_render(const struct chat *c, const struct doc_turn *turns, int n, struct buf *ids,
                            struct buf *weights, struct why *why);

/* ---- questions ---- */

/* Appends int32 ids of the turns and of what opens the assistant's next turn. `begins`: the conversation begins here,
 * with BOS where the template has one; else the turns follow what chat_close appended. Control tokens come from the
 * template only: a message that spells one is encoded as text. ERR_INVALID: a role that the template does not know; a
 * message that forges a turn although all of it is encoded as text ([INST] of a tokenizer without that token). */
NODISCARD err_t chat_ask(const struct chat *c, const struct doc_turn *turns, int n, bool begins, struct buf *ids,
                         struct why *why);
/* The token with which the assistant ends its turn. */
int32_t chat_stop(const struct chat *c);
/* Appends what follows the text of the assistant's turn; `stopped`: the assistant has written chat_stop. */
NODISCARD err_t chat_close(const struct chat *c, bool stopped, struct buf *ids, struct why *why);

#endif
