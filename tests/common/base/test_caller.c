/* What a command inherits: the settings as text, the variables as one string, and bytes that are not UTF-8. The effect
 * of the settings is tested with the programs, in tests/cluster/caller.sh. */
#include "common/base/caller.h"
#include "tests/lib/test.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static void prints(const struct caller *c, const char *text)
{
    struct buf b = {0};
    assert_ok(caller_print(c, &b));
    assert_ok(buf_append(&b, "", 1));
    assert_string_equal(text, (char *)b.data);
    buf_fini(&b);
}

TEST(settings_read_back)
{
    static const char *const texts[] = {
        "env percent umask=0027 ignored=1,13,64 blocked=12 core=0:unlimited nofile=333:1000",
        "umask=0000 ignored= blocked=",
        "ignored= blocked= stack=unlimited:unlimited",
        "ignored= blocked= niceness=-20 nice=0:20",
    };
    for (int i = 0; i < 4; i++) {
        struct caller c;
        assert_ok(caller_parse(texts[i], &c));
        prints(&c, texts[i]);
    }
    struct caller c;
    assert_ok(caller_parse(texts[0], &c));
    assert_true(c.env && c.percent);
    assert_int_equal(027, c.umask);
    assert_true(c.ignored == (UINT64_C(1) | UINT64_C(1) << 12 | UINT64_C(1) << 63));
    assert_true(c.has_limit[RLIMIT_NOFILE] && c.limit[RLIMIT_NOFILE].rlim_cur == 333);
    assert_true(c.has_limit[RLIMIT_CORE] && c.limit[RLIMIT_CORE].rlim_max == RLIM_INFINITY);
    assert_false(c.has_limit[RLIMIT_STACK]);
    assert_ok(caller_parse("", &c));
    assert_int_equal(-1, c.umask);
}

static void lower(const char *mine, const char *usual, const char *want)
{
    struct caller c;
    struct buf b = {0};
    assert_ok(caller_parse(mine, &c));
    caller_keep_lower(&c, usual);
    assert_ok(caller_print_limits(&c, &b));
    assert_ok(buf_append(&b, "", 1));
    assert_string_equal(want, (char *)b.data);
    buf_fini(&b);
}

/* The text is that of a Debian 12 (proc(5)): limits 6, 7 and 8 are nproc, nofile and memlock. */
TEST(limits_below_those_of_process_1_are_kept)
{
    static const char usual[] = "Limit                     Soft Limit           Hard Limit           Units     \n"
                                "Max cpu time              unlimited            unlimited            seconds   \n"
                                "Max file size             unlimited            unlimited            bytes     \n"
                                "Max data size             unlimited            unlimited            bytes     \n"
                                "Max stack size            8388608              unlimited            bytes     \n"
                                "Max core file size        0                    unlimited            bytes     \n"
                                "Max resident set          unlimited            unlimited            bytes     \n"
                                "Max processes             96365                96365                processes \n"
                                "Max open files            1024                 524288               files     \n";
    lower("umask=0022 ignored=1 nproc=500:96365 nofile=1024:524288 core=0:unlimited stack=8388608:unlimited", usual,
          "");
    lower("nproc=500:500", usual, "nproc=500:500");
    lower("nofile=1024:524287", usual, "nofile=1024:524287");
    lower("nofile=1024:1048576 cpu=10:20 core=0:0", usual, "cpu=10:20 core=0:0");
    lower("memlock=1:1", usual, ""); /* not in the text: not known to be lower */
    lower("niceness=0 nproc=unlimited:unlimited", usual, "");
    lower("niceness=7", usual, "niceness=7");
    lower("niceness=7 nproc=1:1", "", "niceness=7");
}

