/* Golden texts and bytes of addresses, identities and headers. */
#include "worker/comm/wire/codec.h"

#include "tests/lib/test.h"

#include <sched.h>
#include <stdlib.h>
#include <sys/mount.h>
#include <unistd.h>

#define COUNT(list) (sizeof(list) / sizeof((list)[0]))

TEST(an_identity_is_read_as_it_was_written)
{
    const struct wire_identity id = {UINT64_MAX, 12, 0, 1, 4096};
    struct wire_identity got;
    char text[WIRE_IDENTITY_MAX];
    size_t bytes = wire_identity_print(&id, text);
    assert_string_equal(text, "dtd-comm/1 epoch=18446744073709551615 from=12 to=0 lane=1 world=4096");
    assert_ok(wire_identity_parse(text, bytes, &got));
    assert_true(got.epoch == id.epoch && got.from == 12 && got.to == 0 && got.lane == 1 && got.world == 4096);
}

TEST(an_identity_has_one_spelling)
{
    static const char *const wrong[] = {"",
                                        "dtd-comm/1",
                                        "dtd-comm/2 epoch=1 from=1 to=0 lane=0 world=2",
                                        "dtd-comm/1 epoch=01 from=1 to=0 lane=0 world=2",
                                        "dtd-comm/1 epoch=1 from=+1 to=0 lane=0 world=2",
                                        "dtd-comm/1 epoch=1 from=1 to=0 lane=0 world=2 ",
                                        "dtd-comm/1  epoch=1 from=1 to=0 lane=0 world=2",
                                        "dtd-comm/1 epoch=-1 from=1 to=0 lane=0 world=2",
                                        "dtd-comm/1 epoch=1 from=99999999999 to=0 lane=0 world=2"};
    struct wire_identity got;
    char zero[] = "dtd-comm/1 epoch=1 from=1 to=0 lane=0 world=2\0x";
    for (size_t i = 0; i < COUNT(wrong); i++)
        assert_err(ERR_PROTO, wire_identity_parse(wrong[i], strlen(wrong[i]), &got));
    assert_err(ERR_PROTO, wire_identity_parse(zero, sizeof(zero) - 1, &got));
    assert_ok(wire_identity_parse(zero, strlen(zero), &got));
}

TEST(an_address_is_read_as_it_was_written)
{
    static const char *const good[] = {"127.0.0.1 1", "10.255.0.1 65535", "::1 40000", "fe80::12:3 9"};
    static const char *const wrong[] = {"",
                                        "127.0.0.1",
                                        "127.0.0.1 0",
                                        "127.0.0.1 65536",
                                        "127.0.0.1 -1",
                                        "::1 ",
                                        "localhost 4000",
                                        "127.0.0.1 40 ",
                                        " 40",
                                        "1.2.3.4\t40",
                                        "1.2.3 40",
                                        "127.0.0.1  40"};
    union wire_address at;
    char text[WIRE_ADDRESS_MAX];
    for (size_t i = 0; i < COUNT(good); i++) {
        assert_ok(wire_address_parse(good[i], strlen(good[i]), &at));
        wire_address_print(&at, text);
        assert_string_equal(text, good[i]);
    }
    for (size_t i = 0; i < COUNT(wrong); i++)
        assert_err(ERR_PROTO, wire_address_parse(wrong[i], strlen(wrong[i]), &at));
}

TEST(a_header_is_16_bytes_little_endian)
{
    const struct wire_header h = {0x01020304, 0x0000060708090a0b};
    struct wire_header got;
    uint8_t x[WIRE_HEADER_BYTES];
    static const uint8_t golden[] = {'D', 't', 'W', '1', 4, 3, 2, 1, 11, 10, 9, 8, 7, 6, 0, 0};
    wire_header_put(&h, x);
    assert_memory_equal(x, golden, sizeof(golden));
    assert_ok(wire_header_get(x, &got));
    assert_true(got.number == h.number && got.bytes == h.bytes);
    x[15] = 1; /* more bytes than a message may have */
    assert_err(ERR_PROTO, wire_header_get(x, &got));
    x[15] = 0;
    x[0] ^= 1;
    assert_err(ERR_PROTO, wire_header_get(x, &got));
}

/* The resolver prefers the IPv6 address of the name, which is that of another machine: a rank can listen only at an
 * address of its own. */
TEST(of_a_names_addresses_the_own_one_is_taken)
{
    union wire_address at;
    char path[512], text[WIRE_ADDRESS_MAX];
    snprintf(path, sizeof(path), "%s/hosts", test_tmpdir());
    FILE *f = fopen(path, "we");
    assert_non_null(f);
    fputs("2001:db8::9 two\n172.16.0.1 two\n", f);
    fclose(f);
    if (geteuid() != 0 || unshare(CLONE_NEWNET | CLONE_NEWNS) || mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) ||
        mount(path, "/etc/hosts", NULL, MS_BIND, NULL))
        TEST_SKIP("namespaces need root");
    if (system("ip link set lo up && ip link add b0 type bridge && ip addr add 172.16.0.1/24 dev b0 && "
               "ip -6 addr add 2001:db8::1/64 dev b0 nodad && ip link set b0 up") != 0)
        TEST_SKIP("this kernel has no bridge");
    assert_ok(wire_address_find("two", 7, &at));
    wire_address_print(&at, text);
    assert_string_equal("172.16.0.1 7", text);
}
