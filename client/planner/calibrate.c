/* dtctl plan --calibrate: dt-worker measures, because dtctl has no kernels; here its figures become a machine file, and
 * its times of operations a table beside it. The table is written first, so that no machine file names a table that is
 * not there.
 *
 * A machine file has one part of the peak that products reach, for all types. That of float32 is measured, and the
 * peaks of the other types are written so that the rate which the planner uses is the measured one. */
#include "client/planner/planner.h"

#include "client/daemon.h"
#include "client/json.h"
#include "common/base/clock.h"
#include "common/base/file.h"
#include "common/plan/estimate/table.h"

#include <errno.h>
#include <libgen.h>
#include <limits.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define MACHINE_TEXT (2 * PATH_MAX)

/* ---- the worker ---- */

static void show_progress(struct out_progress *p, const json_t *line)
{
    char text[128];
    snprintf(text, sizeof(text), "Measuring %s (%d of %d)", json_string_value(json_object_get(line, "doing")),
             (int)json_integer_value(json_object_get(line, "part")) + 1,
             (int)json_integer_value(json_object_get(line, "parts")));
    if (p->terminal)
        out_progress_draw(p, clock_mono_ms(), text);
}

/* The last line is the result; the others name what is being measured. */
static json_t *read_lines(FILE *f)
{
    struct out_progress progress;
    char *line = NULL;
    size_t size = 0;
    ssize_t n;
    json_t *last = NULL;
    out_progress_init(&progress, stderr);
    while ((n = getline(&line, &size, f)) > 0) {
        json_decref(last);
        last = json_loadb(line, (size_t)n, 0, NULL);
        if (last && json_object_get(last, "doing"))
            show_progress(&progress, last);
    }
    out_progress_clear(&progress);
    free(line);
    return last;
}

/* A worker that fails has printed its reason on standard error, with its exit status. */
static err_t run_worker(bool brief, json_t **ret, int *ret_code, struct why *why)
{
    char program[PATH_MAX];
    int fds[2], status = 0;
    err_t err = daemon_program("dt-worker", program, sizeof(program), why);
    if (err)
        return err;
    if (pipe2(fds, O_CLOEXEC))
        return err_from_errno(errno);
    pid_t pid = fork();
    if (pid == 0) {
        dup2(fds[1], STDOUT_FILENO);
        execl(program, "dt-worker", "--measure", brief ? "--brief" : NULL, (char *)NULL);
        _exit(127);
    }
    close(fds[1]);
    FILE *f = pid > 0 ? fdopen(fds[0], "r") : NULL;
    json_t *last = f ? read_lines(f) : NULL;
    if (f)
        fclose(f);
    else
        close(fds[0]);
    while (pid > 0 && waitpid(pid, &status, 0) < 0 && errno == EINTR)
        ;
    *ret_code = pid > 0 && WIFEXITED(status) ? WEXITSTATUS(status) : EXIT_ERROR;
    if (*ret_code == EXIT_DONE && json_object_get(last, "figures")) {
        *ret = last;
        return OK;
    }
    json_decref(last);
    return why_set(why, ERR_IO, "dt-worker --measure has failed");
}

/* ---- the file ---- */

static double figure(const json_t *measured, const char *name)
{
    return json_number_value(json_object_get(json_object_get(measured, "figures"), name));
}

/* Foreign text, such as a processor's name: YAML in double quotes reads what JSON writes. The caller frees it. */
static char *quoted(const char *text)
{
    json_t *string = json_string(text);
    char *ret = string ? json_dumps(string, JSON_ENCODE_ANY) : NULL;
    json_decref(string);
    return ret;
}

static void source_text(const json_t *measured, char *text, size_t size)
{
    char date[16];
    const time_t now = (time_t)(clock_wall_ms() / 1000);
    struct tm tm;
    strftime(date, sizeof(date), "%F", gmtime_r(&now, &tm));
    const int cores = (int)json_integer_value(json_object_get(measured, "cores"));
    snprintf(text, size, "measured %s on %s, %d core%s, by dtd %s", date,
             json_string_value(json_object_get(measured, "cpu")), cores, cores == 1 ? "" : "s",
             json_string_value(json_object_get(measured, "version")));
}

