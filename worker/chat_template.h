/* Which chat template a checkpoint's model was trained with. */
#ifndef DTD_WORKER_CHAT_TEMPLATE_H
#define DTD_WORKER_CHAT_TEMPLATE_H

#include "common/base/err.h"
#include "common/conf/job.h"

struct ckpt;

/* `named` (NULL: none), else data.template of the checkpoint's job, else the template among the files that an import of
 * a Hugging Face model kept. ERR_INVALID: none of them names one; the sentence lists the templates. ERR_CORRUPT: the
 * kept files are not JSON. */
NODISCARD err_t chat_template_choose(struct ckpt *ckpt, const struct job_spec *job, const char *named,
                                     enum chat_template *ret, struct why *why);

#endif
