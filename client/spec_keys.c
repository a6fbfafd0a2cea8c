/* Prints the keys of a job file from the table that the parser uses. */
#include "common/conf/schema.h"

#include "client/spec_keys.h"
#include "common/conf/job.h"

void spec_keys_print(FILE *f)
{
    schema_help(&job_schema, f);
}
