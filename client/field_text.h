/* Values of a table of fields (common/rpc/fields.h) as text for people. */
#ifndef DTD_CLIENT_FIELD_TEXT_H
#define DTD_CLIENT_FIELD_TEXT_H

#include "client/out.h"
#include "common/rpc/fields.h"

/* The value without its unit, as the row asks for; "-" when a number is absent. `ret` holds numbers; a text is returned
 * as it is. */
const char *field_text(const struct field *f, const void *object, char ret[OUT_NUMBER]);
/* The unit with a space before it, or "". */
const char *field_unit(const struct field *f, char ret[OUT_NUMBER]);
/* Whether the value is worth a line of its own: it is present and not an empty text. */
bool field_shown(const struct field *f, const void *object);

#endif
