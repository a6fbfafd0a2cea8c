/* Join tokens: encoding and decoding are inverse, and typing errors are detected. */
#include "common/tunnel/token.h"
#include "tests/lib/example.h"

static struct token sample(void)
{
    struct token t = {.id = 0x0102030405060708u, .n_addresses = 2};
    for (int i = 0; i < TOKEN_SECRET_BYTES; i++)
        t.secret[i] = (uint8_t)(0xf0 + i);
    strcpy(t.addresses[0], "10.0.0.1:7000");
    strcpy(t.addresses[1], "[fd00::1]:7000,10.1.0.1:7000");
    return t;
}

TEST(token_comes_back)
{
    struct token t = sample(), back;
    char text[TOKEN_TEXT_MAX];
    struct why why = {""};
    assert_ok(token_encode(&t, text, &why));
    assert_int_equal(strncmp(text, "dtd1.", 5), 0);
    assert_ok(token_decode(text, strlen(text), &back, &why));
    assert_true(token_equal(&t, &back));
    assert_memory_equal(&t, &back, sizeof(t));
    back.secret[15] ^= 1;
    assert_false(token_equal(&t, &back));
}

TEST(token_as_documented)
{
    uint8_t want[128];
    struct token t = {.id = 0x0102030405060708u, .n_addresses = 1, .addresses = {"10.0.0.1:7000"}};
    char text[TOKEN_TEXT_MAX];
    for (int i = 0; i < TOKEN_SECRET_BYTES; i++)
        t.secret[i] = (uint8_t)(0x10 + i);
    assert_ok(token_encode(&t, text, NULL));
    size_t n = example_bytes("formats/wire.md", "join token", want, sizeof(want));
    if (n != strlen(text) || memcmp(want, text, n) != 0)
        fail_msg("docs/formats/wire.md does not have %s", text);
}

TEST(random_tokens_of_every_length_come_back)
{
    struct why why = {""};
    for (int n = 1; n <= TOKEN_ADDRESSES_MAX; n++) {
        for (size_t len = 4; len <= TOKEN_ADDRESS_MAX; len += 41) {
            struct token t, back;
            char text[TOKEN_TEXT_MAX];
            assert_ok(token_make(&t, &why));
            t.n_addresses = n;
            for (int i = 0; i < n; i++) {
                memset(t.addresses[i], 'h', len - 2);
                strcpy(t.addresses[i] + len - 2, ":1");
            }
            assert_ok(token_encode(&t, text, &why));
            assert_ok(token_decode(text, strlen(text), &back, &why));
            assert_memory_equal(&t, &back, sizeof(t));
        }
    }
}

TEST(two_tokens_differ)
{
    struct token a, b;
    assert_ok(token_make(&a, NULL));
    assert_ok(token_make(&b, NULL));
    assert_true(a.id != b.id);
    assert_false(token_equal(&a, &b));
}

/* Every single substitution, every omission and every swap of neighbours. */
TEST(every_typo_is_told)
{
    static const char letters[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_. \n";
    struct token t = sample(), back;
    char text[TOKEN_TEXT_MAX], bad[TOKEN_TEXT_MAX];
    assert_ok(token_encode(&t, text, NULL));
    size_t len = strlen(text);
    for (size_t i = 0; i < len; i++) {
        for (const char *c = letters; *c; c++) {
            struct why why = {""};
            if (*c == text[i])
                continue;
            strcpy(bad, text);
            bad[i] = *c;
            assert_err(ERR_INVALID, token_decode(bad, len, &back, &why));
            assert_non_null(strstr(why.text, "token"));
        }
        memcpy(bad, text, i);
        strcpy(bad + i, text + i + 1);
        assert_err(ERR_INVALID, token_decode(bad, len - 1, &back, NULL));
        if (i && text[i] != text[i - 1]) {
            strcpy(bad, text);
            bad[i] = text[i - 1];
            bad[i - 1] = text[i];
            assert_err(ERR_INVALID, token_decode(bad, len, &back, NULL));
        }
    }
}

TEST(what_is_wrong_is_said)
{
    struct token t = sample(), back;
    struct why why = {""};
    char text[TOKEN_TEXT_MAX + 8];
    assert_err(ERR_INVALID, token_decode("hello", 5, &back, &why));
    assert_non_null(strstr(why.text, "begins with \"dtd1.\""));
    assert_err(ERR_INVALID, token_decode("dtd1.", 5, &back, &why));
    assert_non_null(strstr(why.text, "too short"));
    assert_ok(token_encode(&t, text, &why));
    text[10] = text[10] == 'A' ? 'B' : 'A';
    assert_err(ERR_INVALID, token_decode(text, strlen(text), &back, &why));
    assert_non_null(strstr(why.text, "mistyped"));
    assert_null(strstr(why.text, text + 5)); /* an error message must not contain the secret */
    memset(text, 'A', sizeof(text));
    memcpy(text, "dtd1.", 5);
    assert_err(ERR_INVALID, token_decode(text, TOKEN_TEXT_MAX, &back, &why));
    assert_non_null(strstr(why.text, "too long"));
}

TEST(bad_addresses_are_not_encoded)
{
    struct token t = sample();
    char text[TOKEN_TEXT_MAX];
    t.n_addresses = 0;
    assert_err(ERR_INVALID, token_encode(&t, text, NULL));
    t.n_addresses = TOKEN_ADDRESSES_MAX + 1;
    assert_err(ERR_INVALID, token_encode(&t, text, NULL));
    t = sample();
    strcpy(t.addresses[1], "no port");
    assert_err(ERR_INVALID, token_encode(&t, text, NULL));
    strcpy(t.addresses[1], "host:0");
    assert_err(ERR_INVALID, token_encode(&t, text, NULL));
}
