/* Turns a job file into a spec that can run: makes paths absolute, prepares and hashes the data, compiles the plan of
 * every rank and checks it. All errors that can be found before the start are found here. Blocking; needs no daemon. */
#ifndef DTD_CLIENT_SPEC_H
#define DTD_CLIENT_SPEC_H

#include "client/out.h"
#include "common/base/buf.h"
#include "common/ckpt/ckpt.h"
#include "common/conf/job.h"
#include "common/plan/choose/choose.h"
#include "common/plan/estimate/forecast.h"
#include "common/plan/estimate/memory.h"
#include "common/plan/program.h"

#include <stdint.h>

/* Reads and parses a job file; `sets` as in job_parse. Resolves paths and globs relative to the file's folder. */
NODISCARD err_t spec_read(const char *file, const char *const *sets, int n_sets, struct job_spec *ret, struct why *why);

/* Makes relative paths absolute, from `folder`, and replaces globs by the files that match. */
NODISCARD err_t spec_resolve(struct job_spec *job, const char *folder, struct why *why);

/* The same for data.tokenizer_files alone. */
NODISCARD err_t spec_resolve_tokenizer(struct job_spec *job, const char *folder, struct why *why);

/* Results of the check of a spec. */
/* The choices of parallel.recompute that change how the rows of experts are kept. */
static const enum recompute spec_recomputes[] = {RECOMPUTE_NONE, RECOMPUTE_EXPERTS, RECOMPUTE_FULL};
#define SPEC_RECOMPUTES 3
/* The ways to divide the rows of experts: all at once, in rounds, equally many on each rank. */
enum spec_rows { SPEC_ROUTED, SPEC_ROUNDS, SPEC_BALANCED, SPEC_ROWS };

/* A source of the training data: its samples in one pass, how many the job takes from it, and passes over it. */
struct spec_source {
    int64_t samples, taken;
    double passes;
    double filled; /* part of its inputs that is not padding */
};

struct spec_facts {
    struct spec_source *sources; /* one, or those of a mixture */
    int n_sources;
    int64_t train_tokens, train_samples, valid_tokens, valid_samples, test_tokens, test_samples, vocab;
    int64_t params;
    double flops_per_token;
    struct plan_memory memory;    /* of the rank that needs most */
    int64_t node_bytes;           /* available memory of this node */
    char chosen[PLAN_CHOICE_WHY]; /* with parallel.auto: the layout and why; else "" */
    int workers;
    int *micros; /* microbatches of each rank per step; NULL: no rank was compiled */
    int n_micros;
    struct plan_memory *ranks; /* by rank */
    /* With experts: total bytes of the rank that needs most, by the way to divide rows and parallel.recompute. 0:
     * not computed, or the job cannot choose it. */
    int64_t expert_bytes[SPEC_ROWS][SPEC_RECOMPUTES];
    double expert_rows;        /* parallel.expert_rows of the rounds */
    struct plan_rates rates;   /* rates that the forecast assumes */
    struct forecast forecast;  /* of one step; n 0: none */
    char rates_source[256];    /* where the rates are from; "": they are assumed */
    double low_s, high_s;      /* between which the step is expected; high_s 0: unknown */
    char interval_source[320]; /* how this interval was found */
    /* The part of the operations' time that was measured, and the names of operations whose time follows from rates
     * ("messages": those between stages of a pipeline). measured 0: why no measured time is used, or "". */
    double measured;
    char formulas[128];
};
void spec_facts_fini(struct spec_facts *f);

/* Prepares the data, fills in the keys that the file leaves open (hashes, vocabulary, cache), and checks data, plan and
 * memory. `progress` may be NULL; it is drawn on a terminal only. A spec with data hashes keeps them, and data that has
 * changed is an error. The training files are read for this comparison only if their shards are missing or `new_train`
 * is set. */
NODISCARD err_t spec_complete(struct job_spec *job, bool new_train, struct out_progress *progress,
                              struct spec_facts *ret, struct why *why);

