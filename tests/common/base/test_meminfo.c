#include "common/base/meminfo.h"
#include "tests/lib/test.h"

#include <unistd.h>

TEST(available_bytes_are_plausible)
{
    int64_t bytes = -1;
    struct why why;
    assert_ok(meminfo_available(&bytes, &why));
    int64_t all = (int64_t)sysconf(_SC_PHYS_PAGES) * sysconf(_SC_PAGESIZE);
    assert_true(bytes > 0 && bytes <= all);
}
