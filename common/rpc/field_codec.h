/* Copies between a struct that has a table of fields and a protobuf message. A row and a field of the message belong
 * together if they have the same name. Rows without such a field travel in the message's repeated field `more`, as
 * FieldValue (proto/field.proto). Pure functions; no thread owns anything. */
#ifndef DTD_COMMON_RPC_FIELD_CODEC_H
#define DTD_COMMON_RPC_FIELD_CODEC_H

#include "common/base/err.h"
#include "common/rpc/fields.h"
#include "common/rpc/metric.h"
#include "common/rpc/metric_point.h"
#include "common/rpc/totals.h"
#include "proto/client.pb-c.h"

enum field_reader { FIELDS_FOR_DAEMONS, FIELDS_FOR_CLIENTS /* without FIELD_INTERNAL and values of a newer version */ };

/* Fills `ret`, a message that has been initialized. It borrows the struct's texts; fields_encoded_fini frees what it
 * owns, also after an error (ERR_NOMEM). */
NODISCARD err_t fields_encode(const struct field_table *t, const void *object, enum field_reader reader,
                              ProtobufCMessage *ret);
void fields_encoded_fini(ProtobufCMessage *message);
/* Sets every field and the rest of `ret`, which borrow from the message. Other members are not changed. */
void fields_decode(const struct field_table *t, const ProtobufCMessage *message, void *ret);

/* The same for a metric, with its traffic, which is borrowed, too. Sets of axes that do not exist are left out. */
NODISCARD err_t metric_encode(const struct metric *metric, Dtd__Metric *ret);
struct metric metric_decode(const Dtd__Metric *message);

/* A point as a message, which points into this struct and borrows from the point. */
struct metric_point_message {
    Dtd__Metric msg;
    Dtd__MetricSpread spread[METRIC_COLUMNS];
    Dtd__MetricSpread *list[METRIC_COLUMNS];
};
/* fields_encoded_fini(&ret->msg.base) frees what the message owns, also after an error (ERR_NOMEM). */
NODISCARD err_t metric_point_encode(const struct metric_point *p, struct metric_point_message *ret);
/* A message without a number of steps is a point of one row. */
void metric_point_decode(const Dtd__Metric *message, struct metric_point *ret);

/* The same for totals. Histograms and buckets that this version does not have are left out. */
struct totals_message {
    Dtd__JobTotals msg;
    Dtd__JobHistogram histogram[TOTALS_DURATIONS];
    Dtd__JobHistogram *list[TOTALS_DURATIONS];
};
NODISCARD err_t totals_encode(const struct totals *t, struct totals_message *ret);
void totals_decode(const Dtd__JobTotals *message, struct totals *ret);

#endif
