/* The probe is our own program, but its output depends on a driver. So it is checked like the input of a stranger. */
#include "daemon/control/local/gpus.h"

#include <jansson.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

/* ---- how many ---- */

void gpus_set(struct gpus *g, int n)
{
    g->known = true;
    g->watched = false;
    g->n = n;
    g->model[0] = g->sick[0] = '\0';
    for (int i = 0; i < GPUS_MAX; i++) {
        g->gpu[i].broken = g->gpu[i].seen = false;
        g->gpu[i].numa_node = g->gpu[i].minor = -1;
        g->gpu[i].load = gpu_load_none;
        g->gpu[i].uuid[0] = g->gpu[i].sick[0] = '\0';
    }
    snprintf(g->missing, sizeof(g->missing), "%s", n ? "" : "dtd's configuration sets gpus: 0");
}

void gpus_fail(struct gpus *g, const char *why)
{
    gpus_set(g, 0);
    snprintf(g->missing, sizeof(g->missing), "%s", why);
}

static void copy_text(const json_t *object, const char *key, char *ret, size_t size)
{
    const char *text = json_string_value(json_object_get(object, key));
    snprintf(ret, size, "%s", text ? text : "");
    for (char *c = ret; *c; c++)
        if ((unsigned char)*c < ' ' || *c == 0x7f)
            *c = '?';
}

/* ---- health ---- */

/* Signs of a GPU whose results cannot be trusted, from counters of the driver's library. A counter is a sign if it has
 * reached `least`. A GPU can retire at most 64 pages of memory. Heat and power only slow a GPU down; they are no such
 * signs. */
static const struct {
    const char *group, *key; /* `key` in the object `group` of "health"; NULL: in "health" itself */
    int64_t least;
    const char *what; /* completes "GPU 0 .." */
} signs[] = {
    {NULL, "lost", 1, "is lost: the driver does not reach it any more"},
    {NULL, "ecc_uncorrected_volatile", 1, "has uncorrectable memory errors"},
    {NULL, "retired_pages", 64, "has retired pages of memory"},
    {"remapped_rows", "pending", 1, "has rows of memory that wait for a reset"},
    {"remapped_rows", "failed", 1, "has rows of memory that could not be replaced"},
};

/* Numbers of "health" that only show how busy the GPU is. */
static const struct {
    const char *key, *field; /* in the output, and in common/rpc/node_load.h */
    double unit;
} uses[] = {
    {"temperature_c", "temperature_c", 1},         {"power_mw", "power_w", 1e-3},
    {"power_limit_mw", "power_limit_w", 1e-3},     {"busy_percent", "busy", 1e-2},
    {"memory_used_bytes", "memory_used_bytes", 1},
};

/* The size of the memory is in the output of the probe only. */
static void read_use(const json_t *health, struct gpu_load *ret)
{
    const int64_t memory_bytes = ret->memory_bytes;
    *ret = gpu_load_none;
    ret->memory_bytes = memory_bytes;
    for (size_t i = 0; i < sizeof(uses) / sizeof(uses[0]); i++) {
        const json_t *value = json_object_get(health, uses[i].key);
        const struct field *f = field_find(&gpu_load_fields, uses[i].field);
        if (json_is_integer(value) && json_integer_value(value) >= 0)
            field_set(f, ret,
                      (struct field_value){.whole = json_integer_value(value),
                                           .real = (double)json_integer_value(value) * uses[i].unit});
    }
}

/* *ret is "" if there is no sign. */
static void read_signs(const json_t *health, char *ret, size_t size)
{
    size_t at = 0;
    ret[0] = '\0';
    for (size_t k = 0; k < sizeof(signs) / sizeof(signs[0]) && at < size; k++) {
        const json_t *group = signs[k].group ? json_object_get(health, signs[k].group) : health;
        const json_t *value = json_object_get(group, signs[k].key);
        json_int_t n = json_is_true(value) ? 1 : json_integer_value(value);
        if (n < signs[k].least)
            continue;
        at += (size_t)snprintf(ret + at, size - at, "%s%s", at ? " and " : "", signs[k].what);
        if (json_is_integer(value) && at < size)
            at += (size_t)snprintf(ret + at, size - at, " (%lld)", (long long)n);
    }
}

static void describe_sick(struct gpus *g)
{
    size_t at = 0;
    g->sick[0] = '\0';
    for (int i = 0; i < g->n && at < sizeof(g->sick); i++)
        if (g->gpu[i].sick[0])
            at += (size_t)snprintf(g->sick + at, sizeof(g->sick) - at, "%sGPU %d is not used: it %s", at ? "; " : "", i,
                                   g->gpu[i].sick);
    if (g->sick[0] && gpus_count(g) == 0)
        snprintf(g->missing, sizeof(g->missing), "%s", g->sick);
}