TEST(wrong_settings_are_refused)
{
    static const char *const texts[] = {"x",
                                        "env=1",
                                        "umask=",
                                        "umask=8",
                                        "umask=01000",
                                        "umask=-1",
                                        " env",
                                        "env ",
                                        "env  percent",
                                        "ignored=0",
                                        "ignored=65",
                                        "ignored=1,",
                                        "ignored=1 2",
                                        "ignored=,1",
                                        "niceness=20",
                                        "niceness=-21",
                                        "niceness=",
                                        "niceness=1x",
                                        "niceness=--1",
                                        "nofile=1",
                                        "nofile=2:1",
                                        "nofile=:",
                                        "nofile=1:2:3",
                                        "nofile=unlimited:1",
                                        "files=1:1",
                                        "nofile=99999999999999999999:unlimited"};
    for (size_t i = 0; i < sizeof(texts) / sizeof(*texts); i++) {
        struct caller c = {.umask = 7};
        if (caller_parse(texts[i], &c) != ERR_INVALID)
            fail_msg("\"%s\" is accepted", texts[i]);
        assert_int_equal(7, c.umask);
    }
}

TEST(settings_of_this_process)
{
    struct caller c;
    struct rlimit limit = {.rlim_cur = 77, .rlim_max = 99};
    sigset_t mask;
    sigemptyset(&mask);
    sigaddset(&mask, SIGUSR2);
    assert_int_equal(0, setrlimit(RLIMIT_NOFILE, &limit));
    signal(SIGHUP, SIG_IGN);
    sigprocmask(SIG_BLOCK, &mask, NULL);
    umask(035);
    caller_take(&c);
    assert_int_equal(035, c.umask);
    assert_int_equal(035, umask(0)); /* it is unchanged */
    assert_true(c.ignored & 1 << (SIGHUP - 1));
    assert_false(c.ignored & 1 << (SIGTERM - 1));
    assert_true(c.blocked & 1 << (SIGUSR2 - 1));
    assert_true(c.limit[RLIMIT_NOFILE].rlim_cur == 77 && c.limit[RLIMIT_NOFILE].rlim_max == 99);
}

TEST(variables_read_back)
{
    char *words[] = {"A=1", "", "B=\x01\x02!\"", "A=2", "\x02", "no equals", "\xff="};
    const int n = sizeof(words) / sizeof(*words);
    for (int count = 0; count <= n; count++) {
        struct buf b = {0};
        size_t bytes = 0;
        assert_ok(caller_pack(words, count, &b));
        for (int i = 0; i < count; i++)
            bytes += caller_packed_bytes(words[i]);
        assert_ok(buf_append(&b, "", 1));
        assert_int_equal(count ? bytes : 1, b.len);
        assert_int_equal(strlen((char *)b.data) + 1, b.len);
        char **back = caller_unpack((char *)b.data);
        for (int i = 0; i < count; i++)
            assert_string_equal(words[i], back[i]);
        assert_null(back[count]);
        free(back);
        buf_fini(&b);
    }
}

TEST(keys_are_compared)
{
    assert_true(caller_same_key("A=1", "A=2"));
    assert_true(caller_same_key("A=", "A=2"));
    assert_false(caller_same_key("A=1", "AB=1"));
    assert_false(caller_same_key("AB=1", "A=1"));
    assert_false(caller_same_key("A", "A=1"));
}

TEST(bytes_read_back)
{
    char text[256], *coded;
    for (int i = 0; i < 255; i++)
        text[i] = (char)(i + 1);
    text[255] = '\0';
    coded = caller_percent_encode(text);
    for (const char *p = coded; *p; p++)
        assert_true((unsigned char)*p < 0x80);
    assert_true(caller_percent_decode(coded));
    assert_string_equal(text, coded);
    free(coded);
    coded = caller_percent_encode("a%\xe4"); /* as RFC 3986, 2.1 */
    assert_string_equal("a%25%E4", coded);
    free(coded);
    static const char *const wrong[] = {"%", "%4", "%4g", "a%00"};
    for (int i = 0; i < 4; i++) {
        char copy[8];
        strcpy(copy, wrong[i]);
        assert_false(caller_percent_decode(copy));
    }
}
