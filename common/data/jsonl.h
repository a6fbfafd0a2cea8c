/* JSON lines: one object per line is one document. For common/data only.
 *
 * Without options->field, the keys determine what a line is: `text`; `input_ids`, with `labels` (-100: not in the loss)
 * or `loss_mask`; `messages`, a list of {role, content}; `prompt` and `completion`, which become two turns with these
 * names as roles. All lines of a file are of one kind, and a line that may be two kinds is refused. */
#ifndef DTD_COMMON_DATA_JSONL_H
#define DTD_COMMON_DATA_JSONL_H

#include "common/data/stream.h"

#define JSONL_MAX_LINE ((size_t)1 << 30) /* a longer line is a file of another format; it is in memory as a whole */

bool jsonl_is(const uint8_t *head, size_t len, const char *path);
/* `in` must stay open until the reader is closed. */
NODISCARD err_t jsonl_open(struct byte_stream *in, const struct doc_options *o, struct doc_reader **ret,
                           struct why *why);

#endif
