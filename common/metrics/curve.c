/* Most curves are called train/NAME; the table lists the others. Settings are read from the schema of the job file, so
 * that new keys appear without further changes. */
#include "common/metrics/curve.h"

#include "common/base/hash.h"
#include "common/conf/schema.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* By the beginning of the metric's name, which `to` replaces. NULL: not a curve, but the axes of all of them. */
static const struct curve_name {
    const char *from, *to;
} names[] = {
    {"step_s", "perf/step_s"},
    {"step", NULL},
    {"wall_ms", NULL},
    {"valid_", "valid/"},
    {"test_", "test/"},
    {"expert_", "experts/"},
    {"aux_loss", "experts/aux_loss"},
    {"z_loss", "experts/z_loss"},
    {"tokens_per_s", "perf/tokens_per_s"},
    {"mfu", "perf/mfu"},
    {"workers", "perf/workers"},
    {"epoch", "perf/epoch"},
    {"", "train/"},
};

static bool curve_name(const char *name, char ret[CURVE_NAME])
{
    const struct curve_name *n = names;
    while (strncmp(name, n->from, strlen(n->from)) != 0)
        n++;
    return n->to && snprintf(ret, CURVE_NAME, "%s%s", n->to, name + strlen(n->from)) < CURVE_NAME;
}

int curves_of(const struct metric *m, struct curve ret[CURVES_MAX])
{
    char axes[MESH_AXES_NAME];
    int n = 0;
    for (int i = 0; i < metric_fields.n && n < CURVES_MAX; i++) {
        const struct field *f = &metric_fields.field[i];
        const struct field_value v = field_get(f, m);
        if (f->presence != FIELD_REQUIRED && field_absent(f, m))
            continue;
        if (curve_name(f->name, ret[n].name))
            ret[n++].value = f->kind == FIELD_REAL ? v.real : (double)v.whole;
    }
    for (int i = 0; i < m->traffic.n && n < CURVES_MAX; i++, n++) {
        snprintf(ret[n].name, CURVE_NAME, "bytes/%s", mesh_axes_name(m->traffic.axes[i], axes));
        ret[n].value = (double)m->traffic.bytes[i];
    }
    return n;
}

/* ---- the card ---- */

static bool is_setting(const struct schema_row *row)
{
    static const char *const sections[] = {"model.", "data.", "train.", "parallel."};
    bool shown = false;
    for (size_t i = 0; i < sizeof(sections) / sizeof(sections[0]); i++)
        shown = shown || strncmp(row->key, sections[i], strlen(sections[i])) == 0;
    return shown && !row->hidden && row->type != SCHEMA_TEXT && row->type != SCHEMA_LIST && row->type != SCHEMA_MAP;
}

static err_t take_setting(const struct schema_row *row, const struct job_spec *job, struct card *c)
{
    struct buf text = {0};
    struct card_setting *s = &c->setting[c->n_setting];
    err_t err = schema_value_print(row, job, &text);
    err = err ? err : buf_append(&text, "", 1);
    if (err) {
        buf_fini(&text);
        return err;
    }
    *s = (struct card_setting){.key = row->key, .kind = CARD_NUMBER, .text = (char *)text.data};
    s->number = strtod(s->text, NULL);
    if (row->type == SCHEMA_BOOL) {
        s->kind = CARD_BOOL;
        s->number = strcmp(s->text, "true") == 0;
    } else if (row->type == SCHEMA_ENUM) {
        s->kind = CARD_WORD;
    }
    c->n_setting++;
    return OK;
}

/* Eight characters of 0-9 and a-z: W&B's usual run id. */
static void make_run_id(struct card *c)
{
    struct hash h;
    char text[64];
    int n = snprintf(text, sizeof(text), "%s %lld", c->job, (long long)c->submitted_ms);
    hash_init(&h);
    hash_add(&h, text, (size_t)n);
    uint64_t x = hash_end(&h);
    for (int i = 0; i < 8; i++, x /= 36)
        c->run_id[i] = "0123456789abcdefghijklmnopqrstuvwxyz"[x % 36];
}

static err_t take_file(struct job_spec *job, struct card *c)
{
    struct buf text = {0};
    for (int i = 0; i < job->run.n_env; i++)
        free(job->run.env[i]);
    job->run.n_env = 0;
    err_t err = job_print(job, &text);
    err = err ? err : buf_append(&text, "", 1);
    if (err)
        buf_fini(&text);
    else
        c->file = (char *)text.data;
    return err;
}

static err_t take_job(struct job_spec *job, struct card *c)
{
    err_t err = OK;
    c->name = strdup(job->name);
    c->steps = job->train.steps;
    c->setting = calloc((size_t)job_schema.n_rows, sizeof(*c->setting));
    if (!c->name || !c->setting)
        return ERR_NOMEM;
    for (int i = 0; !err && i < job_schema.n_rows; i++)
        if (is_setting(&job_schema.rows[i]))
            err = take_setting(&job_schema.rows[i], job, c);
    return err ? err : take_file(job, c);
}

err_t card_make(const char *job, int64_t submitted_ms, const char *spec_yaml, struct card *ret, struct why *why)
{
    struct card c = {.job = strdup(job), .submitted_ms = submitted_ms};
    struct job_spec spec;
    if (!c.job)
        return why_set(why, ERR_NOMEM, "out of memory");
    err_t err = job_parse("the job's file", spec_yaml, strlen(spec_yaml), NULL, 0, &spec, why);
    if (!err) {
        err = take_job(&spec, &c);
        if (err)
            why_set(why, err, "the settings of job %s: %s", job, err_text(err));
        job_fini(&spec);
    }
    if (err) {
        card_fini(&c);
        return err;
    }
    if (gethostname(c.host, sizeof(c.host) - 1))
        snprintf(c.host, sizeof(c.host), "unknown");
    make_run_id(&c);
    *ret = c;
    return OK;
}

void card_fini(struct card *c)
{
    for (int i = 0; i < c->n_setting; i++)
        free(c->setting[i].text);
    free(c->setting);
    free(c->job);
    free(c->name);
    free(c->file);
    *c = (struct card){0};
}

/* ---- points ---- */

size_t curve_points_before(const struct curve_points *p, int64_t step)
{
    size_t low = 0, high = p->n;
    while (low < high) {
        size_t mid = low + (high - low) / 2;
        if (p->point[mid].step < step)
            low = mid + 1;
        else
            high = mid;
    }
    return low;
}

err_t curve_points_add(struct curve_points *p, const struct curve_point *point)
{
    p->n = curve_points_before(p, point->step);
    if (p->n == p->cap) {
        size_t cap = p->cap ? 2 * p->cap : 256;
        struct curve_point *more = realloc(p->point, cap * sizeof(*more));
        if (!more)
            return ERR_NOMEM;
        p->point = more;
        p->cap = cap;
    }
    p->point[p->n++] = *point;
    return OK;
}

bool curve_points_have(const struct curve_points *p, const struct metric *row)
{
    size_t i = curve_points_before(p, row->step);
    return i < p->n && p->point[i].step == row->step && p->point[i].wall_ms == row->wall_ms;
}

void curve_points_fini(struct curve_points *p)
{
    free(p->point);
    *p = (struct curve_points){0};
}
