/* Named values stand in `more` in the order of the table, then those that this version has no row for, in the order in
 * which they were received: equal structs have equal bytes on all nodes. */
#include "common/rpc/field_codec.h"

#include "proto/field.pb-c.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

static const ProtobufCFieldDescriptor *wire_field(const ProtobufCMessage *m, const char *name)
{
    return protobuf_c_message_descriptor_get_field_by_name(m->descriptor, name);
}

/* ---- fields with a number of their own ---- */

static void wire_set(ProtobufCMessage *m, const ProtobufCFieldDescriptor *w, struct field_value v)
{
    void *at = (char *)m + w->offset;
    if (w->label == PROTOBUF_C_LABEL_OPTIONAL && w->type != PROTOBUF_C_TYPE_STRING)
        *(protobuf_c_boolean *)(void *)((char *)m + w->quantifier_offset) = true;
    switch (w->type) {
    case PROTOBUF_C_TYPE_STRING:
        *(char **)at = (char *)v.text;
        break;
    case PROTOBUF_C_TYPE_DOUBLE:
        *(double *)at = v.real;
        break;
    case PROTOBUF_C_TYPE_INT32:
    case PROTOBUF_C_TYPE_UINT32:
        *(uint32_t *)at = (uint32_t)v.whole;
        break;
    case PROTOBUF_C_TYPE_INT64:
    case PROTOBUF_C_TYPE_UINT64:
        *(uint64_t *)at = (uint64_t)v.whole;
        break;
    case PROTOBUF_C_TYPE_BOOL:
        *(protobuf_c_boolean *)at = v.whole != 0;
        break;
    default:
        assert(!"a field of a type that no table has");
    }
}

static bool wire_present(const ProtobufCMessage *m, const ProtobufCFieldDescriptor *w)
{
    if (w->type == PROTOBUF_C_TYPE_STRING)
        return *(char *const *)(const void *)((const char *)m + w->offset) != NULL;
    return w->label == PROTOBUF_C_LABEL_REQUIRED ||
           *(const protobuf_c_boolean *)(const void *)((const char *)m + w->quantifier_offset);
}

static struct field_value wire_get(const ProtobufCMessage *m, const ProtobufCFieldDescriptor *w)
{
    const void *at = (const char *)m + w->offset;
    switch (w->type) {
    case PROTOBUF_C_TYPE_STRING:
        return (struct field_value){.text = *(const char *const *)at};
    case PROTOBUF_C_TYPE_DOUBLE:
        return (struct field_value){.real = *(const double *)at};
    case PROTOBUF_C_TYPE_INT32:
        return (struct field_value){.whole = *(const int32_t *)at};
    case PROTOBUF_C_TYPE_UINT32:
        return (struct field_value){.whole = *(const uint32_t *)at};
    case PROTOBUF_C_TYPE_INT64:
    case PROTOBUF_C_TYPE_UINT64:
        return (struct field_value){.whole = *(const int64_t *)at};
    case PROTOBUF_C_TYPE_BOOL:
        return (struct field_value){.whole = *(const protobuf_c_boolean *)at};
    default:
        assert(!"a field of a type that no table has");
        return (struct field_value){0};
    }
}

/* ---- named values ---- */

struct more {
    size_t *n;
    Dtd__FieldValue ***value;
};

static struct more more_of(const ProtobufCMessage *m)
{
    const ProtobufCFieldDescriptor *w = wire_field(m, "more");
    assert(w && w->label == PROTOBUF_C_LABEL_REPEATED && w->descriptor == &dtd__field_value__descriptor);
    return (struct more){.n = (void *)((char *)(uintptr_t)m + w->quantifier_offset),
                         .value = (void *)((char *)(uintptr_t)m + w->offset)};
}

static Dtd__FieldValue named_value(const struct field *f, struct field_value v)
{
    Dtd__FieldValue ret = DTD__FIELD_VALUE__INIT;
    ret.name = (char *)f->name;
    ret.text = f->kind == FIELD_TEXT ? (char *)v.text : NULL;
    ret.has_real = f->kind == FIELD_REAL;
    ret.real = v.real;
    ret.has_whole = f->kind != FIELD_TEXT && f->kind != FIELD_REAL;
    ret.whole = v.whole;
    return ret;
}

/* False: there is no value of this name and kind. */
static bool named_find(const ProtobufCMessage *m, const struct field *f, struct field_value *ret)
{
    const struct more more = more_of(m);
    for (size_t i = 0; i < *more.n; i++) {
        const Dtd__FieldValue *v = (*more.value)[i];
        if (strcmp(v->name, f->name) != 0)
            continue;
        *ret = (struct field_value){.text = v->text, .whole = v->whole, .real = v->real};
        return f->kind == FIELD_TEXT ? v->text != NULL : f->kind == FIELD_REAL ? v->has_real : v->has_whole;
    }
    return false;
}

