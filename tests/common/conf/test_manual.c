/* The generated manual pages match their tables; `ninja manuals` regenerates them. */
#include "common/base/file.h"
#include "common/conf/job.h"
#include "common/conf/machine.h"
#include "common/conf/node.h"
#include "common/conf/schema.h"
#include "tests/lib/test.h"

#include <limits.h>

static void compare(const struct schema *schema, const char *name,
                    err_t (*write)(const struct schema *schema, struct buf *ret))
{
    char path[PATH_MAX];
    struct buf made = {0}, there = {0};
    const char *source = getenv("DTD_SOURCE");
    if (!source)
        TEST_SKIP("DTD_SOURCE is not set; ctest sets it");
    snprintf(path, sizeof(path), "%s/%s", source, name);
    assert_ok(file_read(path, 1 << 20, &there));
    assert_ok(write(schema, &made));
    if (made.len != there.len || memcmp(made.data, there.data, made.len) != 0)
        fail_msg("%s differs from its table; run `ninja manuals` in the build folder", name);
    buf_fini(&made);
    buf_fini(&there);
}

TEST(job_page_is_current)
{
    compare(&job_schema, "docs/use/job-file.md", schema_manual);
}

TEST(node_page_is_current)
{
    compare(&node_schema, "docs/operate/configuration.md", schema_manual);
}

TEST(machine_page_is_current)
{
    compare(&machine_schema, "docs/use/machines.md", schema_manual);
}

/* The installed file has only comments and parses. With every # before a key removed it still parses. */
TEST(example_is_current_and_legal)
{
    struct buf text = {0};
    struct node_conf conf;
    struct why why = {""};
    compare(&node_schema, "deploy/systemd/dtd.yaml", schema_example);
    assert_ok(schema_example(&node_schema, &text));
    assert_ok(node_conf_parse("dtd.yaml", (const char *)text.data, text.len, &conf, &why));
    node_conf_fini(&conf);
    for (size_t i = 0; i + 1 < text.len; i++) /* prose begins with "# " */
        if (text.data[i] == '#' && (text.data[i + 1] != ' ' || (text.data[i + 2] == ' ')))
            text.data[i] = ' ';
    /* "#key" has become " key", and "#  key" has become "   key": the two levels of indentation remain */
    assert_ok(node_conf_parse("dtd.yaml", (const char *)text.data, text.len, &conf, &why));
    assert_string_equal("auto", conf.gpus);
    node_conf_fini(&conf);
    buf_fini(&text);
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
        if (job_schema.rows[i].hidden != !strstr(text, job_schema.rows[i].key) ||
            job_schema.rows[i].hidden != !strstr(text, job_schema.rows[i].help))
            fail_msg("%s is %s the help", job_schema.rows[i].key, job_schema.rows[i].hidden ? "in" : "not in");
    for (int i = 0; i < job_schema.n_sections; i++)
        assert_non_null(strstr(text, job_schema.sections[i].help));
    free(text);
}