void gpus_mark_sick(struct gpus *g, int i, const char *what)
{
    if (i < 0 || i >= g->n || !*what)
        return;
    snprintf(g->gpu[i].sick, sizeof(g->gpu[i].sick), "%s", what);
    describe_sick(g);
}

void gpus_mark_broken(struct gpus *g, int i)
{
    if (i >= 0 && i < g->n && g->gpu[i].job == 0)
        g->gpu[i].broken = true;
}

const char *gpus_sick(const struct gpus *g, int i)
{
    return i >= 0 && i < g->n ? g->gpu[i].sick : "";
}

bool gpus_minors(const struct gpus *g, uint64_t set, uint64_t *ret)
{
    uint64_t bits = 0;
    if (!g->known || !g->n)
        return false;
    for (int i = 0; i < g->n; i++) {
        if (g->gpu[i].minor < 0)
            return false;
        bits |= (set >> i & 1) << g->gpu[i].minor;
    }
    *ret = bits;
    return true;
}

int gpus_numa_node(const struct gpus *g, int i)
{
    return i >= 0 && i < g->n ? g->gpu[i].numa_node : -1;
}

bool gpus_is_usable(const struct gpus *g, int i)
{
    return !g->gpu[i].broken && !g->gpu[i].sick[0];
}

static int find_uuid(const struct gpus *g, const json_t *gpu)
{
    const char *uuid = json_string_value(json_object_get(gpu, "uuid"));
    for (int i = 0; uuid && *uuid && i < g->n; i++)
        if (strcmp(g->gpu[i].uuid, uuid) == 0)
            return i;
    return -1;
}

/* The driver no longer reports this GPU's uuid. A lost GPU does not count here: take_health detects it because no entry
 * of the list names it. */
static bool is_unidentified(const json_t *gpu)
{
    return !json_is_string(json_object_get(gpu, "uuid")) && !json_is_true(json_object_get(gpu, "lost"));
}

static void read_health(struct gpus *g, const json_t *list, uint64_t *ret)
{
    uint64_t named = 0, sick = 0;
    bool riddles = false;
    for (size_t k = 0; k < json_array_size(list); k++) {
        const json_t *gpu = json_array_get(list, k);
        char what[GPUS_SICK_BYTES];
        int i = find_uuid(g, gpu);
        riddles = riddles || is_unidentified(gpu);
        if (i < 0)
            continue;
        named |= UINT64_C(1) << i;
        g->gpu[i].seen = true;
        read_use(json_object_get(gpu, "health"), &g->gpu[i].load);
        read_signs(json_object_get(gpu, "health"), what, sizeof(what));
        if (!*what || g->gpu[i].sick[0])
            continue;
        gpus_mark_sick(g, i, what);
        sick |= UINT64_C(1) << i;
    }
    for (int i = 0; i < g->n && !riddles; i++)
        if (g->gpu[i].seen && !g->gpu[i].sick[0] && !(named >> i & 1)) {
            gpus_mark_sick(g, i, signs[0].what);
            sick |= UINT64_C(1) << i;
        }
    *ret = sick;
}

/* ---- output of the probe ---- */

static int numa_number(json_int_t n)
{
    return n >= 0 && n <= INT_MAX ? (int)n : -1;
}

static int minor_number(json_int_t n)
{
    return n >= 0 && n < GPUS_MAX ? (int)n : -1;
}

/* A GPU that cannot be opened is not assigned to any job. If no GPU is usable, its error becomes the reason. */
static void read_gpu(struct gpus *g, const json_t *gpu, int i)
{
    char what[GPUS_SICK_BYTES];
    const json_t *node = json_object_get(gpu, "numa_node"), *minor = json_object_get(gpu, "minor");
    copy_text(gpu, "uuid", g->gpu[i].uuid, sizeof(g->gpu[i].uuid));
    g->gpu[i].numa_node = json_is_integer(node) ? numa_number(json_integer_value(node)) : -1;
    g->gpu[i].minor = json_is_integer(minor) ? minor_number(json_integer_value(minor)) : -1;
    g->watched = g->watched || json_object_get(gpu, "health");
    if (!json_object_get(gpu, "error")) {
        copy_text(gpu, "model", g->model, sizeof(g->model));
        if (json_is_integer(json_object_get(gpu, "memory_bytes")))
            g->gpu[i].load.memory_bytes = json_integer_value(json_object_get(gpu, "memory_bytes"));
        read_use(json_object_get(gpu, "health"), &g->gpu[i].load);
        read_signs(json_object_get(gpu, "health"), what, sizeof(what));
        gpus_mark_sick(g, i, what);
    } else {
        copy_text(gpu, "error", g->missing, sizeof(g->missing));
        gpus_mark_broken(g, i);
    }
}