static const struct field_rest *rest_of(const struct field_table *t, const void *object)
{
    static const struct field_rest none;
    return t->rest ? (const void *)((const char *)object + t->rest) : &none;
}

/* ---- structs ---- */

static bool is_sent(const struct field *f, const void *object, enum field_reader reader)
{
    if (f->presence == FIELD_REQUIRED)
        return true;
    return !field_absent(f, object) && (f->presence == FIELD_OPTIONAL || reader == FIELDS_FOR_DAEMONS);
}

/* Sets the fields that the message has, and returns the number of the others. */
static size_t encode_own(const struct field_table *t, const void *object, enum field_reader reader,
                         ProtobufCMessage *ret)
{
    size_t others = 0;
    for (int i = 0; i < t->n; i++) {
        const struct field *f = &t->field[i];
        const ProtobufCFieldDescriptor *w = wire_field(ret, f->name);
        if (!is_sent(f, object, reader))
            continue;
        if (w)
            wire_set(ret, w, field_get(f, object));
        else
            others++;
    }
    return others;
}

/* `more` is one block: the list, then the values that are not in `rest`. */
static err_t encode_more(const struct field_table *t, const void *object, enum field_reader reader, size_t others,
                         ProtobufCMessage *ret)
{
    const struct field_rest *rest = rest_of(t, object);
    const size_t n_rest = reader == FIELDS_FOR_DAEMONS ? rest->n : 0;
    struct more more = more_of(ret);
    if (others + n_rest == 0)
        return OK;
    Dtd__FieldValue **list = calloc(1, (others + n_rest) * sizeof(*list) + others * sizeof(**list));
    if (!list)
        return ERR_NOMEM;
    Dtd__FieldValue *value = (void *)(list + others + n_rest);
    size_t n = 0;
    for (int i = 0; i < t->n; i++) {
        const struct field *f = &t->field[i];
        if (wire_field(ret, f->name) || !is_sent(f, object, reader))
            continue;
        value[n] = named_value(f, field_get(f, object));
        list[n] = &value[n];
        n++;
    }
    for (size_t i = 0; i < n_rest; i++) {
        Dtd__FieldValue *v = rest->value[i];
        if (!field_find(t, v->name))
            list[n++] = v;
    }
    *more.n = n;
    *more.value = list;
    return OK;
}

err_t fields_encode(const struct field_table *t, const void *object, enum field_reader reader, ProtobufCMessage *ret)
{
    return encode_more(t, object, reader, encode_own(t, object, reader, ret), ret);
}

void fields_encoded_fini(ProtobufCMessage *message)
{
    struct more more = more_of(message);
    free(*more.value);
    *more.value = NULL;
    *more.n = 0;
}

void fields_decode(const struct field_table *t, const ProtobufCMessage *message, void *ret)
{
    for (int i = 0; i < t->n; i++) {
        const struct field *f = &t->field[i];
        const ProtobufCFieldDescriptor *w = wire_field(message, f->name);
        struct field_value v;
        if (w && wire_present(message, w))
            field_set(f, ret, wire_get(message, w));
        else if (!w && named_find(message, f, &v))
            field_set(f, ret, v);
        else
            field_clear(f, ret);
    }
    if (t->rest) {
        const struct more more = more_of(message);
        *(struct field_rest *)(void *)((char *)ret + t->rest) =
            (struct field_rest){.value = (void **)*more.value, .n = *more.n};
    }
}

/* ---- copies ---- */

static size_t text_bytes(const char *text)
{
    return text ? strlen(text) + 1 : 0;
}

static char *text_move(char **at, const char *text)
{
    const size_t bytes = text_bytes(text);
    char *ret = bytes ? memcpy(*at, text, bytes) : NULL;
    *at += bytes;
    return ret;
}

/* One block: the list, the values, their texts. */
static err_t rest_copy(const struct field_table *t, const struct field_rest *from, struct field_rest *ret)
{
    size_t bytes = 0, n = 0;
    *ret = (struct field_rest){0};
    for (size_t i = 0; i < from->n; i++) {
        const Dtd__FieldValue *v = from->value[i];
        if (field_find(t, v->name))
            continue;
        bytes += text_bytes(v->name) + text_bytes(v->text);
        n++;
    }
    if (!n)
        return OK;
    void **list = calloc(1, n * (sizeof(void *) + sizeof(Dtd__FieldValue)) + bytes);
    if (!list)
        return ERR_NOMEM;
    Dtd__FieldValue *value = (void *)(list + n);
    char *text = (char *)(value + n);
    for (size_t i = 0; i < from->n; i++) {
        const Dtd__FieldValue *v = from->value[i];
        if (field_find(t, v->name))
            continue;
        Dtd__FieldValue *to = &value[ret->n];
        *to = *v;
        to->base = (ProtobufCMessage)PROTOBUF_C_MESSAGE_INIT(&dtd__field_value__descriptor);
        to->name = text_move(&text, v->name);
        to->text = text_move(&text, v->text);
        list[ret->n++] = to;
    }
    ret->value = list;
    return OK;
}

