/* A peer that sends random requests. Its messages have random fields of the types in a .proto file and are encoded by
 * hand, so that they can contain values that no correct program produces; some have flipped bits. The frames go over
 * any descriptor, and answers are discarded. */
#ifndef DTD_TESTS_ATTACK_ATTACKER_H
#define DTD_TESTS_ATTACK_ATTACKER_H

#include "common/base/buf.h"
#include "common/rpc/methods.h"

#include <protobuf-c/protobuf-c.h>

/* Strings and numbers that are drawn besides the usual edge cases: names and numbers that exist in the attacked dtd. */
struct attacker_values {
    const char *const *text; /* ends with a NULL */
    const int64_t *number;
    int n_numbers;
};

struct attacker {
    uint64_t dice; /* state of the random generator, initially the seed */
    struct attacker_values values;
    int fd;
    uint64_t call;                    /* number of the last call on this connection */
    void (*turn)(void *arg);          /* runs this process's side of the connection (a tunnel); may be NULL */
    void (*open)(struct attacker *s); /* opens a new `fd` and sends the Hello; fails the test if it cannot */
    void *arg;                        /* argument of both callbacks */
    int sent, closed;                 /* calls sent, and connections that the other side closed */
};

uint64_t attacker_draw(struct attacker *s, uint64_t n); /* 0 .. n - 1 */
/* Appends a random message of the type to `ret`. */
void attacker_append_message(struct attacker *s, const ProtobufCMessageDescriptor *type, struct buf *ret);
/* Sends one request. Returns false if the connection is closed. */
bool attacker_send(struct attacker *s, uint16_t method, const struct buf *body);
/* Sends a valid request that must be answered by a reply (a Hello). Returns false if it was refused. */
bool attacker_call_valid(struct attacker *s, uint16_t method, const ProtobufCMessage *message);
/* Sends `times` calls of random methods of `group`, the upper byte of a method's number (0x01: Client). The methods in
 * `but`, which ends with a 0, are left out. */
void attacker_send_random(struct attacker *s, int group, const uint16_t *but, int times);

#endif
