/* Tokens with which the web page logs in for a user (docs/operate/web.md).
 *
 * A token is "UID-EXPIRY-MAC": the user's number, the second of the Unix time at which it expires, and 64 hex digits:
 * HMAC-SHA256 of "dtd web UID-EXPIRY" under the key of this node, cluster/web.key in the state directory. So a token
 * survives a restart of dtd-control, and deleting the file ends all of them. The functions read or write that file. */
#ifndef DTD_DAEMON_CONTROL_LOCAL_WEB_TOKEN_H
#define DTD_DAEMON_CONTROL_LOCAL_WEB_TOKEN_H

#include "common/base/err.h"

#include <stdint.h>

#define WEB_TOKEN_MAX 112 /* with the terminating 0 */

/* Creates the key if there is none. */
NODISCARD err_t web_token_make(const char *state_dir, uint32_t uid, int64_t expires_s, char ret[WEB_TOKEN_MAX],
                               struct why *why);
/* ERR_DENIED: the token is malformed, has expired, or was not made under this node's key. */
NODISCARD err_t web_token_check(const char *state_dir, const char *token, int64_t now_s, uint32_t *ret_uid,
                                struct why *why);

#endif
