/* Fixture of the tunnel tests: two hosts, "a" (connects) and "b" (listens on a loopback port), in one loop. */
#ifndef DTD_TESTS_COMMON_TUNNEL_NET_H
#define DTD_TESTS_COMMON_TUNNEL_NET_H

#include "common/tunnel/internal.h"
#include "common/tunnel/key.h"
#include "common/tunnel/token.h"
#include "tests/lib/test.h"

#define NET_ACCEPTED_MAX 2048

/* The keys of a host. */
struct knows {
    struct key_ring ring;
    struct token token; /* id 0: none */
    int asked;
    struct identity identity;
    bool has_identity;
    const uint8_t *wanted;       /* the peer's public key; NULL: any, or none */
    enum tunnel_verdict verdict; /* other than TUNNEL_ADMIT: of all peers */
    int admit_asked;
};

struct tunnel_net {
    uv_loop_t loop;
    uv_timer_t tick; /* limits every wait */
    struct tunnel_host *a, *b;
    struct knows a_knows, b_knows;
    struct tunnel_listener *listener;
    int listen_fd;
    uint16_t port;
    char address[64];
    int n_accepted, hosts_closed, listeners_closed;
    int fds[NET_ACCEPTED_MAX];
    struct tunnel_peer peers[NET_ACCEPTED_MAX];
};

/* Result of a tunnel_connect. */
struct net_answer {
    int calls;
    err_t err;
    char why[1024];
    struct tunnel_peer peer;
    int fd;
    struct tunnel_request *request;
};

void net_open(struct tunnel_net *n); /* both know k1 */
/* Both have identities, and each admits only the other's. */
void net_open_identified(struct tunnel_net *n);
void net_close(struct tunnel_net *n); /* closes the hosts; asserts that each callback came once and the loop is empty */
void net_listen_on(struct tunnel_net *n, const char *address);
bool net_pump(struct tunnel_net *n, bool (*done)(void *), void *arg); /* false after 60 s */
void net_pump_ms(struct tunnel_net *n, int ms);
/* Number of loop turns within `ms`; an idle loop has about one per 5 ms. */
int net_turns(struct tunnel_net *n, int ms);

/* Defaults: from a to b, with a's newest key, for TUNNEL_RPC. */
struct tunnel_connect_config net_config(struct tunnel_net *n);
void net_connect(struct tunnel_net *n, struct tunnel_host *from, const struct tunnel_connect_config *config,
                 struct net_answer *a);
void net_wait(struct tunnel_net *n, struct net_answer *a);
void net_wait_accepted(struct tunnel_net *n, int count);
void net_wait_tunnels(struct tunnel_net *n, struct tunnel_host *host, uint32_t count);
/* Opens a tunnel from a to b and returns the descriptors of both owners. */
void net_tunnel(struct tunnel_net *n, int *ret_a, int *ret_b);
/* Connects and expects this error. */
void net_expect(struct tunnel_net *n, const struct tunnel_connect_config *config, err_t err, const char *part_of_why);

int net_raw(struct tunnel_net *n,
            const char *from); /* a plain TCP connection to b, non-blocking; from: own address or NULL */
/* Reads until the end of the stream or a reset; returns the number of bytes read. */
size_t net_read_to_end(struct tunnel_net *n, int fd);
uint64_t net_refused(struct tunnel_net *n);

#endif
