/* The files of the page, as they are in client/web/page/ and embedded in dtd-web. Constant; any thread. */
#ifndef DTD_CLIENT_WEB_FILES_H
#define DTD_CLIENT_WEB_FILES_H

#include <stddef.h>

struct web_file {
    const char *path; /* "/app.js" */
    const char *type;
    const unsigned char *data, *end;
};

extern const struct web_file web_files[];
extern const int web_n_files;

#endif
