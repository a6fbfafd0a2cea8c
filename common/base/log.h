/* Log lines on standard error, one per event: time, level, program, event, then key=value pairs. Any thread. */
#ifndef DTD_COMMON_BASE_LOG_H
#define DTD_COMMON_BASE_LOG_H

enum log_level { LOG_ERROR, LOG_WARN, LOG_INFO, LOG_DEBUG };

/* `program` must outlive the process ("dtd-control"). The level comes from DTD_LOG (error, warn, info, debug; default
 * info). */
void log_init(const char *program);
/* Changes the level, unless DTD_LOG is set in the environment. */
void log_level_set(enum log_level level);
void log_at(enum log_level level, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

#define log_error(...) log_at(LOG_ERROR, __VA_ARGS__)
#define log_warn(...) log_at(LOG_WARN, __VA_ARGS__)
#define log_info(...) log_at(LOG_INFO, __VA_ARGS__)
#define log_debug(...) log_at(LOG_DEBUG, __VA_ARGS__)

#endif
