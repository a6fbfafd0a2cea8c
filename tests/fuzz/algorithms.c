/* Any bytes after the header of an algorithm file. A choice is accepted only if it prints as the line from which it was
 * read. A choice that is added after them must be found at the next start. */
#include "kernels/cuda/gemm_file.h"

#include "common/base/log.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define GPU "a GPU"
#define LIBRARY 1
#define HEADER "dtd algorithms 1\ngpu a GPU\ncublaslt 1\n"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static struct gemm_file *open_again(const char *path)
{
    struct gemm_file *f = NULL;
    struct why why = {""};
    if (gemm_file_open(path, GPU, LIBRARY, &f, &why))
        abort();
    return f;
}

static void check_line(const uint8_t *data, size_t size)
{
    char line[GEMM_LINE_BYTES], again[GEMM_LINE_BYTES];
    struct gemm_choice c;
    size_t n = size < sizeof(line) ? size : sizeof(line) - 1;
    memcpy(line, data, n);
    line[n] = '\0';
    if (gemm_choice_parse(line, &c) && (gemm_choice_print(&c, again) >= sizeof(again) || strcmp(again, line) != 0))
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char path[64];
    int fd = memfd_create("algorithms", MFD_CLOEXEC);
    struct gemm_choice mine;
    log_level_set(LOG_ERROR);
    check_line(data, size);
    snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    if (fd < 0 || write(fd, HEADER, strlen(HEADER)) < 0 || write(fd, data, size) != (ssize_t)size)
        abort();
    memset(&mine, 0, sizeof(mine));
    mine.key.m = 4321;
    mine.apart = true;
    struct gemm_file *f = open_again(path);
    if (!gemm_file_add(f, &mine) || !gemm_file_find(f, &mine.key))
        abort();
    gemm_file_close(f);
    f = open_again(path);
    if (!gemm_file_find(f, &mine.key))
        abort();
    gemm_file_close(f);
    close(fd);
    return 0;
}
