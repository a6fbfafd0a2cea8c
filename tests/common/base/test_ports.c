/* Ranges of ports as the configuration and job files have them. */
#include "common/base/ports.h"

#include "tests/lib/test.h"

TEST(ranges)
{
    static const struct {
        const char *text;
        int first, last, n;
    } good[] = {{"", 0, 0, 0},
                {"7900-7999", 7900, 7999, 100},
                {"1024-65535", 1024, 65535, 64512},
                {"8000-8000", 8000, 8000, 1}};
    struct ports p;
    for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++) {
        assert_true(ports_parse(good[i].text, &p));
        assert_int_equal(good[i].first, p.first);
        assert_int_equal(good[i].last, p.last);
        assert_int_equal(good[i].n, ports_count(&p));
    }
    assert_true(ports_parse(NULL, &p));
    assert_int_equal(0, ports_count(&p));
}

TEST(no_ranges)
{
    static const char *const bad[] = {"7900",       "7900-",      "-7999",       "7999-7900",
                                      "1023-2000",  "7900-65536", "7900--7999",  "7900 -7999",
                                      "7900-7999 ", "+7900-7999", "a-b",         "7900-7999,8000-8001",
                                      "-",          "0-0",        "007900-7999", " "};
    struct ports p = {1, 2};
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        if (ports_parse(bad[i], &p))
            fail_msg("\"%s\" is taken for a range", bad[i]);
    assert_int_equal(1, p.first);
}
