/* What `dtctl top` shows, as plain data: the answers of control, and what the user has chosen with keys. fetch.c fills
 * the first, keys.c changes the second, draw.c makes a screen of both. One thread. */
#ifndef DTD_CLIENT_TOP_MODEL_H
#define DTD_CLIENT_TOP_MODEL_H

#include "client/client.h"

#include <stdbool.h>
#include <stdint.h>

#define TOP_SERIES 512 /* more than the columns of a wide terminal */
#define TOP_LINES 500  /* events, and lines of logs */

struct top_node {
    char name[128], state[16], role[16];
    char health[256]; /* "": nothing is wrong */
    int slots, used;  /* -1: unknown, as all numbers here */
    int cores, gpus, gpus_free;
    int64_t memory_bytes, memory_free_bytes;
    double load; /* NAN: unknown */
};

/* Newest values last. */
struct top_series {
    double v[TOP_SERIES];
    int n;
};

/* The numbers of the ranks of one job; NULL: none are known. value[i] has one number per rank, NAN: unknown. */
enum top_use {
    TOP_STEP_S,
    TOP_COMPUTE_S,
    TOP_COMM_S,
    TOP_CPU,
    TOP_RSS,
    TOP_PLANNED,
    TOP_GPU,
    TOP_GPU_BYTES,
    TOP_CELSIUS,
    TOP_WATTS,
    TOP_USES
};
struct top_usage {
    int ranks;
    double *value[TOP_USES];
};

struct top_line {
    int64_t wall_ms; /* of an event; 0: none */
    char who[96];    /* "job 3", a node, a rank */
    char kind[24];
    char *text;
};
struct top_lines {
    struct top_line line[TOP_LINES];
    int n;
};

/* One job in full. */
struct top_job {
    bool known;
    struct client_job job; /* with workers and incidents */
    struct top_series loss, step_s;
    struct top_usage usage;
    char forecast[256]; /* a line that compares the forecast of a step with the newest window; "": none */
};

enum top_screen { TOP_OVERVIEW, TOP_JOB, TOP_EVENTS, TOP_LOGS, TOP_HELP };

/* What the keys of the next characters mean. */
enum top_prompt { TOP_NONE, TOP_FILTER, TOP_USER, TOP_DELAY, TOP_CANCEL };

struct top_view {
    enum top_screen screen, before; /* before: of events and logs, where they return to */
    enum top_screen help_from;
    enum top_prompt prompt;
    char input[64];
    char filter[64], user[64]; /* "": all */
    char job[32];              /* the selected job, and the one whose screen is shown */
    int rank;                  /* the selected rank */
    int job_sort, rank_sort;   /* see draw.c */
    int map;                   /* 0: the table of ranks; else the map of number map - 1 of top_maps */
    int scroll;                /* lines up from the end, in events and logs */
    double delay_s;
    char message[256]; /* of the last key; "": none */
};

struct top_model {
    char address[256]; /* the state directory */
    char lost[256];    /* why there is no answer from dtd; "": there is */
    int64_t now_ms;    /* wall clock */
    char leader[128];  /* "": none, or no cluster */
    uint64_t term;
    struct top_node *nodes;
    int n_nodes;
    struct client_job *jobs; /* as client_list */
    int n_jobs;
    struct top_job job;
    struct top_lines events, logs;
    struct top_view view;
};

#endif
