#include "common/rpc/incident.h"

#define ROW(...) FIELD_ROW(struct incident, __VA_ARGS__)

static const struct field rows[] = {INCIDENT_FIELDS(ROW)};

const struct field_table incident_fields = {rows, sizeof(rows) / sizeof(rows[0]), sizeof(struct incident),
                                            offsetof(struct incident, rest)};
const struct incident incident_none = {INCIDENT_FIELDS(FIELD_NONE)};
