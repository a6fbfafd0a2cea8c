/* Functions that all wires share: failure, the key of the epoch, and the exchange of addresses through the store. */
#include "worker/comm/wire/wire.h"

#include "common/base/clock.h"
#include "common/base/ports.h"
#include "worker/comm/wire/codec.h"

#include <inttypes.h>
#include <openssl/core_names.h>
#include <openssl/kdf.h>
#include <openssl/params.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define SECRET_MIN 16
#define GET_MS 1000 /* longest wait in the store before the deadline and cancellation are checked again */

err_t wire_fail(struct comm_wire *w, err_t err, const char *fmt, ...)
{
    va_list args;
    if (w->dead)
        return w->dead;
    w->dead = err;
    va_start(args, fmt);
    vsnprintf(w->why.text, sizeof(w->why.text), fmt, args);
    va_end(args);
    return err;
}

err_t wire_sizes_differ(struct comm_wire *w, int from, uint64_t sent, int to, size_t wanted)
{
    return wire_fail(w, ERR_INVALID, "rank %d sends a message of %llu bytes where rank %d receives %zu", from,
                     (unsigned long long)sent, to, wanted);
}

err_t wire_key(const struct wire_config *config, uint8_t *ret, struct why *why)
{
    uint8_t epoch[8];
    if (!config->secret || config->secret_bytes < SECRET_MIN)
        return why_set(why, ERR_INVALID, "workers on several nodes need the epoch's secret of at least %d bytes",
                       SECRET_MIN);
    for (int i = 0; i < 8; i++)
        epoch[i] = (uint8_t)(config->epoch >> 8 * i);
    OSSL_PARAM params[] = {
        OSSL_PARAM_construct_utf8_string(OSSL_KDF_PARAM_DIGEST, (char *)"SHA256", 0),
        OSSL_PARAM_construct_octet_string(OSSL_KDF_PARAM_KEY, (void *)config->secret, config->secret_bytes),
        OSSL_PARAM_construct_octet_string(OSSL_KDF_PARAM_SALT, epoch, sizeof(epoch)),
        OSSL_PARAM_construct_octet_string(OSSL_KDF_PARAM_INFO, (char *)"dtd comm", 8), OSSL_PARAM_construct_end()};
    EVP_KDF *kdf = EVP_KDF_fetch(NULL, "HKDF", NULL);
    EVP_KDF_CTX *ctx = kdf ? EVP_KDF_CTX_new(kdf) : NULL;
    bool good = ctx && EVP_KDF_derive(ctx, ret, WIRE_KEY_BYTES, params) == 1;
    EVP_KDF_CTX_free(ctx);
    EVP_KDF_free(kdf);
    return good ? OK : why_set(why, ERR_NOMEM, "cannot derive the key of epoch %" PRIu64, config->epoch);
}

static void name_key(char *ret, size_t room, const char *kind, int rank)
{
    snprintf(ret, room, "comm/%s/%d", kind, rank);
}

err_t wire_publish_address(const struct wire_config *config, const char *kind, const union wire_address *at,
                           struct why *why)
{
    char key[32], value[WIRE_ADDRESS_MAX];
    name_key(key, sizeof(key), kind, config->rank);
    wire_address_print(at, value);
    return config->store->put(config->store->arg, key, value, strlen(value), why);
}

static void set_port(union wire_address *at, uint16_t port)
{
    if (at->any.sa_family == AF_INET6)
        at->v6.sin6_port = htons(port);
    else
        at->v4.sin_port = htons(port);
}

/* Ranks of a node begin at different ports, so that they do not all try the same ones. */
err_t wire_listen(const struct wire_config *config, wire_listen_fn listens, void *arg, struct why *why)
{
    union wire_address at;
    struct ports p;
    const char *text = config->address;
    if (!text || wire_address_find(text, 0, &at))
        return why_set(why, ERR_INVALID,
                       "\"%s\" is not an address at which other nodes can reach this node; " WIRE_ADDRESS_REMEDY,
                       text ? text : "");
    if (!ports_parse(config->ports, &p))
        return why_set(why, ERR_INVALID, "\"%s\" is no range of ports: write " PORTS_NEED, config->ports);
    const int n = ports_count(&p);
    err_t err = ERR_EXISTS;
    for (int i = 0; i < n && err == ERR_EXISTS; i++) {
        set_port(&at, (uint16_t)(p.first + (config->rank + i) % n));
        err = listens(arg, &at, why);
    }
    if (n && err == ERR_EXISTS)
        return why_set(why, ERR_LIMIT,
                       "none of the ports %s is free at %s: make run.ports of the job file, or cluster.ports of dtd's "
                       "configuration, larger",
                       config->ports, text);
    return n ? err : listens(arg, &at, why);
}

err_t wire_check_canceled(const struct wire_config *config, struct why *why)
{
    if (config->cancel && atomic_load(config->cancel))
        return why_set(why, ERR_CANCELED, "epoch %" PRIu64 " ended before all ranks had joined", config->epoch);
    return OK;
}

err_t wire_lookup_address(const struct wire_config *config, const char *kind, int rank, int64_t deadline_ms,
                          union wire_address *ret, struct why *why)
{
    const struct comm_store *store = config->store;
    char key[32], value[WIRE_ADDRESS_MAX];
    size_t bytes = 0;
    err_t err = ERR_TIMEOUT;
    name_key(key, sizeof(key), kind, rank);
    while (err == ERR_TIMEOUT) {
        int64_t left = deadline_ms - clock_mono_ms();
        if (left <= 0)
            return why_set(why, ERR_TIMEOUT, "rank %d did not join epoch %" PRIu64 " within %" PRId64 " ms", rank,
                           config->epoch, config->timeout_ms);
        err = wire_check_canceled(config, why);
        bytes = sizeof(value);
        err = err ? err : store->get(store->arg, key, left < GET_MS ? left : GET_MS, value, &bytes, why);
    }
    if (!err && wire_address_parse(value, bytes, ret))
        err = why_set(why, ERR_PROTO, "rank %d published an invalid address", rank);
    return err;
}
