/* The animation of a training step: what each rank holds at each moment, and what moves between ranks, from the
 * programs of a job and their forecast. explain.c computes it, explain_json.c writes it as data for the page, and
 * explain_svg.c draws one picture of it. Pure, but for the files that it writes. */
#ifndef DTD_CLIENT_EXPLAIN_EXPLAIN_H
#define DTD_CLIENT_EXPLAIN_EXPLAIN_H

#include "common/conf/job.h"
#include "common/plan/estimate/forecast.h"
#include "common/plan/program.h"

#include <jansson.h>
#include <stdbool.h>
#include <stdio.h>

/* In the order of the pictures: what stays constant lies at the bottom. */
enum explain_kind { EXPLAIN_OPT, EXPLAIN_PARAM, EXPLAIN_GRAD, EXPLAIN_ACT, EXPLAIN_BUFFER, EXPLAIN_KINDS };

/* An instance of a buffer that has a value in [start, end). Values that outlive the step have start 0 and the step's
 * end. */
struct explain_life {
    int buffer, instance;
    enum explain_kind kind;
    double start, end;
};

/* What a rank holds of a unit besides its pieces of parameters and moments, which it holds all the time. */
enum explain_part {
    EXPLAIN_WHOLE, /* parameters as its ops read them: gathered, or in the compute type */
    EXPLAIN_LOCAL, /* gradients as its ops write them */
    EXPLAIN_SUM,   /* gradients of its own pieces: with ZeRO alone */
    EXPLAIN_PARTS
};

/* From `at` on, a rank holds so many bytes of a kind, or of a part of a unit. */
struct explain_change {
    double at;
    int key; /* enum explain_kind; unit * EXPLAIN_PARTS + enum explain_part */
    int64_t bytes;
};

struct explain_changes {
    struct explain_change *all; /* in the order of time */
    int n, cap;
};

struct explain_rank {
    struct explain_life *lives;
    int n_lives, cap_lives;
    struct explain_changes memory, units;
    int64_t reserved[SPACE_COUNT]; /* what the worker reserves for each space */
    int64_t peak;                  /* the most bytes with a value at one moment */
};

/* A collective, or a message between two ranks. */
struct explain_move {
    enum op_kind kind; /* OP_RECV: a message, from ranks[0] to ranks[1] */
    enum explain_kind what;
    int n, *ranks;
    int64_t *in;   /* by member: bytes that it receives */
    bool gradient; /* of activations, not the activations */
    bool back;     /* exchange: from the ranks of the experts back to those of the tokens */
    int turn;      /* shift: member i receives from member (i + turn) % n; else 0 */
    unsigned axes;
    int unit, layer, micro; /* -1: none; of a message the microbatch whose values it has */
    double start, end;
};

struct explain {
    const struct program *programs;
    const struct graph *graph;
    const struct forecast *did; /* the spans: `forecast`, or a measured step */
    struct forecast forecast;
    int n;
    double seconds;
    struct explain_rank *ranks;
    struct explain_move *moves; /* in the order of their starts */
    int n_moves, cap_moves;
};

/* `programs`: of all n ranks, checked; they and `g` outlive *ret. measured: NULL, or a measured step of n ranks: then
 * an op has its place within the measured time of its action that the forecast gives it. Freed by explain_fini. */
NODISCARD err_t explain_init(const struct program *programs, const struct graph *g, int n,
                             const struct plan_rates *rates, const struct forecast *measured, struct explain *ret,
                             struct why *why);
void explain_fini(struct explain *x); /* legal on a zeroed one */

/* A unit of the model in words: "embedding", "layer 3", "head". */
const char *explain_unit_name(const struct graph *g, int unit, char *text, size_t size);
/* Whether the tensor is a parameter of the unit, and this rank has it. */
bool explain_has(const struct explain *x, int rank, int tensor, int unit);

/* The animation as JSON (explain_json.c gives the form): a new reference, NULL: out of memory. */
json_t *explain_json(const struct explain *x, const char *name, const char *about);
/* The page with @DATA@ in place of the data; CMake makes it of explain.html, explain.css and explain.js. The linked
 * one names the last two as files beside it, for a server whose pages may have no inline script. */
extern const char explain_template[], explain_linked_template[];
/* Prints a page that either has all its parts, or is `linked`. ERR_NOMEM alone: the caller checks the file. */
NODISCARD err_t explain_page_print(const struct explain *x, const char *name, const char *about, bool linked, FILE *out,
                                   struct why *why);
/* Write the page, or one picture. */
NODISCARD err_t explain_page_write(const struct explain *x, const char *name, const char *about, const char *path,
                                   struct why *why);
NODISCARD err_t explain_svg_write(const struct explain *x, const char *name, const char *path, struct why *why);

/* ---- a job (explain_job.c) ---- */

struct explain_job {
    struct graph graph;
    struct program *programs;
    int n;
    struct explain animation;
};

/* Compiles and checks the programs of all ranks. `ret` is zeroed before; the caller frees it in any case, with
 * explain_job_fini. ERR_LIMIT: too many ranks for a page. */
NODISCARD err_t explain_job_compile(const struct job_spec *job, struct explain_job *ret, struct why *why);
/* measured: as in explain_init. ERR_LIMIT: too many transfers for a page. */
NODISCARD err_t explain_job_animate(const struct job_spec *job, const struct forecast *measured, struct explain_job *e,
                                    struct why *why);
void explain_job_fini(struct explain_job *e);

/* ---- ready-made jobs ---- */

struct explain_layout {
    const char *name, *about; /* about: one sentence that the page shows */
    const char *job;          /* the job file */
};
extern const struct explain_layout explain_layouts[];
extern const int n_explain_layouts;
/* NULL: there is none of this name. */
const struct explain_layout *explain_layout_find(const char *name);
/* The job of a layout, complete but for the data, which it needs none of. The caller frees *ret with job_fini. */
NODISCARD err_t explain_layout_job(const struct explain_layout *l, struct job_spec *ret, struct why *why);

#endif
