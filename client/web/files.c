#include "client/web/files.h"

/* Name of its symbol, name of the file, type. */
#define FILES(X)                                            \
    X(index_html, "index.html", "text/html; charset=utf-8") \
    X(app_css, "app.css", "text/css; charset=utf-8")        \
    X(app_js, "app.js", "text/javascript; charset=utf-8")

#define EMBED(symbol, name, type)                                                                                 \
    __asm__(".section .rodata\n.balign 16\nweb_" #symbol ":\n.incbin \"" WEB_PAGE_DIR "/" name "\"\nweb_" #symbol \
            "_end:\n.byte 0\n.previous\n");                                                                       \
    extern const unsigned char web_##symbol[] __attribute__((visibility("hidden"))),                              \
        web_##symbol##_end[] __attribute__((visibility("hidden")));
FILES(EMBED)

#define ROW(symbol, name, type) {"/" name, type, web_##symbol, web_##symbol##_end},
const struct web_file web_files[] = {FILES(ROW)};
const int web_n_files = sizeof(web_files) / sizeof(web_files[0]);
