/* The assembler embeds the files. CMake writes WEB_PAGE_FILES with a row PAGE_FILE(symbol, path, name, type) for each.
 */
#include "client/web/files.h"

#define TYPE_html "text/html; charset=utf-8"
#define TYPE_css "text/css; charset=utf-8"
#define TYPE_js "text/javascript; charset=utf-8"
#define TYPE_svg "image/svg+xml"

#define PAGE_FILE(symbol, path, name, type)                                          \
    __asm__(".section .rodata\n.balign 16\nweb_" #symbol ":\n.incbin \"" path "\"\n" \
            "web_" #symbol "_end:\n.byte 0\n.previous\n");                           \
    extern const unsigned char web_##symbol[] __attribute__((visibility("hidden"))), \
        web_##symbol##_end[] __attribute__((visibility("hidden")));
#include WEB_PAGE_FILES
#undef PAGE_FILE

#define PAGE_FILE(symbol, path, name, type) {"/" name, type, web_##symbol, web_##symbol##_end},
const struct web_file web_files[] = {
#include WEB_PAGE_FILES
};
const int web_n_files = sizeof(web_files) / sizeof(web_files[0]);
