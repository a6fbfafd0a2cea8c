/* Dtds of several versions from one source, by the linker's --wrap: a dtd of version `versions_next` has a kind of
 * record (a drain with the reason VERSIONS_REASON) and a key of the job file (the line VERSIONS_KEY) that older ones
 * refuse. The program that links versions.c defines the two functions. The daemon's sources contain none of this. */
#ifndef DTD_TESTS_LIB_VERSIONS_H
#define DTD_TESTS_LIB_VERSIONS_H

#include <stdint.h>

#define VERSIONS_REASON "next"
#define VERSIONS_KEY "next: 1\n"

/* The newest cluster version of the dtd whose code runs. */
uint32_t versions_own(void);
/* The first cluster version with the new record and the new key. */
uint32_t versions_next(void);

#endif