/* The same for `dtctl plan`, which must answer within a second for any job. Therefore a plan that is too large to be
 * compiled for every rank in this time is neither checked nor forecast. Memory is reported, but a job that does not fit
 * on this node is no error. `machine`: whose rates the forecast has, as in planner_machine; NULL: those of this node.
 */
NODISCARD err_t spec_plan(struct job_spec *job, const char *machine, struct out_progress *progress,
                          struct spec_facts *ret, struct why *why);

/* The plan alone, of a job whose spec is complete: neither its data nor this node's memory are looked at. The facts
 * about data are 0. `machine`: as above. */
NODISCARD err_t spec_plan_model(const struct job_spec *job, const char *machine, struct spec_facts *ret,
                                struct why *why);

/* Checks that checkpoint.dir can be written (or created), and holds no checkpoints of other jobs. `from`: the folder
 * that the job resumes from, which may hold checkpoints; NULL: none. ERR_EXISTS names the checkpoints and the remedy.
 */
NODISCARD err_t spec_check_dir(const struct job_spec *job, const char *from, struct why *why);
/* Checks that no job of another daemon owns checkpoint.dir (spec_owner.c), which takes up to 5 s if a job has left it
 * without notice. ERR_OWNED names the owner. TAKE_OVER: sets checkpoint.take_over instead, and reports it on stderr. */
enum owner_policy { OWNER_REFUSE, OWNER_TAKE_OVER, OWNER_IMPORT };
NODISCARD err_t spec_check_owner(struct job_spec *job, enum owner_policy policy, struct why *why);
/* Checks that the checkpoint has exactly the model's tensors, by name and shape, in a type that can be loaded. The
 * error names the first difference. */
NODISCARD err_t spec_check_model(const struct job_spec *job, struct ckpt *ckpt, const char *dir, struct why *why);

/* ---- the checkpoint that a job resumes from (spec_resume.c): every command that starts a job asks these questions
 * ---- */

/* Empties checkpoint.map. */
void spec_map_clear(struct job_spec *job);
/* Opens a step folder, under the names that checkpoint.map gives its tensors. The caller closes it. */
NODISCARD err_t spec_open_step(const struct job_spec *job, const char *dir, struct ckpt **ret, struct why *why);
/* If the job has no rules of its own and the checkpoint has names of a newer torchtitan, adds rules for them to
 * checkpoint.map, renames the tensors of the open checkpoint, and reports each rule on stderr (spec_names.c). */
NODISCARD err_t spec_names_adopt(struct job_spec *job, struct ckpt *ckpt, const char *dir, struct why *why);
/* Checks that the job continues what the checkpoint's job began: the model's tensors, the keys that a resume may not
 * change (if the checkpoint has a job file), and the optimizer state. Decides checkpoint.optimizer. Reports on stderr
 * what the user should know: a fresh optimizer state, a learning rate that jumps. */
NODISCARD err_t spec_check_resume(struct job_spec *job, struct ckpt *ckpt, const char *dir, struct why *why);
/* Checks that the prepared training data has the checkpoint's vocabulary. After spec_complete. */
NODISCARD err_t spec_check_vocab(const struct job_spec *job, struct ckpt *ckpt, const char *dir, struct why *why);

/* The spec as YAML, NUL-terminated. */
NODISCARD err_t spec_print(const struct job_spec *job, struct buf *ret);
/* Replaces a string of a spec by a copy of `text`. */
NODISCARD err_t spec_text_set(char **field, const char *text);
/* Finds a checkpoint in `path`, which is a folder of step folders, or a step folder: `step`, or the newest if `step` is
 * negative. ret: the step folder; ret_root: the folder that holds it. ERR_NOTFOUND names the newest one if any. */
NODISCARD err_t spec_find_step(const char *path, int64_t step, char *ret, size_t size, char *ret_root, struct why *why);

#endif