static err_t read_gpu_list(struct gpus *g, const json_t *root, struct why *why)
{
    const json_t *list = json_object_get(root, "gpus");
    if (!json_is_array(list))
        return why_set(why, ERR_CORRUPT, "the output of the probe has no list \"gpus\"");
    size_t n = json_array_size(list);
    if (n > GPUS_MAX)
        return why_set(why, ERR_CORRUPT, "the probe reports %zu GPUs; dtd supports at most %d", n, GPUS_MAX);
    for (size_t i = 0; i < n; i++)
        if (json_integer_value(json_object_get(json_array_get(list, i), "index")) != (json_int_t)i)
            return why_set(why, ERR_CORRUPT, "entry %zu of the probe's list \"gpus\" does not have the index %zu", i,
                           i);
    gpus_set(g, (int)n);
    copy_text(root, "gpu_missing", g->missing, sizeof(g->missing));
    for (size_t i = n; i-- > 0;)
        read_gpu(g, json_array_get(list, i), (int)i);
    return OK;
}

static json_t *parse_output(const char *text, size_t len, struct why *why)
{
    json_error_t e;
    json_t *root = len <= GPUS_PROBE_MAX ? json_loadb(text, len, JSON_REJECT_DUPLICATES, &e) : NULL;
    if (!root)
        why_set(why, ERR_CORRUPT, "the output of the probe is not JSON: %s",
                len <= GPUS_PROBE_MAX ? e.text : "it is too long");
    return root;
}

err_t gpus_read(struct gpus *g, const char *text, size_t len, struct why *why)
{
    json_t *root = parse_output(text, len, why);
    err_t err = root ? read_gpu_list(g, root, why) : ERR_CORRUPT;
    json_decref(root);
    return err;
}

static err_t read_health_list(struct gpus *g, const json_t *root, uint64_t *ret, struct why *why)
{
    const json_t *list = json_object_get(root, "gpus");
    char missing[sizeof(g->missing)];
    if (!json_is_array(list))
        return why_set(why, ERR_CORRUPT, "the output of the probe has no list \"gpus\"");
    for (size_t k = 0; k < json_array_size(list); k++)
        if (!json_is_object(json_array_get(list, k)))
            return why_set(why, ERR_CORRUPT, "entry %zu of the probe's list \"gpus\" is not an object", k);
    copy_text(root, "gpu_missing", missing, sizeof(missing));
    if (json_array_size(list) == 0)
        return why_set(why, ERR_NOTFOUND, "%s", *missing ? missing : "the driver's library lists no GPU");
    read_health(g, list, ret);
    return OK;
}

err_t gpus_health_read(struct gpus *g, const char *text, size_t len, uint64_t *ret, struct why *why)
{
    json_t *root = parse_output(text, len, why);
    err_t err = root ? read_health_list(g, root, ret, why) : ERR_CORRUPT;
    json_decref(root);
    return err;
}

/* ---- assignment to jobs ---- */

int gpus_needed(int workers, int per_gpu)
{
    return (workers + per_gpu - 1) / per_gpu;
}

int gpus_count(const struct gpus *g)
{
    int n = 0;
    for (int i = 0; i < g->n; i++)
        n += gpus_is_usable(g, i);
    return n;
}

int gpus_free(const struct gpus *g)
{
    int n = 0;
    for (int i = 0; i < g->n; i++)
        n += g->gpu[i].job == 0 && gpus_is_usable(g, i);
    return n;
}

int gpus_busy(const struct gpus *g, uint64_t job)
{
    int n = 0;
    for (int i = 0; i < g->n; i++)
        n += g->gpu[i].job != 0 && g->gpu[i].job != job && gpus_is_usable(g, i);
    return n;
}

int gpus_held(const struct gpus *g, uint64_t job)
{
    int n = 0;
    for (int i = 0; i < g->n; i++)
        n += g->gpu[i].job == job && gpus_is_usable(g, i);
    return n;
}

static int find_gpu_for(const struct gpus *g, uint64_t job, int per_gpu)
{
    for (int i = 0; i < g->n; i++)
        if (g->gpu[i].job == job && g->gpu[i].workers < per_gpu && gpus_is_usable(g, i))
            return i;
    for (int i = 0; i < g->n; i++)
        if (g->gpu[i].job == 0 && gpus_is_usable(g, i))
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
        int i = find_gpu_for(&after, job, per_gpu);
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
    g->gpu[device].broken = false; /* the worker has opened it */
}

void gpus_give(struct gpus *g, uint64_t job)
{
    for (int i = 0; i < GPUS_MAX; i++)
        if (g->gpu[i].job == job) {
            g->gpu[i].job = 0;
            g->gpu[i].workers = 0;
        }
}

void gpus_forget(struct gpus *g)
{
    for (int i = 0; i < GPUS_MAX; i++) {
        g->gpu[i].job = 0;
        g->gpu[i].workers = 0;
    }
}
