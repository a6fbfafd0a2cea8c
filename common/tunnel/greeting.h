/* The greeting: the first bytes inside a tunnel, once in each direction. It contains the sender's name and the purpose
 * of the stream. The connecting side sends first; the answer repeats the purpose and has a status that is 0 if the
 * tunnel is open. Pure.
 *
 *   magic "DTDT" | version u8 | status u8 | purpose u8 | name length u8 | argument length u16 LE | name | argument
 *   version 2:   | public key [32] | proof [64]
 *
 * The version is negotiated in the TLS handshake (ALPN "dtd/2"): without it, the peer is of a version that has only the
 * first. The proof is the sender's signature of GREETING_PROVES and a value that TLS derives from the handshake of this
 * connection (RFC 8446, section 7.5), one for each direction. So a proof is valid on no other connection, and a program
 * between two nodes cannot pass it on. */
#ifndef DTD_COMMON_TUNNEL_GREETING_H
#define DTD_COMMON_TUNNEL_GREETING_H

#include "common/tunnel/tunnel.h"

#define GREETING_VERSION 2
#define GREETING_HEADER_BYTES 10
#define GREETING_IDENTITY_BYTES (IDENTITY_BYTES + IDENTITY_PROOF_BYTES)
#define GREETING_MAX_BYTES (GREETING_HEADER_BYTES + TUNNEL_NAME_MAX + TUNNEL_ARGUMENT_MAX + GREETING_IDENTITY_BYTES)
#define GREETING_PROVES "dtd tunnel identity"

/* X(name, value, text). Values are on the wire: never renumber them, only append. */
#define GREETING_STATUS_LIST(X)                                                           \
    X(GREETING_OK, 0, "ok")                                                               \
    X(GREETING_VERSION_UNKNOWN, 1, "it uses another version of the tunnel's greeting")    \
    X(GREETING_SELF, 2, "both ends have the same node name")                              \
    X(GREETING_NAME, 3, "the name in the greeting is not the name of the key's identity") \
    X(GREETING_PURPOSE, 4, "this key does not open a tunnel for this purpose")            \
    X(GREETING_FULL, 5, "it has reached its maximum number of tunnels")                   \
    X(GREETING_PROOF, 6, "the signature of the identity is wrong")                        \
    X(GREETING_STRANGER, 7, "it lists no node of this name")                              \
    X(GREETING_OTHER, 8, "the node of this name has another identity")                    \
    X(GREETING_REMOVED, 9, "the node was removed from the cluster")                       \
    X(GREETING_NEEDS_TOKEN, 10, "joining the cluster needs a token: dtctl cluster token") \
    X(GREETING_FOREIGN, 16, "it is of another cluster, or of another generation of it")   \
    X(GREETING_SUPERSEDED, 17, "its cluster was recovered without this node")             \
    X(GREETING_FORGETFUL, 18, "this node has lost records that it has acknowledged")
#define X(name, value, text) name = (value),
enum greeting_status { GREETING_STATUS_LIST(X) };
#undef X

struct greeting {
    uint8_t version;
    uint8_t status; /* enum greeting_status; 0 from the connecting side */
    enum tunnel_purpose purpose;
    char name[TUNNEL_NAME_MAX + 1];
    char argument[TUNNEL_ARGUMENT_MAX + 1];
    uint8_t public_key[IDENTITY_BYTES], proof[IDENTITY_PROOF_BYTES]; /* from version 2 on */
};

/* Returns the length. The caller has checked name and argument. */
size_t greeting_encode(const struct greeting *g, uint8_t ret[GREETING_MAX_BYTES]);
/* The length of the greeting with this header; 0: the header is invalid. An unknown version is not refused here,
 * because the header has the same layout in every version; what may follow the argument then is not counted. */
size_t greeting_length(const uint8_t header[GREETING_HEADER_BYTES]);
/* Decodes a complete greeting of exactly greeting_length bytes. ERR_PROTO with a message. */
NODISCARD err_t greeting_decode(const uint8_t *data, size_t len, struct greeting *ret, struct why *why);
const char *greeting_status_text(uint8_t status);
bool greeting_argument_valid(const char *argument, size_t len);

#endif
