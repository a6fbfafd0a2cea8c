/* Any text as a join token: it is refused with a message, or encodes to the same text. After a first byte of '!' the
 * rest is the content of a token with a correct checksum, so that the code after the checksum's test is reached too. */
#include "common/tunnel/token.h"

#include <openssl/evp.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void decode_token(const char *text, size_t len)
{
    struct token t;
    struct why why = {""};
    char again[TOKEN_TEXT_MAX];
    if (token_decode(text, len, &t, &why)) {
        if (!why.text[0])
            abort();
        return;
    }
    if (token_encode(&t, again, &why) || strlen(again) != len || memcmp(again, text, len) != 0)
        abort();
}

static void decode_content(const uint8_t *data, size_t size)
{
    static const char letters[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    uint8_t bytes[TOKEN_BYTES_MAX + 32] = {0}, sum[32];
    char text[2 * sizeof(bytes)] = "dtd1.";
    size_t n = 5;
    if (size > TOKEN_BYTES_MAX || !EVP_Digest(data, size, sum, NULL, EVP_sha256(), NULL))
        return;
    memcpy(bytes, data, size);
    memcpy(bytes + size, sum, 4);
    for (size_t bit = 0; bit < (size + 4) * 8; bit += 6) {
        unsigned two = (unsigned)bytes[bit / 8] << 8 | bytes[bit / 8 + 1];
        text[n++] = letters[two >> (10 - bit % 8) & 63];
    }
    decode_token(text, n);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size && data[0] == '!')
        decode_content(data + 1, size - 1);
    else
        decode_token((const char *)data, size);
    return 0;
}
