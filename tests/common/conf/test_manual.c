/* The manual pages are what their tables say today; `ninja manuals` makes them so. */
#include "common/base/file.h"
#include "common/conf/job.h"
#include "common/conf/node.h"
#include "common/conf/schema.h"
#include "tests/lib/test.h"

#include <limits.h>

static void compare(const struct schema *schema, const char *name)
{
    char path[PATH_MAX];
    struct buf made = {0}, there = {0};
    const char *source = getenv("DTD_SOURCE");
    if (!source)
        TEST_SKIP("DTD_SOURCE is not set; ctest sets it");
    snprintf(path, sizeof(path), "%s/docs/%s", source, name);
    assert_ok(file_read(path, 1 << 20, &there));
    assert_ok(schema_manual(schema, &made));
    if (made.len != there.len || memcmp(made.data, there.data, made.len) != 0)
        fail_msg("docs/%s is not what the table says; run `ninja manuals` in the build folder", name);
    buf_fini(&made);
    buf_fini(&there);
}

TEST(job_page_is_current)
{
    compare(&job_schema, "job.md");
}

TEST(node_page_is_current)
{
    compare(&node_schema, "node.md");
}

TEST(help_names_every_key)
{
    char *text = NULL;
    size_t len;
    FILE *out = open_memstream(&text, &len);
    assert_non_null(out);
    schema_help(&job_schema, out);
    fclose(out);
    for (int i = 0; i < job_schema.n_rows; i++)
        if (!strstr(text, job_schema.rows[i].key) || !strstr(text, job_schema.rows[i].help))
            fail_msg("%s is not in the help", job_schema.rows[i].key);
    for (int i = 0; i < job_schema.n_sections; i++)
        assert_non_null(strstr(text, job_schema.sections[i].help));
    free(text);
}
