/* The members of the object are the rows of metric_fields, and "bytes". */
#include "common/rpc/metric_line.h"

#include <inttypes.h>
#include <jansson.h>
#include <limits.h>
#include <math.h>

static err_t put_field(struct buf *b, const struct field *f, const struct metric *m)
{
    const struct field_value v = field_get(f, m);
    const char *comma = b->len && b->data[b->len - 1] != '{' ? ", " : "";
    if (f->presence != FIELD_REQUIRED && field_absent(f, m))
        return OK;
    switch (f->kind) {
    case FIELD_REAL:
        return isfinite(v.real) ? buf_printf(b, "%s\"%s\": %.17g", comma, f->name, v.real)
                                : buf_printf(b, "%s\"%s\": null", comma, f->name);
    case FIELD_BOOL:
        return buf_printf(b, "%s\"%s\": %s", comma, f->name, v.whole ? "true" : "false");
    case FIELD_INT:
    case FIELD_UINT:
    case FIELD_TEXT: /* no metric is a text */
        break;
    }
    return buf_printf(b, "%s\"%s\": %" PRId64, comma, f->name, v.whole);
}

/* , "bytes": {"dp": 123, "tp": 456} */
static err_t put_traffic(struct buf *b, const struct traffic *t)
{
    char axes[MESH_AXES_NAME];
    err_t err = t->n ? buf_printf(b, ", \"bytes\": {") : OK;
    for (int i = 0; !err && i < t->n; i++)
        err = buf_printf(b, "%s\"%s\": %" PRId64, i ? ", " : "", mesh_axes_name(t->axes[i], axes), t->bytes[i]);
    return !err && t->n ? buf_printf(b, "}") : err;
}

err_t metric_line_format(const struct metric *m, struct buf *ret)
{
    const size_t start = ret->len;
    err_t err = buf_printf(ret, "{");
    for (int i = 0; !err && i < metric_fields.n; i++)
        err = put_field(ret, &metric_fields.field[i], m);
    err = err ? err : put_traffic(ret, &m->traffic);
    err = err ? err : buf_printf(ret, "}\n");
    if (err)
        ret->len = start;
    return err;
}

/* A missing required field is 0, or NaN if it is a real: lines of older versions do not have every field. */
static struct field_value value_of(const json_t *v)
{
    return (struct field_value){.whole = json_is_boolean(v) ? json_is_true(v) : json_integer_value(v),
                                .real = json_is_number(v) ? json_number_value(v) : NAN};
}

static void get_traffic(const json_t *o, struct traffic *ret)
{
    const json_t *bytes = json_object_get(o, "bytes");
    char name[MESH_AXES_NAME];
    size_t left = json_object_size(bytes); /* most lines have one set of axes, or none */
    for (unsigned axes = 1; left > 0 && axes < 1u << AXIS_COUNT; axes++) {
        const json_t *v = json_object_get(bytes, mesh_axes_name(axes, name));
        traffic_add(ret, axes, json_integer_value(v));
        left -= v != NULL;
    }
}

err_t metric_line_parse(const char *line, size_t len, struct metric *ret)
{
    if (len > METRIC_LINE_BYTES)
        return ERR_LIMIT;
    json_t *o = json_loadb(line, len, 0, NULL);
    struct metric m = metric_none;
    for (int i = 0; i < metric_fields.n; i++) {
        const struct field *f = &metric_fields.field[i];
        const json_t *v = json_object_get(o, f->name);
        if (v || f->presence == FIELD_REQUIRED)
            field_set(f, &m, value_of(v));
    }
    get_traffic(o, &m.traffic);
    bool valid =
        json_is_integer(json_object_get(o, "step")) && m.workers >= 0 && m.workers <= INT_MAX && m.epoch <= INT64_MAX;
    json_decref(o);
    if (!valid)
        return ERR_CORRUPT;
    *ret = m;
    return OK;
}
