/* The rounds of a collective:
 *
 *     stream   fetch 0 | fetch 1 | ......... | put 0 | fetch 2 | ......... | put 1 | ...
 *     host               wait 0  | combine 0 |         wait 1  | combine 1 |
 *
 * On the stream, a fetch into a half follows the last put from that half. The host writes a half only after the fetch
 * has arrived, and therefore after that put too. Peers access the half only inside a combine, which begins and ends
 * with a barrier. The next collective may use another stream: that stream first waits for the last put of this one. */
#include "worker/comm/staged/internal.h"

#include "common/base/log.h"

static err_t fetch(const struct staged_call *c, const struct staged_steps *steps, int64_t i)
{
    struct staged_comm *s = c->comm;
    err_t err = steps->fetch(c, i, s->half[i & 1]);
    return err ? err : dev_event_record(s->dev, s->arrived[i & 1], c->stream);
}

static err_t one_round(const struct staged_call *c, const struct staged_steps *steps, int64_t i)
{
    struct staged_comm *s = c->comm;
    struct why why = {""};
    err_t err = dev_event_sync(s->dev, s->arrived[i & 1], &why);
    if (err) {
        log_error("staged_copy_failed error=%s why=\"%s\"", err_name(err), why.text);
        return err;
    }
    err = steps->combine(c, i, s->half[i & 1]);
    return err ? err : steps->put(c, i, s->half[i & 1]);
}

err_t staged_run(const struct staged_call *c, const struct staged_steps *steps, int64_t rounds)
{
    struct staged_comm *s = c->comm;
    err_t err = rounds ? dev_event_wait(s->dev, s->left, c->stream) : OK;
    if (!err && rounds)
        err = fetch(c, steps, 0);
    for (int64_t i = 0; !err && i < rounds; i++) {
        if (i + 1 < rounds)
            err = fetch(c, steps, i + 1);
        err = err ? err : one_round(c, steps, i);
    }
    return err || !rounds ? err : dev_event_record(s->dev, s->left, c->stream);
}

int64_t staged_rounds(const struct staged_call *c)
{
    int64_t most = c->n;
    for (int i = 0; c->counts && i < c->group->n; i++)
        most = c->counts[i] > most ? c->counts[i] : most;
    return (most + c->cell - 1) / c->cell;
}
