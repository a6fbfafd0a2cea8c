/* The file DIR/witness. It is overwritten in place and not synced: after a power failure it may be older, which makes
 * this voter know less, or be torn, which makes it know nothing. */
#include "daemon/control/log/witness.h"

#include "common/base/buf.h"
#include "common/base/file.h"
#include "common/base/log.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

void witness_load(struct log_witness *w, const char *dir)
{
    char path[PATH_MAX];
    struct buf bytes = {0};
    *w = (struct log_witness){.n = 0};
    snprintf(path, sizeof(path), "%s/witness", dir);
    err_t err = file_read(path, WITNESS_BYTES, &bytes);
    if (!err)
        err = witness_decode(bytes.data ? bytes.data : (const uint8_t *)"", bytes.len, w);
    if (err && err != ERR_NOTFOUND)
        log_warn("what the other voters have acknowledged is not known path=%s why=\"%s\"", path, err_text(err));
    buf_fini(&bytes);
}

void witness_save(struct log_witness *w, const char *dir)
{
    char path[PATH_MAX];
    uint8_t bytes[WITNESS_BYTES];
    if (!w->is_dirty)
        return;
    snprintf(path, sizeof(path), "%s/witness", dir);
    witness_encode(w, bytes);
    int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    err_t err = fd < 0 ? err_from_errno(errno) : file_pwrite_all(fd, bytes, sizeof(bytes), 0);
    if (fd >= 0)
        close(fd);
    if (err)
        log_debug("%s: %s", path, err_text(err)); /* a full disk has its own warning */
    w->is_dirty = err != OK;
}
