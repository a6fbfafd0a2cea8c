/* Jobs are numbers from 1; each has its newest epoch and a flag for its end. Requests are numbers, too. */
#include "tests/sim/model.h"

#include "tests/sim/world.h"

#include <assert.h>
#include <inttypes.h>
#include <string.h>

#define MAX_JOBS 2048
#define MAX_REQUESTS 65536

static struct {
    uint64_t n_jobs;
    struct {
        bool has_ended;
        uint64_t epoch;
    } jobs[MAX_JOBS + 1];
    struct {
        bool is_done;
        struct state_result result;
    } requests[MAX_REQUESTS + 1];
} model;

void model_init(void)
{
    memset(&model, 0, sizeof(model));
}

static err_t expected_error(const struct record *r)
{
    if (r->job < 1 || r->job > model.n_jobs)
        return ERR_NOTFOUND;
    bool has_ended = model.jobs[r->job].has_ended;
    switch (r->kind) {
    case RECORD_DESIRED:
        return has_ended ? ERR_STALE : OK;
    case RECORD_ENDED:
        model.jobs[r->job].has_ended = true;
        return has_ended ? ERR_STALE : OK;
    case RECORD_EPOCH:
        if (has_ended || r->epoch.epoch <= model.jobs[r->job].epoch)
            return ERR_STALE;
        model.jobs[r->job].epoch = r->epoch.epoch;
        return OK;
    default:
        return OK;
    }
}

static struct state_result expected_result(const struct record *r)
{
    struct state_result result = {.job = r->job};
    if (r->kind == RECORD_SUBMITTED) {
        assert(model.n_jobs < MAX_JOBS);
        result.job = ++model.n_jobs;
    } else {
        result.err = expected_error(r);
    }
    return result;
}

void model_check(uint64_t index, const struct record *record, const struct state_result *result)
{
    uint64_t number;
    memcpy(&number, record->request_id, sizeof(number));
    assert(number <= MAX_REQUESTS);
    bool is_repeated = model.requests[number].is_done;
    if (!is_repeated)
        model.requests[number].result = expected_result(record);
    model.requests[number].is_done = true;
    const struct state_result *expected = &model.requests[number].result;
    if (result->repeated != is_repeated || result->err != expected->err || result->job != expected->job)
        broken("the record at %" PRIu64 " (kind %d, request %" PRIu64 ") has the result %s, job %" PRIu64
               "%s; expected %s, job %" PRIu64 "%s",
               index, record->kind, number, err_name(result->err), result->job, result->repeated ? ", repeated" : "",
               err_name(expected->err), expected->job, is_repeated ? ", repeated" : "");
}
