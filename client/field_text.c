#include "client/field_text.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static const char *real_text(const struct field *f, double value, char ret[OUT_NUMBER])
{
    if (f->look == LOOK_COUNT)
        return out_count(value, ret);
    if (f->look == LOOK_SIGNIFICANT)
        return out_real(value, f->digits, ret);
    snprintf(ret, OUT_NUMBER, "%.*f", f->digits, value);
    return ret;
}

const char *field_text(const struct field *f, const void *object, char ret[OUT_NUMBER])
{
    const struct field_value v = field_get(f, object);
    switch (f->kind) {
    case FIELD_TEXT:
        return v.text ? v.text : "";
    case FIELD_REAL:
        return real_text(f, v.real, ret);
    case FIELD_BOOL:
        return v.whole ? "yes" : "no";
    case FIELD_INT:
        if (field_absent(f, object))
            return "-";
        break;
    case FIELD_UINT:
        break;
    }
    snprintf(ret, OUT_NUMBER, "%" PRId64, v.whole);
    return ret;
}

const char *field_unit(const struct field *f, char ret[OUT_NUMBER])
{
    snprintf(ret, OUT_NUMBER, "%s%s", f->unit ? " " : "", f->unit ? f->unit : "");
    return ret;
}

bool field_shown(const struct field *f, const void *object)
{
    return !field_absent(f, object) && (f->kind != FIELD_TEXT || field_get(f, object).text[0]);
}
