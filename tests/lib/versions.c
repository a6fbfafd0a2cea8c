/* See versions.h. */
#include "tests/lib/versions.h"

#include "common/conf/job.h"
#include "daemon/control/state/features.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

uint32_t __wrap_features_newest(void);
uint32_t __wrap_features_oldest(void);
uint32_t __real_feature_of_record(const struct record *r);
uint32_t __wrap_feature_of_record(const struct record *r);
err_t __real_job_parse(const char *file, const char *text, size_t len, const char *const *sets, int n_sets,
                       struct job_spec *ret, struct why *why);
err_t __wrap_job_parse(const char *file, const char *text, size_t len, const char *const *sets, int n_sets,
                       struct job_spec *ret, struct why *why);
err_t __real_job_since(const struct job_spec *job, uint32_t *ret, const char **ret_key);
err_t __wrap_job_since(const struct job_spec *job, uint32_t *ret, const char **ret_key);
err_t __real_job_print(const struct job_spec *job, struct buf *ret);
err_t __wrap_job_print(const struct job_spec *job, struct buf *ret);

static _Thread_local bool has_key; /* the job that was parsed last */

uint32_t __wrap_features_newest(void)
{
    return versions_own();
}

uint32_t __wrap_features_oldest(void)
{
    return versions_own() > 1 ? versions_own() - 1 : 1;
}

static bool is_next(void)
{
    return versions_own() >= versions_next();
}

uint32_t __wrap_feature_of_record(const struct record *r)
{
    bool is_new = r->kind == RECORD_NODE_ADMIN && r->node_admin.drained &&
                  strcmp(r->node_admin.drained, VERSIONS_REASON) == 0 && is_next();
    return is_new ? versions_next() : __real_feature_of_record(r);
}

/* At the beginning of a line. */
static const char *key_in(const char *text, size_t len)
{
    const size_t key = sizeof(VERSIONS_KEY) - 1;
    for (size_t i = 0; i + key <= len; i++)
        if ((!i || text[i - 1] == '\n') && memcmp(text + i, VERSIONS_KEY, key) == 0)
            return text + i;
    return NULL;
}

err_t __wrap_job_parse(const char *file, const char *text, size_t len, const char *const *sets, int n_sets,
                       struct job_spec *ret, struct why *why)
{
    const char *at = is_next() ? key_in(text, len) : NULL;
    const size_t key = sizeof(VERSIONS_KEY) - 1;
    has_key = at != NULL;
    if (!at)
        return __real_job_parse(file, text, len, sets, n_sets, ret, why);
    char *rest = malloc(len + 1);
    if (!rest)
        return ERR_NOMEM;
    memcpy(rest, text, (size_t)(at - text));
    memcpy(rest + (at - text), at + key, len - key - (size_t)(at - text));
    err_t err = __real_job_parse(file, rest, len - key, sets, n_sets, ret, why);
    free(rest);
    return err;
}

err_t __wrap_job_since(const struct job_spec *job, uint32_t *ret, const char **ret_key)
{
    if (!has_key)
        return __real_job_since(job, ret, ret_key);
    *ret = versions_next();
    *ret_key = "next";
    return OK;
}

err_t __wrap_job_print(const struct job_spec *job, struct buf *ret)
{
    bool has = has_key;
    err_t err = __real_job_print(job, ret);
    return err || !has ? err : buf_append(ret, VERSIONS_KEY, sizeof(VERSIONS_KEY) - 1);
}
