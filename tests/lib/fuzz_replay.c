/* Runs a fuzzer's entry point on every given file and on all files of the given folders. It replays a corpus without
 * libFuzzer. */
#include "common/base/file.h"

#include <dirent.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static int replay(const char *path)
{
    struct stat st;
    if (stat(path, &st))
        return 0;
    if (!S_ISDIR(st.st_mode)) {
        struct buf b = {0};
        if (!file_read(path, 1 << 28, &b))
            LLVMFuzzerTestOneInput(b.data ? b.data : (const uint8_t *)"", b.len);
        buf_fini(&b);
        return 1;
    }
    int n = 0;
    DIR *dir = opendir(path);
    for (struct dirent *e; dir && (e = readdir(dir));) {
        char child[PATH_MAX];
        if (e->d_name[0] == '.' || (size_t)snprintf(child, sizeof(child), "%s/%s", path, e->d_name) >= sizeof(child))
            continue;
        n += replay(child);
    }
    if (dir)
        closedir(dir);
    return n;
}

int main(int argc, char **argv)
{
    int n = 0;
    for (int i = 1; i < argc; i++)
        n += replay(argv[i]);
    printf("%d inputs replayed\n", n);
    return n == 0;
}
