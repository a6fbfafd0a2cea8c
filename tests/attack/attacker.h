/* Anything at all that is a message: random fields of the types that a .proto says, written as bytes, so that values
 * that no honest program can hold are said too; some of them with bytes changed afterwards. And who says it: frames
 * over any descriptor, whose answers are passed over. */
#ifndef DTD_TESTS_ATTACK_ATTACKER_H
#define DTD_TESTS_ATTACK_ATTACKER_H

#include "common/base/buf.h"
#include "common/rpc/methods.h"

#include <protobuf-c/protobuf-c.h>

/* What strings and numbers are drawn from besides the usual edges: names and numbers that mean something where they are
 * said. */
struct attacker_values {
    const char *const *text; /* ends with a NULL */
    const int64_t *number;
    int n_numbers;
};

struct attacker {
    uint64_t dice; /* the seed */
    struct attacker_values words;
    int fd;
    uint64_t call;           /* the last one's number on this connection */
    void (*turn)(void *arg); /* does the work of this process between the other side and `fd`; or NULL */
    void (*open)(
        struct attacker *s); /* another connection to `fd`, already greeted; the test fails where there is none */
    void *arg;               /* theirs */
    int said, closed;        /* calls, and connections that were closed for what was said */
};

uint64_t attacker_draw(struct attacker *s, uint64_t n); /* 0 .. n - 1 */
/* Appends a random message of the type to `ret`. */
void attacker_append_message(struct attacker *s, const ProtobufCMessageDescriptor *type, struct buf *ret);
/* One request; false: the connection is closed. */
bool attacker_send(struct attacker *s, uint16_t method, const struct buf *body);
/* The same of an honest message that is to be answered by a reply (a Hello); false: it was refused. */
bool attacker_call_valid(struct attacker *s, uint16_t method, const ProtobufCMessage *message);
/* So many calls of random methods, of those whose number has the group `group` (0x01: Client's) and is not in `but`,
 * which ends with a 0. */
void attacker_send_random(struct attacker *s, int group, const uint16_t *but, int times);

#endif
