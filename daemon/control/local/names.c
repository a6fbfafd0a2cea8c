/* See names.h. An entry whose time has passed is used until the service has answered again. An answer that finds its
 * entry replaced is dropped. */
#include "daemon/control/local/names.h"

#include "common/base/clock.h"
#include "common/base/log.h"

#include <errno.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define KNOWN_MS 600000  /* users are renamed rarely */
#define UNKNOWN_MS 30000 /* a user may be added, or the service may work again */
#define THREADS 1        /* a service that hangs hangs for all users; their uids are shown meanwhile */
/* Bytes of an entry of passwd(5); glibc suggests 1024, and directory services have longer ones. */
#define ENTRY_BYTES (64u << 10)

struct name_lookup {
    struct pool_task task;
    struct user_names *names;
    uint32_t uid;
    enum name_state state;
    char text[NAMES_TEXT];
};

static void lookup_run(struct pool_task *task)
{
    struct name_lookup *l = (struct name_lookup *)task;
    struct passwd pw, *found = NULL;
    char *buf = malloc(ENTRY_BYTES);
    int errnum = buf ? getpwuid_r(l->uid, &pw, buf, ENTRY_BYTES, &found) : ENOMEM;
    l->state = found ? NAME_KNOWN : NAME_UNKNOWN;
    if (found)
        snprintf(l->text, sizeof(l->text), "%s", pw.pw_name);
    else if (errnum)
        log_warn("name of a user not found, its number is shown uid=%u why=\"%s\"", l->uid, strerror(errnum));
    free(buf);
}

/* The entry of the user; if there is none, the one to replace, or NULL if the service is being asked for all of them.
 */
static struct name_entry *entry_of(struct user_names *names, uint32_t uid)
{
    struct name_entry *old = NULL;
    for (uint32_t i = 0; i < NAMES_NEAR; i++) {
        struct name_entry *e = &names->entry[(uid + i) % NAMES_MAX];
        if (e->due_ms && e->uid == uid)
            return e;
        if (!e->asked && (!old || e->due_ms < old->due_ms))
            old = e;
    }
    return old;
}

static void lookup_done(struct pool_task *task)
{
    struct name_lookup *l = (struct name_lookup *)task;
    struct name_entry *e = entry_of(l->names, l->uid);
    if (e && e->asked && e->uid == l->uid) {
        e->asked = false;
        e->state = l->state;
        e->due_ms = clock_mono_ms() + (l->state == NAME_KNOWN ? KNOWN_MS : UNKNOWN_MS);
        memcpy(e->text, l->text, sizeof(e->text));
    }
    free(l);
}

err_t names_init(struct user_names *names, uv_loop_t *loop)
{
    memset(names->entry, 0, sizeof(names->entry));
    return pool_init(
        &names->pool,
        &(struct pool_config){.loop = loop, .threads = THREADS, .user_threads = THREADS, .user_waiting = NAMES_MAX});
}

static void ask(struct user_names *names, struct name_entry *e)
{
    struct name_lookup *l = calloc(1, sizeof(*l));
    err_t err = l ? OK : ERR_NOMEM;
    if (!err) {
        l->task = (struct pool_task){.run = lookup_run, .done = lookup_done};
        l->names = names;
        l->uid = e->uid;
        err = pool_add(&names->pool, &l->task, 0);
    }
    e->asked = err == OK;
    e->due_ms = clock_mono_ms() + UNKNOWN_MS;
    if (err) {
        log_warn("name of a user not looked up uid=%u error=%s", e->uid, err_text(err));
        free(l);
    }
}

enum name_state names_get(struct user_names *names, uint32_t uid, const char **ret_text)
{
    struct name_entry *e = entry_of(names, uid);
    if (!e)
        return NAME_NONE;
    if (!e->due_ms || e->uid != uid)
        *e = (struct name_entry){.uid = uid};
    if (!e->asked && e->due_ms <= clock_mono_ms())
        ask(names, e);
    if (e->state == NAME_KNOWN)
        *ret_text = e->text;
    return e->state;
}
