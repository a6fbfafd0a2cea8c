/* Identities: their file and signatures against RFC 8032, and tunnels of nodes that have the cluster's key and the
 * wrong identity, or none. */
#include "tests/common/tunnel/raw.h"

/* ---- keys and files ---- */

/* RFC 8032, section 7.1, test 1: a signature of no bytes. */
static const char file_of_the_rfc[] = "ed25519 9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60\n";
static const uint8_t public_of_the_rfc[] = {0xd7, 0x5a, 0x98, 0x01, 0x82, 0xb1, 0x0a, 0xb7, 0xd5, 0x4b, 0xfe,
                                            0xd3, 0xc9, 0x64, 0x07, 0x3a, 0x0e, 0xe1, 0x72, 0xf3, 0xda, 0xa6,
                                            0x23, 0x25, 0xaf, 0x02, 0x1a, 0x68, 0xf7, 0x07, 0x51, 0x1a};
static const uint8_t proof_of_the_rfc[] = {0xe5, 0x56, 0x43, 0x00, 0xc3, 0x60, 0xac, 0x72, 0x90, 0x86, 0xe2, 0xcc, 0x80,
                                           0x6e, 0x82, 0x8a, 0x84, 0x87, 0x7f, 0x1e, 0xb8, 0xe5, 0xd9, 0x74, 0xd8, 0x73,
                                           0xe0, 0x65, 0x22, 0x49, 0x01, 0x55, 0x5f, 0xb8, 0x82, 0x15, 0x90, 0xa3, 0x3b,
                                           0xac, 0xc6, 0x1e, 0x39, 0x70, 0x1c, 0xf9, 0xb4, 0x6b, 0xd2, 0x5b, 0xf5, 0xf0,
                                           0x59, 0x5b, 0xbe, 0x24, 0x65, 0x51, 0x41, 0x43, 0x8e, 0x7a, 0x10, 0x0b};

TEST(file_and_signature_are_those_of_the_rfc)
{
    struct identity x;
    uint8_t proof[IDENTITY_PROOF_BYTES];
    char file[IDENTITY_FILE_BYTES + 1], print[IDENTITY_FINGERPRINT_MAX];
    assert_int_equal(sizeof(file_of_the_rfc) - 1, IDENTITY_FILE_BYTES);
    assert_ok(identity_parse(file_of_the_rfc, IDENTITY_FILE_BYTES, &x));
    assert_memory_equal(x.public_key, public_of_the_rfc, IDENTITY_BYTES);
    assert_ok(identity_sign(&x, "", 0, proof));
    assert_memory_equal(proof, proof_of_the_rfc, IDENTITY_PROOF_BYTES);
    assert_true(identity_verify(public_of_the_rfc, "", 0, proof_of_the_rfc));
    assert_false(identity_verify(public_of_the_rfc, "x", 1, proof_of_the_rfc));
    identity_write(&x, file);
    assert_string_equal(file, file_of_the_rfc);
    identity_fingerprint(x.public_key, print);
    assert_string_equal(print, "21fe:31df:a154:a261"); /* sha256sum of the 32 bytes */
}

TEST(damaged_files_are_refused)
{
    struct identity x = {{0}, {0}};
    char file[sizeof(file_of_the_rfc)];
    assert_err(ERR_CORRUPT, identity_parse(file_of_the_rfc, IDENTITY_FILE_BYTES - 1, &x));
    assert_err(ERR_CORRUPT, identity_parse(file_of_the_rfc, 0, &x));
    static const struct {
        size_t at;
        char value;
    } rows[] = {{0, 'E'}, {7, '-'}, {8, 'A'}, {40, 'g'}, {71, ' '}, {72, 'a'}};
    for (size_t i = 0; i < sizeof(rows) / sizeof(*rows); i++) {
        memcpy(file, file_of_the_rfc, sizeof(file));
        file[rows[i].at] = rows[i].value;
        assert_err(ERR_CORRUPT, identity_parse(file, IDENTITY_FILE_BYTES, &x));
    }
    assert_int_equal(x.private_key[0], 0);
}

TEST(two_identities_differ)
{
    struct identity a, b;
    assert_ok(identity_make(&a, NULL));
    assert_ok(identity_make(&b, NULL));
    assert_memory_not_equal(a.private_key, b.private_key, IDENTITY_BYTES);
    assert_memory_not_equal(a.public_key, b.public_key, IDENTITY_BYTES);
}

/* ---- two hosts ---- */

