#include "common/plan/mutant.h"

#include <stdlib.h>
#include <string.h>

bool mutant_is(enum mutant m)
{
#define X(name, what) #name,
    static const char *const names[] = {MUTANT_LIST(X)};
#undef X
    static const char *chosen;
    if (!chosen)
        chosen = getenv("DTD_MUTANT") ? getenv("DTD_MUTANT") : "";
    return strcmp(chosen, names[m]) == 0;
}
