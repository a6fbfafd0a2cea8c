/* `manual job FILE`, `manual node FILE` and `manual machine FILE` write a manual page from its table; `manual example
 * FILE` writes the configuration file that is installed. */
#include "common/base/file.h"
#include "common/conf/job.h"
#include "common/conf/machine.h"
#include "common/conf/node.h"
#include "common/conf/schema.h"

#include <stdio.h>
#include <string.h>

static const struct {
    const char *name;
    const struct schema *schema;
    err_t (*write)(const struct schema *schema, struct buf *ret);
} pages[] = {{"job", &job_schema, schema_manual},
             {"node", &node_schema, schema_manual},
             {"machine", &machine_schema, schema_manual},
             {"example", &node_schema, schema_example}};

int main(int argc, char **argv)
{
    struct buf text = {0};
    for (size_t i = 0; argc == 3 && i < sizeof(pages) / sizeof(*pages); i++) {
        if (strcmp(argv[1], pages[i].name) != 0)
            continue;
        err_t err = pages[i].write(pages[i].schema, &text);
        if (!err)
            err = file_replace(argv[2], text.data, text.len, 0644);
        if (err)
            fprintf(stderr, "%s: %s\n", argv[2], err_text(err));
        buf_fini(&text);
        return err ? 1 : 0;
    }
    fprintf(stderr, "usage: manual job|node|machine|example FILE\n");
    return 2;
}
