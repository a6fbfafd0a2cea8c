/* A TLS peer of the tests' own over OpenSSL, for what ours never does: its PSK is derived by hand (the oracle of
 * tls.c), it may use TLS 1.2, have a certificate, send any greeting, and its bytes are kept to be sent again. */
#ifndef DTD_TESTS_COMMON_TUNNEL_RAW_H
#define DTD_TESTS_COMMON_TUNNEL_RAW_H

#include "common/base/buf.h"
#include "tests/common/tunnel/net.h"

struct raw {
    SSL_CTX *ctx;
    SSL *ssl;
    BIO *in, *out;
    int fd;
    struct buf sent;
    const char *identity; /* NULL: no PSK */
    uint8_t psk[32];
    bool ended; /* the other side has closed */
};

/* HKDF-SHA256(secret, no salt, "dtd tunnel cluster" or "dtd tunnel join") */
void raw_derive(const uint8_t *secret, size_t len, const char *info, uint8_t ret[32]);
/* Takes over a connected or connecting descriptor. */
void raw_open(struct raw *r, int fd, bool server, const char *identity, const uint8_t *secret, size_t len);
void raw_close(struct raw *r);
void raw_step(struct raw *r); /* sends and receives as much as possible */
/* False: the other side refused. */
bool raw_handshake(struct tunnel_net *n, struct raw *r);
void raw_write(struct tunnel_net *n, struct raw *r, const void *data, size_t len);
/* Defaults: a greeting of "a" for TUNNEL_RPC. */
struct greeting raw_greeting(void);
/* Before the handshake: as a node with an identity does. */
void raw_offer_identity(struct raw *r);
/* After it: makes it a greeting of version 2, signed for this connection; role: 'c' connects, 'a' accepts. */
void raw_sign(struct raw *r, const struct identity *own, char role, struct greeting *g);
void raw_greet(struct tunnel_net *n, struct raw *r, const struct greeting *g);
/* Reads `least` bytes, or fewer if the stream ends. */
size_t raw_read(struct tunnel_net *n, struct raw *r, void *data, size_t size, size_t least);
/* Uses a self-signed certificate. */
void raw_use_certificate(struct raw *r);

#endif
