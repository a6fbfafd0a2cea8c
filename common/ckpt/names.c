/* Flat optimizer names as in torchtitan, and the folder names of a checkpoint directory. */
#include "common/ckpt/ckpt.h"

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

err_t ckpt_step_dir(const char *root, int64_t step, char *ret, size_t size)
{
    int n = snprintf(ret, size, "%s/step-%lld", root, (long long)step);
    return n < 0 || (size_t)n >= size ? ERR_LIMIT : OK;
}
