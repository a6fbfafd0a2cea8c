/* Flat optimizer names as in torchtitan, and the folder names of a checkpoint directory. */
#include "common/ckpt/shared.h"

#include <inttypes.h>
#include <stdio.h>

err_t ckpt_state_name(enum ckpt_state state, const char *param, char *ret, size_t size)
{
    static const char *const formats[CKPT_STATE_COUNT][2] = {
        [CKPT_PARAM] = {"", ""},
        [CKPT_EXP_AVG] = {"optimizer.state.", ".exp_avg"},
        [CKPT_EXP_AVG_SQ] = {"optimizer.state.", ".exp_avg_sq"},
    };
    int n = snprintf(ret, size, "%s%s%s", formats[state][0], param, formats[state][1]);
    return n < 0 || (size_t)n >= size ? ERR_LIMIT : OK;
}

err_t ckpt_partial_dir(const char *root, int64_t step, uint64_t epoch, char *ret, size_t size)
{
    int n = snprintf(ret, size, "%s/.step-%lld.e%llu.partial", root, (long long)step, (unsigned long long)epoch);
    return n < 0 || (size_t)n >= size ? ERR_LIMIT : OK;
}

/* FNV-1a, 64 bits: the two fields of an identity become one number, which need not withstand an attacker. */
uint64_t ckpt_incarnation(const struct ckpt_writer_id *id)
{
    const uint64_t prime = 0x100000001b3;
    uint64_t hash = 0xcbf29ce484222325;
    if (!id->submitted_ms)
        return 0;
    for (const char *p = id->job; *p; p++)
        hash = (hash ^ (uint8_t)*p) * prime;
    for (int k = 0; k < 64; k += 8)
        hash = (hash ^ (uint8_t)((uint64_t)id->submitted_ms >> k)) * prime;
    return hash ? hash : 1;
}

void ckpt_open_name(int64_t step, const struct ckpt_writer_id *id, const char *kind, char ret[CKPT_OPEN_NAME])
{
    char incarnation[20] = "";
    if (ckpt_incarnation(id))
        snprintf(incarnation, sizeof(incarnation), "%016" PRIx64 ".", ckpt_incarnation(id));
    snprintf(ret, CKPT_OPEN_NAME, ".step-%" PRId64 ".e%" PRIu64 ".%s%s", step, id->epoch, incarnation, kind);
}

err_t ckpt_partial_dir_of(const char *root, int64_t step, const struct ckpt_writer_id *id, char *ret, size_t size)
{
    char name[CKPT_OPEN_NAME];
    ckpt_open_name(step, id, "partial", name);
    int n = snprintf(ret, size, "%s/%s", root, name);
    return n < 0 || (size_t)n >= size ? ERR_LIMIT : OK;
}

err_t ckpt_step_dir(const char *root, int64_t step, char *ret, size_t size)
{
    int n = snprintf(ret, size, "%s/step-%lld", root, (long long)step);
    return n < 0 || (size_t)n >= size ? ERR_LIMIT : OK;
}
