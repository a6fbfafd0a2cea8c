/* The output of `dtctl submit --help-keys`. */
#ifndef DTD_CLIENT_SPEC_KEYS_H
#define DTD_CLIENT_SPEC_KEYS_H

#include <stdio.h>

void spec_keys_print(FILE *f);

#endif
