/* Decodes the key from its MUNGE credential. A credential that has expired, or that was decoded on this node before
 * (dtd was restarted), is still accepted: it only has to prove which user made it and that only this user can decode
 * it. */
#include "daemon/control/slurm/slurm.h"

#include <assert.h>
#include <dlfcn.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

/* From munge.h, which is not installed on machines that only run dtd. */
enum { MUNGE_SUCCESS = 0, MUNGE_EXPIRED = 15, MUNGE_REWOUND = 16, MUNGE_REPLAYED = 17 };
typedef int munge_decode_fn(const char *cred, void *ctx, void **buf, int *len, uid_t *uid, gid_t *gid);
typedef const char *munge_strerror_fn(int error);

struct munge {
    void *lib;
    munge_decode_fn *decode;
    munge_strerror_fn *strerror;
};

static err_t load(struct munge *m, struct why *why)
{
    m->lib = dlopen("libmunge.so.2", RTLD_NOW | RTLD_LOCAL);
    if (!m->lib)
        return why_set(why, ERR_UNSUPPORTED, "%s: install libmunge2, which decodes the key in DTD_SLURM_KEY",
                       dlerror());
    *(void **)&m->decode = dlsym(m->lib, "munge_decode");
    *(void **)&m->strerror = dlsym(m->lib, "munge_strerror");
    if (m->decode && m->strerror)
        return OK;
    dlclose(m->lib);
    return why_set(why, ERR_UNSUPPORTED, "libmunge.so.2 has no munge_decode");
}

static bool is_authentic(int status)
{
    return status == MUNGE_SUCCESS || status == MUNGE_EXPIRED || status == MUNGE_REWOUND || status == MUNGE_REPLAYED;
}

static int hex_digit(char c)
{
    return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

static bool parse_key(const char *text, int len, uint8_t ret[SLURM_KEY_BYTES])
{
    while (len > 0 && (text[len - 1] == '\n' || text[len - 1] == '\0'))
        len--;
    if (len != 2 * SLURM_KEY_BYTES)
        return false;
    for (int i = 0; i < SLURM_KEY_BYTES; i++) {
        int hi = hex_digit(text[2 * i]), lo = hex_digit(text[2 * i + 1]);
        if (hi < 0 || lo < 0)
            return false;
        ret[i] = (uint8_t)(hi << 4 | lo);
    }
    return true;
}

err_t slurm_key(slurm_env *env, uint8_t ret[SLURM_KEY_BYTES], struct why *why)
{
    struct munge m = {0};
    const char *cred = env("DTD_SLURM_KEY");
    void *text = NULL;
    int len = 0;
    uid_t uid = (uid_t)-1;
    gid_t gid;
    if (!cred)
        return why_set(why, ERR_INVALID,
                       "DTD_SLURM_KEY is not set: start dtd --slurm with deploy/slurm/dtd.sbatch, or create a key as "
                       "that script does");
    err_t err = load(&m, why);
    if (err)
        return err;
    assert(m.decode && m.strerror);
    int status = m.decode(cred, NULL, &text, &len, &uid, &gid);
    if (!is_authentic(status))
        err = why_set(why, ERR_DENIED, "DTD_SLURM_KEY: %s", m.strerror(status));
    else if (uid != geteuid())
        err = why_set(why, ERR_DENIED, "DTD_SLURM_KEY was made by user %u, this dtd runs as user %u", (unsigned)uid,
                      (unsigned)geteuid());
    else if (!parse_key(text, len, ret))
        err = why_set(why, ERR_INVALID, "DTD_SLURM_KEY contains no key of %d hex digits", 2 * SLURM_KEY_BYTES);
    if (text)
        explicit_bzero(text, (size_t)len);
    free(text);
    dlclose(m.lib);
    return err;
}
