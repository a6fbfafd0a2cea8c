/* A program whose newest cluster version is DTD_TEST_VERSION; DTD_TEST_NEXT is the version that has the new record and
 * the new key of tests/lib/versions.h. Without them it is as the shipped one. */
#include "daemon/control/state/features.h"
#include "tests/lib/versions.h"

#include <stdlib.h>

static uint32_t version_of(const char *variable, uint32_t otherwise)
{
    const char *text = getenv(variable);
    return text ? (uint32_t)atoi(text) : otherwise;
}

uint32_t versions_own(void)
{
    return version_of("DTD_TEST_VERSION", FEATURES_NEWEST);
}

uint32_t versions_next(void)
{
    return version_of("DTD_TEST_NEXT", FEATURES_NEWEST + 1);
}
