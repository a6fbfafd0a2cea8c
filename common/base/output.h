/* Standard output is checked when a program ends: a full disk or a closed pipe must not look like success. */
#ifndef DTD_COMMON_BASE_OUTPUT_H
#define DTD_COMMON_BASE_OUTPUT_H

/* Makes exit() flush standard output. If anything that was printed could not be written, the program prints the reason
 * on stderr and exits with status 1. A pipe whose reader has ended is no error: the reader wanted no more. To be called
 * once, in main. The name must live until then. */
void output_check_at_exit(const char *program);

#endif
