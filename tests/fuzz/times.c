/* Any bytes as a table of measured times: they are refused with a message; otherwise the table prints as one of as many
 * rows. Times are printed with four digits, and rounded, one at a limit may be beyond it. */
#include "common/plan/estimate/table.h"

#include <stdint.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct plan_table t, again;
    struct why why = {""};
    struct buf text = {0};
    if (plan_table_read((const char *)data, size, "x", &t, &why)) {
        if (!why.text[0])
            abort();
        return 0;
    }
    if (buf_printf(&text, "dtd times 1\n") || plan_table_print(t.rows, t.n, &text))
        abort();
    if (!plan_table_read((const char *)text.data, text.len, "again", &again, &why)) {
        if (again.n != t.n)
            abort();
        plan_table_fini(&again);
    }
    plan_table_fini(&t);
    buf_fini(&text);
    return 0;
}