err_t fields_copy(const struct field_table *t, const void *from, void *ret)
{
    err_t err = OK;
    memcpy(ret, from, t->bytes);
    if (t->rest)
        err = rest_copy(t, rest_of(t, from), (void *)((char *)ret + t->rest));
    for (int i = 0; i < t->n; i++) {
        const struct field *f = &t->field[i];
        const char *text = f->kind == FIELD_TEXT ? field_get(f, from).text : NULL;
        if (!text)
            continue;
        char *copy = strdup(text);
        field_set(f, ret, (struct field_value){.text = copy});
        err = copy ? err : ERR_NOMEM;
    }
    if (err)
        fields_fini(t, ret);
    return err;
}

/* ---- metrics ---- */

err_t metric_encode(const struct metric *metric, Dtd__Metric *ret)
{
    dtd__metric__init(ret);
    ret->n_traffic_axes = ret->n_traffic_bytes = (size_t)metric->traffic.n;
    ret->traffic_axes = (uint32_t *)metric->traffic.axes;
    ret->traffic_bytes = (int64_t *)metric->traffic.bytes;
    return fields_encode(&metric_fields, metric, FIELDS_FOR_CLIENTS, &ret->base);
}

struct metric metric_decode(const Dtd__Metric *message)
{
    struct metric ret = metric_none;
    fields_decode(&metric_fields, &message->base, &ret);
    for (size_t i = 0; i < message->n_traffic_axes && i < message->n_traffic_bytes; i++)
        if (message->traffic_axes[i] && message->traffic_axes[i] < 1u << AXIS_COUNT)
            traffic_add(&ret.traffic, message->traffic_axes[i], message->traffic_bytes[i]);
    return ret;
}

err_t metric_point_encode(const struct metric_point *p, struct metric_point_message *ret)
{
    err_t err = metric_encode(&p->last, &ret->msg);
    ret->msg.has_steps = true;
    ret->msg.steps = p->steps;
    ret->msg.spread = ret->list;
    for (int i = 0; i < METRIC_COLUMNS; i++) {
        const struct field *f = &metric_fields.field[i];
        const struct metric_spread *s = &p->of[i];
        if (!s->n || !metric_has_spread(f))
            continue;
        Dtd__MetricSpread *to = &ret->spread[ret->msg.n_spread];
        dtd__metric_spread__init(to);
        to->name = (char *)f->name;
        to->min = s->min;
        to->max = s->max;
        to->sum = s->sum;
        to->n = s->n;
        ret->list[ret->msg.n_spread++] = to;
    }
    return err;
}

void metric_point_decode(const Dtd__Metric *message, struct metric_point *ret)
{
    const struct metric last = metric_decode(message);
    metric_point_set(ret, &last);
    if (!message->has_steps || message->steps <= 1)
        return;
    ret->steps = message->steps;
    for (int i = 0; i < METRIC_COLUMNS; i++)
        if (metric_has_spread(&metric_fields.field[i]))
            ret->of[i] = (struct metric_spread){0};
    for (size_t i = 0; i < message->n_spread; i++) {
        const Dtd__MetricSpread *s = message->spread[i];
        const struct field *f = field_find(&metric_fields, s->name);
        if (f && metric_has_spread(f) && s->n > 0)
            ret->of[f - metric_fields.field] = (struct metric_spread){s->min, s->max, s->sum, s->n};
    }
}

/* ---- totals ---- */

err_t totals_encode(const struct totals *t, struct totals_message *ret)
{
    dtd__job_totals__init(&ret->msg);
    ret->msg.histogram = ret->list;
    for (int d = 0; d < TOTALS_DURATIONS; d++) {
        Dtd__JobHistogram *to = ret->list[d] = &ret->histogram[d];
        dtd__job_histogram__init(to);
        to->name = (char *)totals_bounds[d].name;
        to->n = (int64_t *)t->duration[d].n;
        to->n_n = (size_t)totals_bounds[d].n + 1;
        to->sum = t->duration[d].sum;
        ret->msg.n_histogram++;
    }
    return fields_encode(&totals_fields, t, FIELDS_FOR_CLIENTS, &ret->msg.base);
}

void totals_decode(const Dtd__JobTotals *message, struct totals *ret)
{
    *ret = (struct totals){0};
    fields_decode(&totals_fields, &message->base, ret);
    for (size_t i = 0; i < message->n_histogram; i++)
        for (int d = 0; d < TOTALS_DURATIONS; d++) {
            const Dtd__JobHistogram *from = message->histogram[i];
            if (strcmp(from->name, totals_bounds[d].name) != 0)
                continue;
            ret->duration[d].sum = from->sum;
            for (size_t k = 0; k < from->n_n && (int)k <= totals_bounds[d].n; k++)
                ret->duration[d].n[k] = from->n[k];
        }
}
