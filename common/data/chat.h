/* Conversations as tokens, by the chat templates of well-known models. Only the assistant's turns count in the loss,
 * with the token that ends them. A template is immutable; any number of threads may use it. For common/data only. */
#ifndef DTD_COMMON_DATA_CHAT_H
#define DTD_COMMON_DATA_CHAT_H

#include "common/base/buf.h"
#include "common/conf/job.h"
#include "common/data/source.h"

struct tokenizer;
struct chat;

const char *chat_name(enum chat_template template);
/* ERR_INVALID: the tokenizer lacks a token of the template; the sentence names it. `t` stays valid until chat_free. */
NODISCARD err_t chat_new(enum chat_template template, const struct tokenizer *t, struct chat **ret, struct why *why);
void chat_free(struct chat *c);
/* Appends int32 ids and one byte for each: 1 if its prediction counts. The first token is BOS, once, where the template
 * has one. ERR_INVALID: a role that the template does not know; a text that contains a control token of the template,
 * which would forge a turn; no turn of the assistant, so that nothing would count. */
NODISCARD err_t chat_render(const struct chat *c, const struct doc_turn *turns, int n, struct buf *ids,
                            struct buf *weights, struct why *why);

#endif
