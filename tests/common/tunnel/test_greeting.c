/* The encoding of greetings, and the parser of addresses. */
#include "common/tunnel/address.h"
#include "common/tunnel/greeting.h"
#include "tests/lib/test.h"

#include <netinet/in.h>

TEST(longest_and_shortest_come_back)
{
    struct greeting g = {.version = 2, .purpose = TUNNEL_RPC}, back;
    uint8_t bytes[GREETING_MAX_BYTES];
    memset(g.name, 'n', TUNNEL_NAME_MAX);
    memset(g.argument, '~', TUNNEL_ARGUMENT_MAX);
    memset(g.public_key, 7, IDENTITY_BYTES);
    memset(g.proof, 8, IDENTITY_PROOF_BYTES);
    assert_int_equal(greeting_encode(&g, bytes), GREETING_MAX_BYTES);
    assert_int_equal(greeting_length(bytes), GREETING_MAX_BYTES);
    assert_ok(greeting_decode(bytes, GREETING_MAX_BYTES, &back, NULL));
    assert_string_equal(back.name, g.name);
    assert_string_equal(back.argument, g.argument);
    assert_memory_equal(back.public_key, g.public_key, IDENTITY_BYTES);
    assert_memory_equal(back.proof, g.proof, IDENTITY_PROOF_BYTES);
    g = (struct greeting){.version = 1, .purpose = TUNNEL_STORE, .name = "x"};
    size_t len = greeting_encode(&g, bytes);
    assert_int_equal(len, GREETING_HEADER_BYTES + 1);
    assert_ok(greeting_decode(bytes, len, &back, NULL));
    assert_string_equal(back.argument, "");
    assert_err(ERR_PROTO, greeting_decode(bytes, len - 1, &back, NULL));
    assert_err(ERR_PROTO, greeting_decode(bytes, len + 1, &back, NULL));
}

TEST(lengths_are_bounded_by_the_header_alone)
{
    uint8_t header[GREETING_HEADER_BYTES] = {'D', 'T', 'D', 'T', 2, 0, 1, 253, 0, 1};
    assert_int_equal(greeting_length(header), 10 + 253 + 256 + 32 + 64);
    header[4] = 1;
    assert_int_equal(greeting_length(header), 10 + 253 + 256);
    header[7] = 254;
    assert_int_equal(greeting_length(header), 0);
    header[7] = 253;
    header[8] = 1;
    assert_int_equal(greeting_length(header), 0);
    header[8] = 0;
    header[3] = 't';
    assert_int_equal(greeting_length(header), 0);
}

TEST(addresses)
{
    struct address a;
    struct sockaddr_storage to;
    socklen_t len;
    char text[128];
    assert_ok(address_parse("node-7.example.org:7000", &a, NULL));
    assert_string_equal(a.host, "node-7.example.org");
    assert_int_equal(a.port, 7000);
    assert_err(ERR_NOTFOUND, address_numeric(&a, &to, &len));
    assert_ok(address_parse("[fe80::1%eth0]:1", &a, NULL));
    assert_ok(address_parse("[::ffff:1.2.3.4]:65535", &a, NULL));
    assert_ok(address_numeric(&a, &to, &len));
    assert_int_equal(len, sizeof(struct sockaddr_in6));
    address_print(&to, text, sizeof(text));
    assert_string_equal(text, "[::ffff:1.2.3.4]:65535");
    assert_ok(address_parse("10.0.0.1:80", &a, NULL));
    assert_ok(address_numeric(&a, &to, &len));
    address_print(&to, text, sizeof(text));
    assert_string_equal(text, "10.0.0.1:80");
    struct why why = {""};
    assert_err(ERR_INVALID, address_parse("a\nb:1", &a, &why));
    assert_null(strchr(why.text, '\n'));
}

TEST(lists_of_addresses)
{
    static const char *const bad[] = {"", ",", "a:1,", ",a:1", "a:1,,b:1", "a:1, b:1", "a:1,b", "a:1,b:1,c:1,d:1,e:1"};
    struct address list[ADDRESSES_MAX];
    char text[300], one[300];
    int n;
    assert_ok(addresses_parse("10.0.0.1:7811,[fd00::1]:7812,n1:7813", list, &n, NULL));
    assert_int_equal(3, n);
    assert_string_equal("10.0.0.1", list[0].host);
    assert_string_equal("fd00::1", list[1].host);
    assert_true(list[1].v6);
    assert_int_equal(7813, list[2].port);
    assert_ok(addresses_parse("a:1,b:1,c:1,d:1", list, &n, NULL));
    assert_int_equal(ADDRESSES_MAX, n);
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        struct why why = {""};
        assert_err(ERR_INVALID, addresses_parse(bad[i], list, &n, &why));
        assert_non_null(strstr(why.text, "address"));
    }
    memset(text, 'h', sizeof(text));
    strcpy(text + 262, ":1");
    assert_err(ERR_INVALID, addresses_parse(text, list, &n, NULL));

    const char *rest = addresses_next("a:1,b:2", one, sizeof(one));
    assert_string_equal("a:1", one);
    rest = addresses_next(rest, one, sizeof(one));
    assert_string_equal("b:2", one);
    assert_null(addresses_next(rest, one, sizeof(one)));
}