/* The part of the peak; a processor that runs faster for a moment could give more than all of it. */
static double product_part(const json_t *measured)
{
    const double part = figure(measured, "product_float32") / figure(measured, "peak_float32");
    return part > 1 ? 1 : part < 0.01 ? 0.01 : part;
}

static err_t machine_text(const json_t *measured, const char *times, char *ret, size_t size, size_t *ret_len)
{
    char text[512];
    source_text(measured, text, sizeof(text));
    char *source = quoted(text), *table = quoted(times);
    if (!source || !table) {
        free(source);
        free(table);
        return ERR_NOMEM;
    }
    const double cores = json_number_value(json_object_get(measured, "cores")), part = product_part(measured);
    const int n = snprintf(
        ret, size,
        "# Written by dtctl plan --calibrate; its manual page is docs/use/machines.md. Rates are those of one core\n"
        "# while all cores work. bf16_tflops and f64_tflops are what products reach, divided by device.product.\n"
        "name: here\nsource: %s\ntimes: %s\nnodes: 1\n"
        "device: {per_node: %.0f, memory_gib: %.4g, bandwidth_gb: %.4g, bf16_tflops: %.4g, f32_tflops: %.4g,\n"
        "         f64_tflops: %.4g, product: %.3g, copy: 1, launch_us: %.3g, call_us: 0, one_thread: true}\n"
        "link: {bandwidth_gb: %.4g, latency_us: %.3g}\nnetwork: {bandwidth_gb: 0}\n"
        "storage: {bandwidth_gb: %.3g, copy_gb: %.4g}\n",
        source, table, cores, json_number_value(json_object_get(measured, "memory_bytes")) / cores / (1 << 30),
        figure(measured, "memory") / 1e9, figure(measured, "product_bfloat16") / part / 1e12,
        figure(measured, "product_float32") / part / 1e12, figure(measured, "product_float64") / part / 1e12, part,
        figure(measured, "operation_s") * 1e6, figure(measured, "link") / 1e9, figure(measured, "collective_s") * 1e6,
        figure(measured, "storage") / 1e9, figure(measured, "copy") / 1e9);
    free(source);
    free(table);
    if (n < 0 || (size_t)n >= size)
        return ERR_LIMIT;
    *ret_len = (size_t)n;
    return OK;
}

err_t planner_calibrated_path(char *ret, size_t size, struct why *why)
{
    const char *config = getenv("XDG_CONFIG_HOME"), *home = getenv("HOME");
    const bool xdg = config && config[0] == '/';
    if (!xdg && !(home && home[0] == '/'))
        return why_set(why, ERR_INVALID, "neither XDG_CONFIG_HOME nor HOME is set: name the machine file");
    const int n = snprintf(ret, size, "%s%s/dtd/machine.yaml", xdg ? config : home, xdg ? "" : "/.config");
    return n < 0 || (size_t)n >= size ? why_set(why, ERR_LIMIT, "the path of the machine file is too long") : OK;
}

/* Only dtd's own folder is made; a folder that the user names must be there. Called before measuring, so that no user
 * waits for a file that cannot be written. */
static err_t check_folder(const char *path, bool own, struct why *why)
{
    char copy[PATH_MAX];
    snprintf(copy, sizeof(copy), "%s", path);
    const char *folder = dirname(copy);
    err_t err = own ? file_make_dirs(folder, 0755) : OK;
    if (!err && access(folder, W_OK | X_OK))
        err = err_from_errno(errno);
    return err ? why_set(why, err, "cannot write %s: folder %s: %s", path, folder, strerror(errno)) : OK;
}

