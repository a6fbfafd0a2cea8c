/* The formats and the containers of dtd_tables, for data_prepare and data_resolve. The library links what daemons and
 * workers must not: only dtctl uses it.
 */
#ifndef DTD_COMMON_DATA_TABLES_H
#define DTD_COMMON_DATA_TABLES_H

#include "common/data/data.h"
#include "common/data/formats.h"

extern const struct format_row table_rows[]; /* ends with a NULL name */
extern const struct data_containers table_containers;

#endif