TEST(both_ends_prove_who_they_are)
{
    struct tunnel_net n;
    struct net_answer a;
    net_open_identified(&n);
    struct tunnel_connect_config config = net_config(&n);
    config.purpose = TUNNEL_STORE;
    config.argument = "1000 store";
    net_connect(&n, n.a, &config, &a);
    net_wait(&n, &a);
    if (a.err)
        fail_msg("%s", a.why);
    net_wait_accepted(&n, 1);
    assert_true(a.peer.is_proven);
    assert_true(n.peers[0].is_proven);
    assert_memory_equal(a.peer.public_key, n.b_knows.identity.public_key, IDENTITY_BYTES);
    assert_memory_equal(n.peers[0].public_key, n.a_knows.identity.public_key, IDENTITY_BYTES);
    assert_string_equal(n.peers[0].argument, "1000 store");
    assert_int_equal(write(a.fd, "hello", 5), 5);
    close(a.fd);
    assert_int_equal(net_read_to_end(&n, n.fds[0]), 5);
    close(n.fds[0]);
    net_close(&n);
}

TEST(another_identity_is_refused_on_both_sides)
{
    static const uint8_t other[IDENTITY_BYTES] = {1};
    struct tunnel_net n;
    net_open_identified(&n);
    const struct tunnel_connect_config config = net_config(&n);
    n.b_knows.wanted = other;
    net_expect(&n, &config, ERR_DENIED, "node b at");
    net_expect(&n, &config, ERR_DENIED, "the node of this name has another identity");
    assert_int_equal(net_refused(&n), 2);
    n.b_knows.wanted = n.a_knows.identity.public_key;
    n.a_knows.wanted = other; /* b answers, but it is not the b that a has in its list */
    struct net_answer a;
    net_connect(&n, n.a, &config, &a);
    net_wait(&n, &a);
    assert_err(ERR_DENIED, a.err);
    assert_non_null(strstr(a.why, "is refused: the node of this name has another identity"));
    net_wait_accepted(&n, 1);
    assert_int_equal(net_read_to_end(&n, n.fds[0]), 0);
    close(n.fds[0]);
    net_close(&n);
}

TEST(each_verdict_has_its_reason)
{
    static const struct {
        enum tunnel_verdict verdict;
        err_t err;
        const char *why;
    } rows[] = {{TUNNEL_STRANGER, ERR_DENIED, "lists no node of this name"},
                {TUNNEL_OTHER, ERR_DENIED, "has another identity"},
                {TUNNEL_REMOVED, ERR_STALE, "was removed from the cluster"},
                {TUNNEL_NEEDS_TOKEN, ERR_DENIED, "dtctl cluster token"}};
    for (size_t i = 0; i < sizeof(rows) / sizeof(*rows); i++) {
        struct tunnel_net n;
        net_open_identified(&n);
        const struct tunnel_connect_config config = net_config(&n);
        n.b_knows.verdict = rows[i].verdict;
        net_expect(&n, &config, rows[i].err, rows[i].why);
        net_close(&n);
    }
}

/* A node that is not admitted itself cannot report to another one that it was removed. */
TEST(a_stranger_cannot_report_a_removal)
{
    static const uint8_t other[IDENTITY_BYTES] = {1};
    struct tunnel_net n;
    net_open_identified(&n);
    const struct tunnel_connect_config config = net_config(&n);
    n.b_knows.verdict = TUNNEL_REMOVED;
    n.a_knows.wanted = other;
    net_expect(&n, &config, ERR_DENIED, "was removed from the cluster");
    net_close(&n);
}

TEST(recheck_cuts_a_node_that_is_no_longer_admitted)
{
    struct tunnel_net n;
    int a, b;
    net_open_identified(&n);
    net_tunnel(&n, &a, &b);
    tunnel_host_recheck(n.b);
    tunnel_host_recheck(n.a);
    assert_int_equal(n.b->all, 1);
    n.b_knows.verdict = TUNNEL_REMOVED;
    tunnel_host_recheck(n.b);
    assert_int_equal(net_read_to_end(&n, b), 0);
    assert_int_equal(net_read_to_end(&n, a), 0);
    net_wait_tunnels(&n, n.a, 0);
    net_wait_tunnels(&n, n.b, 0);
    close(a), close(b);
    net_close(&n);
}

/* A host of an older version, in both roles: nothing is proved, and the owner decides. */
TEST(old_and_new_versions_meet)
{
    for (int old = 0; old < 2; old++) {
        struct tunnel_net n;
        struct net_answer a;
        net_open_identified(&n);
        (old ? n.a : n.b)->config.identity.own = NULL;
        if (old)
            SSL_CTX_set_alpn_protos(n.a->connect_ctx, NULL, 0);
        n.a_knows.wanted = n.b_knows.wanted = NULL;
        const struct tunnel_connect_config config = net_config(&n);
        net_connect(&n, n.a, &config, &a);
        net_wait(&n, &a);
        assert_ok(a.err);
        net_wait_accepted(&n, 1);
        assert_false(a.peer.is_proven);
        assert_false(n.peers[0].is_proven);
        close(a.fd), close(n.fds[0]);
        net_wait_tunnels(&n, n.a, 0);
        n.b_knows.wanted = n.a_knows.identity.public_key; /* b has a's identity in its list: an old a is no a */
        net_expect(&n, &config, ERR_DENIED, "has another identity");
        net_close(&n);
    }
}

