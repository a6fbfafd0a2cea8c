/* A job file, and after a zero byte a --set. An accepted job, printed and read again, gives the same text. */
#include "common/conf/job.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(bool holds, const char *what)
{
    if (holds)
        return;
    fprintf(stderr, "%s\n", what);
    abort();
}

static void check_round_trip(const struct job_spec *job)
{
    struct buf first = {0}, second = {0};
    struct job_spec back;
    struct why why = {0};
    check(!job_print(job, &first), "a job that was read cannot be printed");
    if (job_parse("printed", (const char *)first.data, first.len, NULL, 0, &back, &why))
        check(false, why.text);
    check(!job_print(&back, &second), "a job that was printed cannot be printed again");
    check(first.len == second.len && memcmp(first.data, second.data, first.len) == 0, "printing twice differs");
    check(!job_resume_check(job, &back, &why), why.text);
    job_fini(&back);
    buf_fini(&first);
    buf_fini(&second);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const uint8_t *zero = memchr(data, 0, size);
    size_t len = zero ? (size_t)(zero - data) : size;
    char *set = zero ? strndup((const char *)zero + 1, size - len - 1) : NULL;
    const char *const sets[] = {set};
    struct job_spec job;
    struct why why = {0};
    err_t err = job_parse("fuzz", (const char *)data, len, sets, set ? 1 : 0, &job, &why);
    if (!err) {
        check_round_trip(&job);
        job_fini(&job);
    } else {
        check(why.text[0] && memchr(why.text, 0, sizeof(why.text)), "refused without a sentence");
    }
    free(set);
    return 0;
}
