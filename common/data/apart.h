/* Runs a reader in a process of its own, which may only read files that are open, take memory and write documents to a
 * pipe (seccomp, where the kernel has it).
 *
 * For readers whose library does not resist hostile files: a crash there is an error here, and code that a file
 * smuggles in reaches nothing. The process is a fork, so the byte_source is used there, and must not be used here until
 * the reader is closed. Documents with turns are not supported. */
#ifndef DTD_COMMON_DATA_APART_H
#define DTD_COMMON_DATA_APART_H

#include "common/data/source.h"

/* Like format->open. ERR_CORRUPT from open or next: the process ended by a signal. */
NODISCARD err_t apart_open(const struct doc_format *format, struct byte_source *in, const struct doc_options *o,
                           struct doc_reader **ret, struct why *why);

#endif