static void print_machine(const char *path, const struct machine *m)
{
    printf("%s: %s\n", path, m->source);
    printf("  Products   %.4g GFLOP/s of a core in float32 (%.0f %% of its peak), %.4g in bfloat16, %.4g in float64\n",
           m->device.f32_tflops * m->device.product * 1e3, 100 * m->device.product,
           m->device.bf16_tflops * m->device.product * 1e3, m->device.f64_tflops * m->device.product * 1e3);
    printf("  Memory     %.4g GB/s of a core while all cores work\n", m->device.bandwidth_gb);
    printf("  Operations take at least %.3g us\n", m->device.launch_us);
    printf("  Links      %.4g GB/s between the cores, collectives take at least %.3g us\n", m->link.bandwidth_gb,
           m->link.latency_us);
    printf("  Storage    %.3g GB/s in the current folder\n", m->storage.bandwidth_gb);
    if (m->times[0])
        printf("  Table      times of operations by size, in %s\n", m->times);
}

static err_t replace(const char *path, const void *text, size_t len, struct why *why)
{
    err_t err = file_replace(path, text, len, 0644);
    return err ? why_set(why, err, "cannot write %s: %s", path, err_text(err)) : OK;
}

/* "machine.yaml" has the table machine.times. */
static bool times_path(const char *path, char *ret, size_t size)
{
    const size_t len = strlen(path), end = strlen(".yaml");
    const bool yaml = len > end && strcmp(path + len - end, ".yaml") == 0;
    const int n = snprintf(ret, size, "%.*s.times", (int)(yaml ? len - end : len), path);
    return n >= 0 && (size_t)n < size;
}

static err_t write_times(const char *path, const json_t *measured, struct why *why)
{
    const char *rows = json_string_value(json_object_get(measured, "table"));
    struct plan_table table = {0};
    struct buf text = {0};
    char source[512];
    source_text(measured, source, sizeof(source));
    err_t err = buf_printf(&text,
                           "dtd times 1\n# Written by dtctl plan --calibrate: %s.\n"
                           "# operation, type, form, ranks, size, seconds: median, lower and upper quartile\n%s",
                           source, rows);
    err = err ? err
              : plan_table_read((const char *)text.data, text.len, path, &table, why); /* what we write we can read */
    err = err ? err : replace(path, text.data, text.len, why);
    plan_table_fini(&table);
    buf_fini(&text);
    return err;
}

/* Without a table, a machine file names none. */
static err_t write_table(const char *path, const json_t *measured, char ret_name[PATH_MAX], struct why *why)
{
    char times[PATH_MAX], copy[PATH_MAX];
    ret_name[0] = 0;
    if (!json_object_get(measured, "table"))
        return OK;
    if (!times_path(path, times, sizeof(times)))
        return why_set(why, ERR_LIMIT, "%s: the path is too long", path);
    snprintf(copy, sizeof(copy), "%s", times);
    snprintf(ret_name, PATH_MAX, "%s", basename(copy));
    return write_times(times, measured, why);
}

static err_t write_machine(struct global *g, const char *path, const json_t *measured, struct why *why)
{
    char text[MACHINE_TEXT], times[PATH_MAX];
    size_t len = 0;
    struct machine m = {0};
    err_t err = write_table(path, measured, times, why);
    err = err ? err : machine_text(measured, times, text, sizeof(text), &len);
    err = err ? err : machine_parse(path, text, len, NULL, 0, &m, why); /* what we write we can read */
    err = err ? err : replace(path, text, len, why);
    if (!err && g->format == OUT_TEXT)
        print_machine(path, &m);
    else if (!err)
        err = out_json(json_pack("{s:s, s:s, s:O}", "file", path, "source", m.source, "measured",
                                 json_object_get(measured, "figures")),
                       g->format == OUT_JSONL);
    machine_fini(&m);
    return err;
}

err_t planner_calibrate(struct global *g, const char *file, bool brief, int *ret_code, struct why *why)
{
    char path[PATH_MAX];
    json_t *measured = NULL;
    err_t err = OK;
    if (file)
        snprintf(path, sizeof(path), "%s", file);
    else
        err = planner_calibrated_path(path, sizeof(path), why);
    err = err ? err : check_folder(path, !file, why);
    err = err ? err : run_worker(brief, &measured, ret_code, why);
    err = err ? err : write_machine(g, path, measured, why);
    json_decref(measured);
    return err;
}
