/* Names of users, for messages. The name service may take seconds (a directory server that does not answer), so a
 * thread asks it, and this cache has the answers. Embedded in its owner; loop thread. */
#ifndef DTD_DAEMON_CONTROL_LOCAL_NAMES_H
#define DTD_DAEMON_CONTROL_LOCAL_NAMES_H

#include "daemon/control/local/pool.h"

#define NAMES_TEXT 65 /* bytes; useradd allows 32 */
#define NAMES_MAX                                                                                                  \
    1024             /* users; more than a machine has at a time, and bounds what callers from many users can cost \
                      */
#define NAMES_NEAR 8 /* entries among which one user's is; the oldest of them is replaced */

enum name_state { NAME_NONE, NAME_KNOWN, NAME_UNKNOWN };

struct name_entry {
    enum name_state state; /* KNOWN: `text` is the name; UNKNOWN: no user has this uid, or the service failed */
    bool asked;            /* a thread asks the service */
    uint32_t uid;
    int64_t due_ms; /* when to ask again; 0: no user has used this entry */
    char text[NAMES_TEXT];
};

struct user_names {
    struct pool pool;
    struct name_entry entry[NAMES_MAX];
};

NODISCARD err_t names_init(struct user_names *names, uv_loop_t *loop);
/* Returns at once. NAME_NONE: not known yet; a thread has been asked, so a later call may return it. *ret_text is valid
 * until the next turn of the loop; it is set only for NAME_KNOWN. */
enum name_state names_get(struct user_names *names, uint32_t uid, const char **ret_text);

#endif
