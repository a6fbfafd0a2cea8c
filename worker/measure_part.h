/* What the parts of `dt-worker --measure` share. Private to worker/measure*.c. */
#ifndef DTD_WORKER_MEASURE_PART_H
#define DTD_WORKER_MEASURE_PART_H

#include "common/base/buf.h"
#include "common/conf/job.h"
#include "common/plan/estimate/table.h"
#include "kernels/kernels.h"
#include "worker/step/engine.h"

/* One measured time. */
struct measure_sample {
    struct table_key key;
    double size[TABLE_DIMS], seconds;
    uint64_t call; /* of a collective: equal on all ranks that take part in this call of it, and nowhere else; else 0 */
};

#define MEASURE_PROCESSES 256 /* the most ranks of a shared-memory comm */
/* Processes whose times enter the table, and that form one job of a step that is held out; more would not make medians
 * better. */
#define MEASURE_SAMPLED 8

enum measure_figure {
    FIGURE_PEAK_F32,
    FIGURE_PRODUCT_F32,
    FIGURE_PRODUCT_BF16,
    FIGURE_PRODUCT_F64,
    FIGURE_MEMORY,
    FIGURE_COPY,
    FIGURE_OPERATION,
    FIGURE_LINK,
    FIGURE_LATENCY,
    FIGURE_STORAGE,
    FIGURE_STORAGE_READ,
    FIGURE_STORAGE_CACHED,
    FIGURES
};

/* The samples of one process in one part, in memory that it shares with its parent. */
#define MEASURE_SAMPLES 65536
struct measure_samples {
    int n;
    struct measure_sample list[MEASURE_SAMPLES];
};

/* Held-out steps of one process: those of models that the table has no times of. */
#define MEASURE_HELD_STEPS 8
#define MEASURE_HELD_CALLS 8192 /* operations in a step; the models below have up to 1,500 */
struct measure_held {
    int steps;
    double clock_s;                                        /* the lower quartile of steps by the clock */
    float seconds[MEASURE_HELD_CALLS][MEASURE_HELD_STEPS]; /* processor time of each operation in each step */
};

/* What a process of a part works with. */
struct measure {
    int rank, world, fd; /* fd: the segment of the comm */
    int turn;            /* of a part with several turns: which */
    bool hurried;        /* the calibration is late: repeat less often */
    const char *folder;  /* in which storage is measured */
    struct dev *dev;
    struct kern_stream *stream;
    double *figures;                 /* shared with the parent */
    struct measure_samples *samples; /* the same; NULL: the parent needs none of this process */
    struct measure_held *held;       /* the same */
    struct why *why;
};

int64_t measure_thread_ns(void); /* processor time of this thread */

/* ---- measure_rates.c: figures of one kind of work ---- */

double measure_median(double *x, int n); /* sorts */
NODISCARD err_t measure_rate_peak(struct measure *m);
NODISCARD err_t measure_rate_products(struct measure *m); /* of layers, in float32 and bfloat16 */
NODISCARD err_t measure_rate_products_f64(struct measure *m);
NODISCARD err_t measure_rate_memory(struct measure *m);
NODISCARD err_t measure_rate_operations(struct measure *m); /* the least time of one */
NODISCARD err_t measure_rate_links(struct measure *m);

/* ---- measure_kernels.c: kernels one by one, over grids of sizes ---- */

#define MEASURE_TYPES 2 /* turns: float32, bfloat16 */
extern const int measure_types;
NODISCARD err_t measure_products(struct measure *m);
NODISCARD err_t measure_kernels(struct measure *m);
void measure_add(struct measure *m, const struct measure_sample *s);

/* ---- measure_steps.c: operations of whole steps ---- */

extern const int measure_steps_turns;
NODISCARD err_t measure_steps(struct measure *m);

/* `each`: samples of a microbatch; `micros`: microbatches of each rank. */
struct measure_model {
    const char *model;
    int steps, seq, each, micros;
    const char *dtype, *layout;
    int replica; /* workers of a replica */
};
/* The job of this model on so many workers; fewer if they do not form whole replicas. The caller frees `ret`. */
NODISCARD err_t measure_job(const struct measure_model *model, int world, struct buf *ret_yaml, struct job_spec *ret,
                            struct why *why);
/* Runs `fn` with an engine that is ready to step; `feed` has any tokens, which every run of the job shares. */
typedef err_t measure_engine_fn(struct measure *m, struct engine *e, const struct engine_feed *feed);
NODISCARD err_t measure_run_engine(struct measure *m, const struct job_spec *job, measure_engine_fn *fn);

/* What the engine records in some steps. */
struct measure_recording {
    struct recorded program;
    int *first_call;
    struct engine_record record;
    struct engine_profile profile;
};
NODISCARD err_t measure_recording_init(struct measure_recording *r, const struct engine *e, int steps);
void measure_recording_fini(struct measure_recording *r);

/* ---- measure_held.c: steps by which the client judges its forecasts ---- */

extern const int measure_held_turns;
NODISCARD err_t measure_held(struct measure *m);

/* A step that was held out. */
struct measure_layout {
    struct buf yaml;          /* the job */
    double replay_s, clock_s; /* the step (worker/replay.h), and by the clock */
};
/* In the parent, for the turn that `world` processes have run. `rates`: those of messages. Freed by buf_fini. */
NODISCARD err_t measure_held_replay(int turn, int world, const struct measure_held *held,
                                    const struct plan_rates *rates, struct measure_layout *ret, struct why *why);

/* ---- measure_storage.c ---- */

/* Bytes per second that the folder takes and gives; *ret_cached 1: it keeps files in memory, from which they were
 * read; else 0. */
NODISCARD err_t measure_storage(struct measure *m, double *ret_write, double *ret_read, double *ret_cached);

/* ---- measure_table.c ---- */

/* The samples of all parts, in the parent. */
struct measure_all {
    struct measure_sample *list;
    int n, cap;
};
/* Adds those of the processes. Of one call of a collective the rank that arrived last counts, since it did not wait. */
NODISCARD err_t measure_collect(struct measure_all *all, const struct measure_samples *of, int world);
/* Reduces the samples of each operation and size to a row, and prints the table. */
NODISCARD err_t measure_table(struct measure_all *all, struct buf *ret);
void measure_all_fini(struct measure_all *all);

#endif
