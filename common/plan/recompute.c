/* What is given up between forward and backward, and made again: so far nothing. */
#include "common/plan/compile.h"

bool compile_given_up(const struct compiler *c, int t)
{
    (void)c;
    (void)t;
    return false;
}

void compile_again(struct compiler *c, int node)
{
    compile_forward_again(c, node);
}
