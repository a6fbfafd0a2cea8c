/* Faults of a disk, for one folder: calls of this process, and of the libraries that it uses, fail or hang for files
 * whose path contains `folder`. disk_faults.c replaces functions of the C library. It is linked into a test, or is
 * preloaded into a daemon, where the struct is in the file that the variable DTD_TEST_DISK names, so that a test
 * changes it at any time. */
#ifndef DTD_TESTS_DAEMON_CONTROL_LOG_DISK_FAULTS_H
#define DTD_TESTS_DAEMON_CONTROL_LOG_DISK_FAULTS_H

#include <stdatomic.h>

struct disk_faults {
    _Atomic int sync;     /* error number of fsync and fdatasync; 0: none */
    _Atomic int write;    /* of writes through the kernel's AIO, which reach the disk nevertheless, and of pwrite */
    _Atomic int allocate; /* of posix_fallocate */
    _Atomic int open;     /* of open for writing */
    _Atomic int cut;      /* of ftruncate and unlink */
    _Atomic int setup;    /* of io_setup, for any file */
    _Atomic int hangs;    /* nonzero: AIO writes and fsync do not return until this is zero again */
    _Atomic int calls;    /* calls that failed or hung; counts up */
    char folder[320];     /* "": no file */
};

extern struct disk_faults *disk_faults;

#endif