/* ---- a program that has the cluster's key ---- */

enum attack {
    HONEST,
    NO_IDENTITY,    /* it negotiates no identity, as an older version */
    OLD_GREETING,   /* it negotiates one, and then sends a greeting without */
    CHANGED_KEY,    /* one bit of the public key */
    CHANGED_PROOF,  /* one bit of the signature */
    OWN_KEY,        /* its own identity, correctly signed, under the node's name */
    OTHER_ROLE,     /* what an accepting node would have signed */
    OTHER_TUNNEL,   /* what the node has signed for another connection, as a program between two nodes gets it */
    STOLEN_KEY_ONLY /* the node's public key, signed with another private key */
};

static void make_attack(enum attack what, struct tunnel_net *n, struct raw *r, struct greeting *g)
{
    struct identity own, mixed;
    assert_ok(identity_make(&own, NULL));
    mixed = own;
    memcpy(mixed.public_key, n->a_knows.identity.public_key, IDENTITY_BYTES);
    *g = raw_greeting();
    if (what == OWN_KEY || what == STOLEN_KEY_ONLY)
        raw_sign(r, what == OWN_KEY ? &own : &mixed, 'c', g);
    else if (what != NO_IDENTITY && what != OLD_GREETING)
        raw_sign(r, &n->a_knows.identity, what == OTHER_ROLE ? 'a' : 'c', g);
    g->public_key[5] ^= what == CHANGED_KEY;
    g->proof[63] ^= what == CHANGED_PROOF ? 0x08 : 0;
    g->proof[0] ^= what == CHANGED_PROOF;
}

static void try_attack(enum attack what, int status)
{
    struct tunnel_net n;
    struct raw r, first;
    struct greeting g, answer;
    uint8_t bytes[GREETING_MAX_BYTES];
    net_open_identified(&n);
    if (what == OTHER_TUNNEL) {
        raw_open(&first, net_raw(&n, NULL), false, "k1:a", n.a_knows.ring.keys[0].secret, KEY_BYTES);
        raw_offer_identity(&first);
        assert_true(raw_handshake(&n, &first));
    }
    raw_open(&r, net_raw(&n, NULL), false, "k1:a", n.a_knows.ring.keys[0].secret, KEY_BYTES);
    if (what != NO_IDENTITY)
        raw_offer_identity(&r);
    assert_true(raw_handshake(&n, &r));
    make_attack(what, &n, what == OTHER_TUNNEL ? &first : &r, &g);
    raw_greet(&n, &r, &g);
    size_t got = raw_read(&n, &r, bytes, sizeof(bytes), 1); /* one record has the whole answer */
    assert_ok(greeting_decode(bytes, got, &answer, NULL));
    if (answer.status != status)
        fail_msg("attack %d: status %d, expected %d", (int)what, answer.status, status);
    assert_int_equal(n.n_accepted, status == GREETING_OK);
    assert_int_equal(net_refused(&n), status != GREETING_OK);
    if (status == GREETING_OK) {
        struct greeting want; /* Ed25519 has no random numbers: the same bytes give the same signature */
        raw_sign(&r, &n.b_knows.identity, 'a', &want);
        assert_memory_equal(answer.public_key, want.public_key, IDENTITY_BYTES);
        assert_memory_equal(answer.proof, want.proof, IDENTITY_PROOF_BYTES);
        close(n.fds[0]);
    }
    raw_close(&r);
    if (what == OTHER_TUNNEL)
        raw_close(&first);
    net_close(&n);
}

TEST(the_clusters_key_alone_opens_nothing)
{
    static const struct {
        enum attack what;
        int status;
    } rows[] = {
        {HONEST, GREETING_OK},         {NO_IDENTITY, GREETING_OTHER},   {OLD_GREETING, GREETING_VERSION_UNKNOWN},
        {CHANGED_KEY, GREETING_PROOF}, {CHANGED_PROOF, GREETING_PROOF}, {OWN_KEY, GREETING_OTHER},
        {OTHER_ROLE, GREETING_PROOF},  {OTHER_TUNNEL, GREETING_PROOF},  {STOLEN_KEY_ONLY, GREETING_PROOF},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(*rows); i++)
        try_attack(rows[i].what, rows[i].status);
}
