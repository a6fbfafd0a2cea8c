/* `manual job FILE` and `manual node FILE` write a manual page from its table. */
#include "common/base/file.h"
#include "common/conf/job.h"
#include "common/conf/node.h"
#include "common/conf/schema.h"

#include <stdio.h>
#include <string.h>

int main(int argc, char **argv)
{
    struct buf page = {0};
    if (argc != 3 || (strcmp(argv[1], "job") != 0 && strcmp(argv[1], "node") != 0)) {
        fprintf(stderr, "usage: manual job|node FILE\n");
        return 2;
    }
    err_t err = schema_manual(strcmp(argv[1], "job") == 0 ? &job_schema : &node_schema, &page);
    if (!err)
        err = file_replace(argv[2], page.data, page.len, 0644);
    if (err)
        fprintf(stderr, "%s: %s\n", argv[2], err_text(err));
    buf_fini(&page);
    return err ? 1 : 0;
}
