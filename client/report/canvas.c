#include "client/report/canvas.h"

#define X(id, class, light, dark) [INK_##id] = {class, light, dark},
const struct ink_row inks[INK_COUNT] = {INKS(X)};
#undef X
