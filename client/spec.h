/* From a job file to a spec that can run: paths made absolute, data prepared and hashed, the plan compiled and checked
 * for every rank. Everything that can be refused is refused here, before anything is started. Blocking; no daemon
 * needed. */
#ifndef DTD_CLIENT_SPEC_H
#define DTD_CLIENT_SPEC_H

#include "client/out.h"
#include "common/base/buf.h"
#include "common/ckpt/ckpt.h"
#include "common/conf/job.h"
#include "common/plan/forecast.h"
#include "common/plan/program.h"

#include <stdint.h>

/* Reads and parses; `sets` as in job_parse. Paths come out absolute and globs resolved, against the file's folder. */
NODISCARD err_t spec_read(const char *file, const char *const *sets, int n_sets, struct job_spec *ret, struct why *why);

/* Makes paths absolute against `folder` and turns globs into files. */
NODISCARD err_t spec_resolve(struct job_spec *job, const char *folder, struct why *why);

/* data.tokenizer_files alone. */
NODISCARD err_t spec_resolve_tokenizer(struct job_spec *job, const char *folder, struct why *why);

/* What a complete check found out. */
struct spec_facts {
    int64_t train_tokens, train_samples, valid_tokens, valid_samples, test_tokens, test_samples, vocab;
    int64_t params;
    double flops_per_token;
    struct plan_memory memory; /* of the rank that needs most */
    int64_t node_bytes;        /* what the node has to spare */
    int workers;
    int *micros; /* microbatches of each rank per step; NULL where no rank was compiled */
    int n_micros;
    struct plan_memory *ranks; /* by rank */
    struct plan_rates rates;   /* that the forecast is made with */
    struct forecast forecast;  /* of one step; n 0: none */
};
void spec_facts_fini(struct spec_facts *f);

/* Prepares data (progress, when not NULL, on a terminal), fills in what the file left open (hashes,
 * vocabulary, cache), checks data and plan. A spec with data hashes keeps them and is refused when the data has
 * changed; the training files are read again to see that only when the shards are gone, or with `new_train`. */
NODISCARD err_t spec_complete(struct job_spec *job, bool new_train, struct out_progress *progress,
                              struct spec_facts *ret, struct why *why);

/* The same for who only asks: in well under a second whatever the job, so a plan that is too large to be compiled for
 * every rank in that time is neither checked nor forecast, and a job that does not fit on this node is planned all the
 * same. */
NODISCARD err_t spec_plan(struct job_spec *job, struct out_progress *progress, struct spec_facts *ret, struct why *why);

/* checkpoint.dir can be written (or made), and does not hold checkpoints that a fresh job would mix with. `from`: the
 * root that the job resumes from, which is then allowed; NULL. ERR_EXISTS names what is there and the remedy. */
NODISCARD err_t spec_check_dir(const struct job_spec *job, const char *from, struct why *why);
/* The checkpoint's tensors are the model's: names and shapes, none missing, none too many. Names the first that
 * differs. */
NODISCARD err_t spec_check_model(const struct job_spec *job, struct ckpt *ckpt, const char *dir, struct why *why);

/* The spec as YAML with a NUL at its end. */
NODISCARD err_t spec_print(const struct job_spec *job, struct buf *ret);
/* Replaces a text field of a spec. */
NODISCARD err_t spec_text_set(char **field, const char *text);
/* The newest step below `path` (a root, or a step folder itself), or `step` when it is not negative. ret: its folder;
 * ret_root: the folder that holds it. ERR_NOTFOUND when there is none, saying what is there. */
NODISCARD err_t spec_find_step(const char *path, int64_t step, char *ret, size_t size, char *ret_root, struct why *why);
/* MemAvailable, or less in a control group with a limit. */
NODISCARD err_t spec_node_bytes(int64_t *ret, struct why *why);

#endif
