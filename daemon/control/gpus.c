/* See gpus.h. The probe is a process of our own, but what stands behind it is a driver: its words are checked like a
 * stranger's. */
#include "daemon/control/gpus.h"

#include <jansson.h>
#include <stdio.h>
#include <string.h>

/* ---- how many ---- */

void gpus_set(struct gpus *g, int n)
{
    g->known = true;
    g->n = n;
    g->model[0] = g->sick[0] = '\0';
    snprintf(g->missing, sizeof(g->missing), "%s", n ? "" : "dtd's configuration says gpus: 0");
}

void gpus_fail(struct gpus *g, const char *why)
{
    gpus_set(g, 0);
    snprintf(g->missing, sizeof(g->missing), "%s", why);
}

static void take_text(const json_t *object, const char *key, char *ret, size_t size)
{
    const char *text = json_string_value(json_object_get(object, key));
    snprintf(ret, size, "%s", text ? text : "");
    for (char *c = ret; *c; c++)
        if ((unsigned char)*c < ' ' || *c == 0x7f)
            *c = '?';
}

/* Signs of a GPU whose results cannot be trusted, by what the driver's library says; below the number all is well. More
 * than 64 pages cannot be retired. Heat and power only slow it down, and are no such sign. */
static const struct {
    const char *group, *key; /* group NULL: of "health" itself */
    int64_t least;
    const char *what;
} signs[] = {
    {NULL, "ecc_uncorrected_volatile", 1, "uncorrectable memory errors"},
    {NULL, "retired_pages", 64, "retired pages of memory"},
    {"remapped_rows", "pending", 1, "rows of memory that wait for a reset"},
    {"remapped_rows", "failed", 1, "rows of memory that could not be replaced"},
};

static bool is_sick(struct gpus *g, const json_t *gpu, size_t i)
{
    const json_t *health = json_object_get(gpu, "health");
    bool sick = false;
    for (size_t k = 0; k < sizeof(signs) / sizeof(signs[0]); k++) {
        const json_t *group = signs[k].group ? json_object_get(health, signs[k].group) : health;
        json_int_t n = json_integer_value(json_object_get(group, signs[k].key));
        size_t at = strlen(g->sick);
        if (n < signs[k].least)
            continue;
        sick = true;
        snprintf(g->sick + at, sizeof(g->sick) - at, "%sGPU %zu is not used (%s: %lld)", at ? "; " : "", i,
                 signs[k].what, (long long)n);
    }
    return sick;
}

/* One that cannot be opened is nobody's, and its words are the reason when it is the only one. */
static void take_one(struct gpus *g, const json_t *gpu, size_t i)
{
    if (!json_object_get(gpu, "error")) {
        take_text(gpu, "model", g->model, sizeof(g->model));
        if (!is_sick(g, gpu, i))
            return;
        snprintf(g->missing, sizeof(g->missing), "%s", g->sick);
    } else {
        take_text(gpu, "error", g->missing, sizeof(g->missing));
    }
    if (g->gpu[i].job == 0)
        g->gpu[i].job = GPUS_BROKEN;
}

static err_t take_list(struct gpus *g, const json_t *root, struct why *why)
{
    const json_t *list = json_object_get(root, "gpus");
    if (!json_is_array(list))
        return why_set(why, ERR_CORRUPT, "the probe's words have no list \"gpus\"");
    size_t n = json_array_size(list);
    if (n > GPUS_MAX)
        return why_set(why, ERR_CORRUPT, "the probe speaks of %zu GPUs, at most %d are used", n, GPUS_MAX);
    for (size_t i = 0; i < n; i++)
        if (json_integer_value(json_object_get(json_array_get(list, i), "index")) != (json_int_t)i)
            return why_set(why, ERR_CORRUPT, "the probe's GPU %zu does not have the index %zu", i, i);
    gpus_set(g, (int)n);
    take_text(root, "gpu_missing", g->missing, sizeof(g->missing));
    for (size_t i = n; i-- > 0;)
        take_one(g, json_array_get(list, i), i);
    return OK;
}

err_t gpus_read(struct gpus *g, const char *text, size_t len, struct why *why)
{
    json_error_t e;
    json_t *root = len <= GPUS_PROBE_MAX ? json_loadb(text, len, JSON_REJECT_DUPLICATES, &e) : NULL;
    if (!root)
        return why_set(why, ERR_CORRUPT, "the probe's words are no JSON: %s",
                       len <= GPUS_PROBE_MAX ? e.text : "they are too long");
    err_t err = take_list(g, root, why);
    json_decref(root);
    return err;
}

/* ---- which job has which ---- */

int gpus_needed(int workers, int per_gpu)
{
    return (workers + per_gpu - 1) / per_gpu;
}

int gpus_count(const struct gpus *g)
{
    int n = 0;
    for (int i = 0; i < g->n; i++)
        n += g->gpu[i].job != GPUS_BROKEN;
    return n;
}

int gpus_free(const struct gpus *g)
{
    int n = 0;
    for (int i = 0; i < g->n; i++)
        n += g->gpu[i].job == 0;
    return n;
}

static int find(const struct gpus *g, uint64_t job, int per_gpu)
{
    for (int i = 0; i < g->n; i++)
        if (g->gpu[i].job == job && g->gpu[i].workers < per_gpu)
            return i;
    for (int i = 0; i < g->n; i++)
        if (g->gpu[i].job == 0)
            return i;
    return -1;
}

bool gpus_take(struct gpus *g, uint64_t job, int workers, int per_gpu, int *device)
{
    struct gpus after = *g;
    int given[GPUS_MAX * 64];
    int n = 0;
    for (int k = 0; k < workers; k++) {
        if (device[k] >= 0)
            continue;
        int i = find(&after, job, per_gpu);
        if (i < 0)
            return false;
        after.gpu[i].job = job;
        after.gpu[i].workers++;
        given[n++] = i;
    }
    *g = after;
    for (int k = 0, at = 0; k < workers; k++)
        if (device[k] < 0)
            device[k] = given[at++];
    return true;
}

void gpus_adopt(struct gpus *g, uint64_t job, int device)
{
    if (device < 0 || device >= GPUS_MAX)
        return;
    g->gpu[device].job = job;
    g->gpu[device].workers++;
}

void gpus_give(struct gpus *g, uint64_t job)
{
    for (int i = 0; i < GPUS_MAX; i++)
        if (g->gpu[i].job == job) {
            g->gpu[i].job = 0;
            g->gpu[i].workers = 0;
        }
}
