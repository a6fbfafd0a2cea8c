#include "client/spec.h"
#include "tests/lib/test.h"

#include <limits.h>
#include <sys/stat.h>

TEST(node_bytes_are_plausible)
{
    int64_t bytes = -1;
    struct why why;
    assert_ok(spec_node_bytes(&bytes, &why));
    int64_t all = (int64_t)sysconf(_SC_PHYS_PAGES) * sysconf(_SC_PAGESIZE);
    assert_true(bytes > 0 && bytes <= all);
}

static struct job_spec job_in(const char *dir)
{
    static char text[PATH_MAX];
    snprintf(text, sizeof(text), "%s", dir);
    return (struct job_spec){.checkpoint = {.dir = text}};
}

TEST(a_checkpoint_folder_that_is_not_there_is_made_later)
{
    char path[PATH_MAX];
    struct why why;
    snprintf(path, sizeof(path), "%s/a/b/c", test_tmpdir());
    struct job_spec job = job_in(path);
    assert_ok(spec_check_dir(&job, NULL, &why));
    assert_int_not_equal(access(path, F_OK), 0); /* the check creates nothing */
    assert_int_equal(mkdir(strcat(strcpy(path, test_tmpdir()), "/a"), 0700), 0);
    assert_ok(spec_check_dir(&job, NULL, &why));
}

TEST(find_step_in_what_is_no_checkpoint)
{
    char path[PATH_MAX], step[PATH_MAX], root[PATH_MAX];
    struct why why;
    assert_err(ERR_NOTFOUND, spec_find_step(test_tmpdir(), -1, step, sizeof(step), root, &why));
    assert_non_null(strstr(why.text, "no complete checkpoint"));
    snprintf(path, sizeof(path), "%s/absent", test_tmpdir());
    assert_err(ERR_NOTFOUND, spec_find_step(path, -1, step, sizeof(step), root, &why));
    assert_non_null(strstr(why.text, "absent"));
    /* An incomplete step folder is not a checkpoint. */
    snprintf(path, sizeof(path), "%s/step-5", test_tmpdir());
    assert_int_equal(mkdir(path, 0700), 0);
    assert_err(ERR_NOTFOUND, spec_find_step(test_tmpdir(), -1, step, sizeof(step), root, &why));
}
