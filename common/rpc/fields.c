#include "common/rpc/fields.h"

#include <stdlib.h>
#include <string.h>

struct field_value field_get(const struct field *f, const void *object)
{
    const char *at = (const char *)object + f->offset;
    switch (f->kind) {
    case FIELD_TEXT:
        return (struct field_value){.text = *(const char *const *)(const void *)at};
    case FIELD_INT:
        return (struct field_value){.whole = *(const int64_t *)(const void *)at};
    case FIELD_UINT:
        return (struct field_value){.whole = (int64_t) * (const uint64_t *)(const void *)at};
    case FIELD_REAL:
        return (struct field_value){.real = *(const double *)(const void *)at};
    case FIELD_BOOL:
        return (struct field_value){.whole = *(const bool *)(const void *)at};
    }
    return (struct field_value){0};
}

void field_set(const struct field *f, void *object, struct field_value value)
{
    void *at = (char *)object + f->offset;
    switch (f->kind) {
    case FIELD_TEXT:
        *(const char **)at = value.text;
        break;
    case FIELD_INT:
        *(int64_t *)at = value.whole;
        break;
    case FIELD_UINT:
        *(uint64_t *)at = (uint64_t)value.whole;
        break;
    case FIELD_REAL:
        *(double *)at = value.real;
        break;
    case FIELD_BOOL:
        *(bool *)at = value.whole != 0;
        break;
    }
}

void field_clear(const struct field *f, void *object)
{
    field_set(f, object,
              (struct field_value){.whole = f->kind == FIELD_INT ? FIELD_ABSENT_INT : 0, .real = FIELD_ABSENT_REAL});
}

bool field_absent(const struct field *f, const void *object)
{
    const struct field_value v = field_get(f, object);
    switch (f->kind) {
    case FIELD_TEXT:
        return !v.text;
    case FIELD_INT:
        return v.whole < 0;
    case FIELD_REAL:
        return isnan(v.real);
    case FIELD_UINT:
    case FIELD_BOOL:
        break;
    }
    return v.whole == 0;
}

const struct field *field_find(const struct field_table *t, const char *name)
{
    for (int i = 0; i < t->n; i++)
        if (strcmp(t->field[i].name, name) == 0)
            return &t->field[i];
    return NULL;
}

void fields_fini(const struct field_table *t, void *object)
{
    for (int i = 0; i < t->n; i++) {
        if (t->field[i].kind == FIELD_TEXT)
            free((char *)field_get(&t->field[i], object).text);
        field_clear(&t->field[i], object);
    }
    if (t->rest) {
        struct field_rest *rest = (void *)((char *)object + t->rest);
        free(rest->value); /* one block: fields_copy */
        *rest = (struct field_rest){0};
    }
}
