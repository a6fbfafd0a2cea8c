/* Replaces, by the linker's --wrap, the system calls that depend on the real world: the clocks, and folders, which are
 * the virtual disk's. */
#include "common/base/file.h"
#include "tests/sim/world.h"

#include <time.h>

int __wrap_clock_gettime(clockid_t clock, struct timespec *ret);
time_t __wrap_time(time_t *ret);
err_t __wrap_file_make_dirs(const char *path, mode_t mode);

int __wrap_clock_gettime(clockid_t clock, struct timespec *ret)
{
    int64_t us = clock == CLOCK_REALTIME ? host_wall_us(world.current) : host_mono_us(world.current);
    *ret = (struct timespec){.tv_sec = us / US_PER_S, .tv_nsec = us % US_PER_S * 1000};
    return 0;
}

time_t __wrap_time(time_t *ret)
{
    time_t now = host_wall_us(world.current) / US_PER_S;
    if (ret)
        *ret = now;
    return now;
}

err_t __wrap_file_make_dirs(const char *path, mode_t mode)
{
    (void)path, (void)mode;
    return OK;
}
