/* state.json, dataset_dict.json and dataset_info.json of a folder; the first byte chooses which. */
#include "common/data/datasets.h"

#include "common/base/file.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static char folder[] = "/tmp/dtd-fuzz-datasets-XXXXXX";

static void write_file(const char *name, const void *data, size_t size)
{
    char path[128];
    snprintf(path, sizeof(path), "%s/%s", folder, name);
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    if (fd < 0 || file_write_all(fd, data, size))
        abort();
    close(fd);
}

static void remove_folder(void)
{
    err_t err = file_remove_tree(folder);
    if (err)
        fprintf(stderr, "%s: %s\n", folder, err_text(err));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char *const names[] = {"state.json", "dataset_dict.json", "dataset_info.json"};
    static int ready;
    struct why why = {0};
    char **paths, path[128];
    int n;
    if (!ready++) {
        if (!mkdtemp(folder))
            abort();
        atexit(remove_folder);
        write_file("a.arrow", "", 0);
        write_file("text-train.arrow", "", 0);
    }
    if (size == 0)
        return 0;
    write_file(names[data[0] % 3], data + 1, size - 1);
    err_t err = datasets_files(folder, &paths, &n, &why);
    if (err && !why.text[0])
        abort();
    for (int i = 0; !err && i < n; i++) {
        if (access(paths[i], F_OK))
            abort();
        free(paths[i]);
    }
    if (!err)
        free(paths);
    snprintf(path, sizeof(path), "%s/%s", folder, names[data[0] % 3]);
    unlink(path);
    return 0;
}
